"""Which versions and methods the direct path has a way with."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from puma.errors import ModelError, SettingsError
from puma.receipts import Identity
from puma.registry import VersionRow, model_name, open_store
from puma.registry.loading import load_identity
from puma.removal import METHODS, RemovalMethod, build_method
from puma.settings import ORIGINAL, Settings
from puma.workspace import Workspace


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


def refuse_other_kinds(identity: Identity, parent: VersionRow) -> None:
    """Raise ModelError for a version that only its own method can remove from."""
    plain = identity.method == ORIGINAL or (
        identity.method in METHODS and METHODS[identity.method].original == ORIGINAL
    )
    if not plain:
        raise ModelError(
            f"version {parent.version} was made by {identity.method}, whose removals need what was "
            "recorded while its original was trained; run `dvc repro`, or choose another version"
        )


def refuse_other_training(
    workspace: Workspace, rows: Sequence[VersionRow], parent: VersionRow, identity: Identity
) -> None:
    """Raise SettingsError unless the audit's models, trained as params.yaml says, are like it."""
    settings, found = workspace.settings, parent
    if identity.model != settings.model:
        raise SettingsError(
            f"version {parent.version} is not the model that params.yaml describes "
            f"({identity.model!r} there, {settings.model!r} here); put its settings back, since "
            "the audit trains models like it"
        )
    while found.parent_version is not None:
        above = next((row for row in rows if row.version == found.parent_version), None)
        if above is None:
            return  # erased, and with it what it was trained with
        found = above
    client = open_store(workspace)
    original = load_identity(
        client, client.get_model_version(model_name(identity.dataset), str(found.version))
    )
    for name, value in settings.training.model_dump().items():
        if original.parameters.get(name) != value:
            raise SettingsError(
                f"training.{name} is {value!r} in params.yaml, and version {found.version} was "
                f"trained with {original.parameters.get(name)!r}; put it back, since the audit "
                "trains models like it"
            )
