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
    """An erased version, for whoever asks what it was.

    Attributes:
        name: The registered model.
        version: Its number, which is never given again.
        when: UTC in ISO 8601; empty as long as the version is still there.
        fingerprint: Of its identity.
        weights_digest: Of its weights.
        certificate: The SHA-256 of its last certificate, if it had one.
        method: What made it.
        parent_version: The version that it was made from; None for an original.
        deletion_digest: Keyed digest of its deletion set; None for an original.
        n_removed: Training rows that it was without.
        data_digest: Of the dataset that it was trained on.
        promoted_at: Of its last promotion, UTC in ISO 8601.
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
    def of(cls, version: RegisteredVersion) -> Tombstone:
        """Describe a version that is still there; ``when`` is empty."""
        return cls(
            name=version.name,
            version=version.version,
            when="",
            fingerprint=version.fingerprint,
            weights_digest=version.weights_digest,
            certificate=version.tags.get(CERTIFICATE),
            method=version.method,
            parent_version=version.parent_version,
            deletion_digest=version.deletion_digest,
            n_removed=version.n_removed,
            data_digest=version.data_digest,
            promoted_at=version.promoted_at,
        )

    @property
    def dataset(self) -> str:
        """The dataset whose registered model it was a version of."""
        return _dataset(self.name)

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the version that others refer to."""
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
        """Return it with the digests and the parent that one of its kept certificates names."""
        parent = certificate["parent"]
        return replace(
            self,
            fingerprint=certificate["fingerprint"],
            weights_digest=certificate["weights_digest"],
            parent_version=None if parent is None else parent["version"],
        )

    @property
    def as_version(self) -> RegisteredVersion:
        """The version, without aliases and metrics."""
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

    def content(self) -> dict[str, Any]:
        """Return what the tag holds; name and number are the tag's own."""
        return {key: value for key, value in asdict(self).items() if key not in ("name", "version")}


def write_tombstone(client: MlflowClient, tombstone: Tombstone) -> None:
    """Write ``tombstone`` as a tag of the registered model."""
    text = json.dumps(tombstone.content(), sort_keys=True)
    client.set_registered_model_tag(tombstone.name, f"{ERASED}{tombstone.version}", text)


def tombstones(client: MlflowClient, dataset: str) -> dict[int, Tombstone]:
    """Every erased version of ``dataset``'s model, by its number.

    Raises:
        RegistryError: Somebody changed such a tag.
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

    Raises:
        MlflowException: It is gone, and has no tombstone.
    """
    from mlflow.exceptions import MlflowException

    above = parent_version(found.tags)
    if above is None:
        return None
    try:
        return client.get_model_version(found.name, str(above))
    except MlflowException:
        if (tombstone := tombstones(client, _dataset(found.name)).get(above)) is None:
            raise
        return tombstone


def _dataset(name: str) -> str:
    return name.removeprefix(model_name(""))


def erased_before(client: MlflowClient, record: ModelRecord) -> Tombstone | None:
    """The erased version that ``record`` would bring back; None when it is another model."""
    for tombstone in tombstones(client, record.dataset).values():
        if record.fingerprint == tombstone.fingerprint or (
            record.weights_digest == tombstone.weights_digest
        ):
            return tombstone
    return None


def refuse_erased(client: MlflowClient, record: ModelRecord) -> None:
    """Refuse a model that was erased and has come back.

    Raises:
        RegistryError: ``record`` describes an erased version.
    """
    tombstone = erased_before(client, record)
    if tombstone is not None:
        raise RegistryError(
            f"{record.dataset} {record.method}: this is the model that was erased as version "
            f"{tombstone.version} on {tombstone.when}, made again from the same data and "
            "settings; it is not registered again. Take the people whom no model may know out of "
            "the data's source, and their ids out of deletions/; then `puma erase "
            f"{record.dataset} {tombstone.version}` erases the new files, and `dvc repro` trains "
            "without these people. Where it was erased by mistake, change `seed`"
        )
