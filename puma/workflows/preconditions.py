"""Which versions and methods the direct path has a way with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from puma.errors import AbsentError, ModelError, RegistryError, SettingsError
from puma.lineage.records import ModelIdentity
from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, model_name, open_store
from puma.registry.certificate.verify import check_record
from puma.registry.loading import load_identity
from puma.registry.tombstones import tombstones
from puma.removal import METHODS, RemovalMethod, build_method
from puma.settings import ORIGINAL, Settings

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


def remover_of(
    method: str, settings: Settings, *, seed: int, budget: float | None = None
) -> RemovalMethod:
    """The named method as params.yaml has it, but for ``seed`` and, if given, ``budget``.

    Raises SettingsError for one that needs more than a model and its data, and for a budget that
    it cannot have.
    """
    remover = build_method(method, settings.model_copy(update={"seed": seed}))
    if remover.original != ORIGINAL:
        able = ", ".join(name for name, kind in METHODS.items() if kind.original == ORIGINAL)
        raise SettingsError(
            f"{method} needs what it recorded while its original was trained, which the registry "
            f"does not hold; run it by `dvc repro`, or choose one of {able}"
        )
    if budget is None:
        return remover
    if "budget" not in type(remover).model_fields:
        raise SettingsError(f"{method} is given no budget, got {budget}; leave it out")
    try:
        return type(remover).model_validate({**remover.model_dump(), "budget": budget})
    except ValidationError as error:
        raise SettingsError(
            f"the budget must be a positive number of nats, such as 0.01, got {budget}"
        ) from error


def refuse_other_kinds(identity: ModelIdentity, parent: RegisteredVersion) -> None:
    """Raise ModelError for a version that only its own method can remove from."""
    plain = identity.method == ORIGINAL or (
        identity.method in METHODS and METHODS[identity.method].original == ORIGINAL
    )
    if not plain:
        raise ModelError(
            f"version {parent.version} was made by {identity.method}, whose removals need what was "
            "recorded while its original was trained; run `dvc repro`, or choose another version"
        )


def refuse_broken_record(client: MlflowClient, dataset: str, found: ModelVersion) -> None:
    """Raise RegistryError for a version whose certificate, or one above, cannot be relied on.

    What is made of it would take over what it says: whom it is without, and what moved it.
    """
    for finding in check_record(client, dataset, found):
        if finding.state in ("fails", "unknown"):
            raise RegistryError(
                f"nothing can be made of version {found.version}, as its record does not hold: "
                f"{finding.field}: {finding.detail}; see `puma verify {dataset} {found.version}`"
            )


def refuse_lost_key(workspace: Workspace, rows: Sequence[RegisteredVersion]) -> None:
    """Raise AbsentError where requests were answered, and the key of their digests is not here."""
    if not workspace.key.exists() and any(row.deletion_digest for row in rows):
        raise AbsentError(
            f"{workspace.key} is not here, and with another key the same people would be others; "
            "restore it from a backup, or from whoever answered the earlier requests"
        )


def refuse_other_training(
    workspace: Workspace,
    rows: Sequence[RegisteredVersion],
    parent: RegisteredVersion,
    identity: ModelIdentity,
) -> None:
    """Raise SettingsError unless the audit's models, trained as params.yaml says, are like it."""
    settings = workspace.settings
    if identity.model != settings.model:
        raise SettingsError(
            f"version {parent.version} is not the model that params.yaml describes "
            f"({identity.model!r} there, {settings.model!r} here); put its settings back, since "
            "the audit trains models like it"
        )
    client = open_store(workspace)
    above = {row.version: row.parent_version for row in rows}
    buried = tombstones(client, identity.dataset)
    above |= {number: stone.parent_version for number, stone in buried.items()}
    number = parent.version
    while (next_one := above[number]) is not None:
        number = next_one
    if number in buried:
        return  # and with it what it was trained with
    original = load_identity(
        client, client.get_model_version(model_name(identity.dataset), str(number))
    )
    for name, value in settings.training.model_dump().items():
        if original.parameters.get(name) != value:
            raise SettingsError(
                f"training.{name} is {value!r} in params.yaml, and version {number} was "
                f"trained with {original.parameters.get(name)!r}; put it back, since the audit "
                "trains models like it"
            )
