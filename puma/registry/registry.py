"""The registry as everything outside this room sees it: opened once, then asked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from filelock import FileLock

from puma.lineage.records import ModelIdentity, ModelRecord
from puma.project.workspace import Workspace
from puma.registry import foreign, loading, registration
from puma.registry import tombstones as erased
from puma.registry.certificate.findings import Finding
from puma.registry.certificate.verify import check_record
from puma.registry.creation import Draft
from puma.registry.foreign import ForeignModel
from puma.registry.store import experiment_id, open_store, reaching, writing
from puma.registry.tombstones import Tombstone
from puma.registry.versions import (
    FINGERPRINT,
    RegisteredVersion,
    find_tagged,
    get_version,
    list_versions,
    registered_version,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch import Tensor, nn

P = ParamSpec("P")
T = TypeVar("T")


def _reaches_store(
    method: Callable[Concatenate[Registry, P], T],
) -> Callable[Concatenate[Registry, P], T]:
    """Raise RegistryError in place of a failure of the store's disk, database or server."""

    def within(registry: Registry, /, *arguments: P.args, **named: P.kwargs) -> T:
        with reaching(registry.workspace):
            return method(registry, *arguments, **named)

    functools.update_wrapper(within, method)
    return within


@dataclass(frozen=True)
class Registry:
    """The model registry of one project.

    Every method raises RegistryError, with what to do, when the store cannot be reached or
    written.

    Attributes:
        workspace: The project.
        client: MLflow's client. Only modules of ``puma.registry`` may use it.
    """

    workspace: Workspace
    client: MlflowClient

    @classmethod
    def open(cls, workspace: Workspace, *, create: bool = False) -> Registry:
        """Connect to the store of ``workspace``.

        Args:
            workspace: The project.
            create: Whether to create the store on first use.

        Raises:
            RegistryError: There is no store, or it cannot be used. The message says what to do.
        """
        return cls(workspace, open_store(workspace, create=create))

    def lock(self) -> FileLock:
        """The lock to hold while creating versions or moving aliases."""
        return writing(self.workspace)

    @_reaches_store
    def experiment(self) -> str:
        """MLflow's id of the experiment of every version's run."""
        return experiment_id(self.client)

    @_reaches_store
    def versions(self, dataset: str) -> list[RegisteredVersion]:
        """Every version of the model of ``dataset``, oldest first; empty when there is none."""
        return list_versions(self.client, dataset)

    @_reaches_store
    def version(self, dataset: str, number_or_alias: str | int) -> RegisteredVersion:
        """The version of that number or alias.

        Raises:
            RegistryError: There is none. The message lists those that there are.
        """
        return get_version(self.client, dataset, number_or_alias)

    @_reaches_store
    def find(self, dataset: str, fingerprint: str) -> RegisteredVersion | None:
        """The version with this fingerprint, the oldest if there are several, or None."""
        found = find_tagged(self.client, dataset, FINGERPRINT, fingerprint)
        return registered_version(self.client, found[0]) if found else None

    @_reaches_store
    def tombstones(self, dataset: str) -> dict[int, Tombstone]:
        """The erased versions of the model of ``dataset``, by number."""
        return erased.tombstones(self.client, dataset)

    @_reaches_store
    def erased_before(self, record: ModelRecord) -> Tombstone | None:
        """The erased version that registering ``record`` would bring back, or None."""
        return erased.erased_before(self.client, record)

    @_reaches_store
    def identity(self, version: RegisteredVersion) -> ModelIdentity:
        """What ``version`` was registered as; see :func:`puma.registry.loading.load_identity`."""
        return loading.load_identity(self.client, version)

    @_reaches_store
    def check_record(self, version: RegisteredVersion) -> tuple[Finding, ...]:
        """Compare the certificate of ``version``, and those above it, with the registry."""
        return check_record(self.client, version)

    @_reaches_store
    def load_module(self, version: RegisteredVersion) -> nn.Module:
        """The model with its layers; see :func:`puma.registry.loading.load_module`."""
        return loading.load_module(self.client, version, self.workspace)

    @_reaches_store
    def load_predictor(
        self, version: RegisteredVersion, *, allow_pickle: Collection[str] = ()
    ) -> Callable[[Tensor], Tensor]:
        """The model as a function; see :func:`puma.registry.loading.predictor`."""
        return loading.predictor(version, allow_pickle=allow_pickle)

    @_reaches_store
    def register_removal(self, draft: Draft, key: str) -> tuple[RegisteredVersion, bool]:
        """Register what ``puma remove`` made, unless ``key`` is registered already.

        ``challenger`` moves to a new version.

        Args:
            draft: The model, its record and its plots.
            key: Names the removal: the same parent, people, method and settings have the same.

        Returns:
            The version, and whether this call created it.
        """
        found, created = registration.register_removal(self.client, self.workspace, draft, key)
        return registered_version(self.client, found), created

    @_reaches_store
    def load_foreign(
        self, name: str, version_or_alias: str, *, allow_pickle: bool = False
    ) -> ForeignModel:
        """Somebody else's model; see :func:`puma.registry.foreign.load_foreign`."""
        return foreign.load_foreign(self.client, name, version_or_alias, allow_pickle=allow_pickle)

    @_reaches_store
    def register_adopted(self, draft: Draft) -> tuple[RegisteredVersion, bool]:
        """Register what ``puma adopt`` took over, unless it is registered already.

        ``champion`` is set to it where there is none.

        Returns:
            The version, and whether this call created it.
        """
        found, created = registration.register_adopted(self.client, self.workspace, draft)
        return registered_version(self.client, found), created

    @_reaches_store
    def find_removal(self, dataset: str, key: str) -> RegisteredVersion | None:
        """The version that ``puma remove`` registered under ``key``, or None.

        Where registering it was interrupted, it is completed.
        """
        found = registration.find_removal(self.client, dataset, key)
        return None if found is None else registered_version(self.client, found)
