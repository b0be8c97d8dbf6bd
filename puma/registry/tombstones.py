"""What is left of an erased version: a tag of the registered model, and its certificate.

Digests and counts, by which the versions made from it can still be checked, and by which the
same model is known should it come back.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from puma.errors import RegistryError
from puma.registry.versions import (
    CERTIFICATE,
    FINGERPRINT,
    WEIGHTS,
    RegisteredVersion,
    model_name,
    parent_version,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from puma.lineage.records import ModelRecord

ERASED = "puma.erased."


@dataclass(frozen=True)
class Tombstone:
    """An erased version. ``when``: UTC in ISO 8601; ``certificate``: the SHA-256 of its last.

    It stands in for the version where one is asked for what it was.
    """

    name: str
    version: int
    when: str
    fingerprint: str
    weights_digest: str
    certificate: str | None
    method: str
    parent_version: int | None
    deletion_digest: str | None
    n_removed: int
    data_digest: str
    promoted_at: str | None

    @classmethod
    def of(cls, found: ModelVersion, row: RegisteredVersion) -> Tombstone:
        """Of a version that is still there; ``when`` is empty."""
        return cls(
            name=found.name,
            version=row.version,
            when="",
            fingerprint=row.fingerprint,
            weights_digest=found.tags.get(WEIGHTS, ""),
            certificate=found.tags.get(CERTIFICATE),
            method=row.method,
            parent_version=row.parent_version,
            deletion_digest=row.deletion_digest,
            n_removed=row.n_removed,
            data_digest=row.data_digest,
            promoted_at=row.promoted_at,
        )

    @property
    def dataset(self) -> str:
        return _dataset(self.name)

    @property
    def tags(self) -> dict[str, str]:
        """Those of the version that others refer to."""
        tags = {
            FINGERPRINT: self.fingerprint,
            WEIGHTS: self.weights_digest,
            CERTIFICATE: self.certificate,
            "puma.parent_version": None
            if self.parent_version is None
            else str(self.parent_version),
        }
        return {name: value for name, value in tags.items() if value is not None}

    def certified(self, certificate: dict[str, Any]) -> Tombstone:
        """As one of its certificates, which is kept, names the version and its parent."""
        parent = certificate["parent"]
        return replace(
            self,
            fingerprint=certificate["fingerprint"],
            weights_digest=certificate["weights_digest"],
            parent_version=None if parent is None else parent["version"],
        )

    @property
    def row(self) -> RegisteredVersion:
        """The version among others, without what was measured of it."""
        return RegisteredVersion(
            dataset=self.dataset,
            version=self.version,
            aliases=(),
            method=self.method,
            parent_version=self.parent_version,
            n_removed=self.n_removed,
            deletion_digest=self.deletion_digest,
            verdict=None,
            metrics={},
            data_digest=self.data_digest,
            fingerprint=self.fingerprint,
            run_id="",
            created="",
            tags=self.tags,
            promoted_at=self.promoted_at,
        )

    def written(self) -> dict[str, Any]:
        """As the tag has it; :func:`read` makes it whole again."""
        return {key: value for key, value in asdict(self).items() if key not in ("name", "version")}


def bury(client: MlflowClient, stone: Tombstone) -> None:
    """Write ``stone`` on the registered model."""
    text = json.dumps(stone.written(), sort_keys=True)
    client.set_registered_model_tag(stone.name, f"{ERASED}{stone.version}", text)


def tombstones(client: MlflowClient, dataset: str) -> dict[int, Tombstone]:
    """Every erased version of ``dataset``'s model, by its number.

    Raises RegistryError for a tag that somebody changed.
    """
    name = model_name(dataset)
    found = {}
    for model in client.search_registered_models(f"name='{name}'"):
        for tag, text in model.tags.items():
            if tag.startswith(ERASED):
                number = tag.removeprefix(ERASED)
                try:
                    found[int(number)] = Tombstone(name, int(number), **json.loads(text))
                except (ValueError, TypeError) as error:
                    raise RegistryError(
                        f"{name}: the tag {tag} is not as it was written; restore it from a "
                        "backup, or delete it: version and certificate are then unknown"
                    ) from error
    return dict(sorted(found.items()))


def parent_of(
    client: MlflowClient, found: ModelVersion | Tombstone
) -> ModelVersion | Tombstone | None:
    """The version that ``found`` was made from, or its tombstone; None for an original.

    Raises MlflowException when it is gone without one.
    """
    from mlflow.exceptions import MlflowException

    above = parent_version(found.tags)
    if above is None:
        return None
    try:
        return client.get_model_version(found.name, str(above))
    except MlflowException:
        if (stone := tombstones(client, _dataset(found.name)).get(above)) is None:
            raise
        return stone


def _dataset(name: str) -> str:
    return name.removeprefix(model_name(""))


def erased_before(client: MlflowClient, receipt: ModelRecord) -> Tombstone | None:
    """The erased version that ``receipt`` would bring back; None when it is another model."""
    for stone in tombstones(client, receipt.dataset).values():
        if receipt.fingerprint == stone.fingerprint or (
            receipt.weights_digest == stone.weights_digest
        ):
            return stone
    return None


def refuse_erased(client: MlflowClient, receipt: ModelRecord) -> None:
    """Raise RegistryError for the receipt of a model that was erased and has come back."""
    stone = erased_before(client, receipt)
    if stone is not None:
        raise RegistryError(
            f"{receipt.dataset} {receipt.method}: this is the model that was erased as version "
            f"{stone.version} on {stone.when}, made again from the same data and settings; it "
            "is not registered again. Take the people whom no model may know out of the "
            "data's source, and their ids out of deletions/; then `puma erase "
            f"{receipt.dataset} {stone.version}` erases the new files, and `dvc repro` trains "
            "without these people. Where it was erased by mistake, change `seed`"
        )
