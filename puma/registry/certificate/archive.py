"""Keeping an erased version's certificates: those of the versions made from it refer to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from puma.registry.certificate.build import FILE, KEPT, digest, read_artifact
from puma.registry.tombstones import Tombstone
from puma.registry.versions import CHAMPION, RegisteredVersion

if TYPE_CHECKING:
    from puma.registry.registry import Registry


def keep_certificates(
    registry: Registry,
    version: RegisteredVersion,
    versions: Sequence[RegisteredVersion],
    erased: Mapping[int, Tombstone],
) -> None:
    """Copy a version's certificate, and all that were kept beside it, to where they stay.

    That is beside every version that was made from it or, if there is none, beside the champion.

    Args:
        registry: The registry.
        version: The version that is going to be erased.
        versions: All versions of the same registered model.
        erased: The erased ones, by number.
    """
    client, texts = registry.client, {}
    names = [FILE, *(item.path for item in client.list_artifacts(version.run_id, KEPT))]
    for name in names:
        text = read_artifact(client, version.run_id, name)
        if text is not None and name in (FILE, f"{KEPT}/{digest(text)}.json"):
            texts[f"{KEPT}/{digest(text)}.json"] = text
    for keeper in _keepers(version.version, versions, erased):
        for name, text in texts.items():
            client.log_text(keeper.run_id, text, name)


def _keepers(
    number: int, versions: Sequence[RegisteredVersion], erased: Mapping[int, Tombstone]
) -> list[RegisteredVersion]:
    def made_from(version: RegisteredVersion) -> bool:
        above = version.parent_version
        while above is not None and above != number and above in erased:
            above = erased[above].parent_version
        return above == number

    others = [version for version in versions if version.method and version.version != number]
    return [version for version in others if made_from(version)] or [
        version for version in others if CHAMPION in version.aliases
    ]
