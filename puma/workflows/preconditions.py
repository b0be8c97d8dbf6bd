"""What has to hold before ``puma remove`` changes anything."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from puma.errors import AbsentError, ModelError, RegistryError, SettingsError
from puma.lineage.records import ModelIdentity
from puma.models.own_loop import loop_digest
from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, Registry
from puma.removal import METHODS, RemovalMethod, build_method
from puma.removal.base import LOOP_DIGEST
from puma.settings import ORIGINAL, RETAINED_LOSS, Settings


def removal_method(
    method: str, settings: Settings, *, seed: int, budget: float | None = None
) -> RemovalMethod:
    """Build the named method as params.yaml has it, with this seed and budget.

    Args:
        method: A key of :data:`puma.removal.METHODS`.
        settings: Of the dataset.
        seed: Of the version that it removes from.
        budget: In nats; that of params.yaml if None.

    Raises:
        SettingsError: The method needs more than a model and its data, or has no such budget.
    """
    remover = build_method(method, settings.model_copy(update={"seed": seed}))
    if remover.original != ORIGINAL:
        possible = ", ".join(name for name, kind in METHODS.items() if kind.original == ORIGINAL)
        raise SettingsError(
            f"{method} needs what it recorded while its original was trained, which the registry "
            f"does not hold; run it by `dvc repro`, or choose one of {possible}"
        )
    if budget is None:
        return remover
    if "budget" not in type(remover).model_fields:
        raise SettingsError(f"{method} is given no budget, got {budget}; leave it out")
    try:
        changed = {**remover.model_dump(), "budget": budget, "device": remover.device}
        for each in changed.get("preserve", ()):
            if each["criterion"] == RETAINED_LOSS:
                each["budget"] = budget
        return type(remover).model_validate(changed)
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


def refuse_broken_record(registry: Registry, parent: RegisteredVersion) -> None:
    """Raise RegistryError unless the certificate of ``parent`` and those above it hold.

    The new version's certificate repeats what they state of the people removed before.
    """
    for finding in registry.check_record(parent):
        if finding.state in ("fails", "unknown"):
            raise RegistryError(
                f"nothing can be made of version {parent.version}, as its record does not hold: "
                f"{finding.field}: {finding.detail}; see `puma verify "
                f"{parent.dataset} {parent.version}`, or choose another version"
            )


def refuse_lost_key(workspace: Workspace, versions: Sequence[RegisteredVersion]) -> None:
    """Raise AbsentError if there are removals, and the key of their digests is absent."""
    if not workspace.key.exists() and any(each.deletion_digest for each in versions):
        raise AbsentError(
            f"{workspace.key} is not here, and with another key the same people would be others; "
            "restore it from a backup, or from whoever answered the earlier requests"
        )


def refuse_other_training(
    registry: Registry,
    versions: Sequence[RegisteredVersion],
    parent: RegisteredVersion,
    identity: ModelIdentity,
) -> None:
    """Raise SettingsError unless params.yaml has the model and the training of ``parent``.

    The audit trains models as params.yaml says, and compares the new version with them.
    """
    settings = registry.workspace.settings.for_dataset(identity.dataset)
    if identity.model != settings.model:
        raise SettingsError(
            f"version {parent.version} is not the model that params.yaml describes "
            f"({identity.model!r} there, {settings.model!r} here); put its settings back, since "
            "the audit trains models like it"
        )
    present = {each.version: each for each in versions}
    erased = registry.tombstones(identity.dataset)
    parents = {number: each.parent_version for number, each in present.items()}
    parents |= {number: each.parent_version for number, each in erased.items()}
    number = parent.version
    while (above := parents[number]) is not None:
        number = above
    if number in erased:
        return  # how it was trained is erased, too
    original = registry.identity(present[number])
    recorded = settings.training.recorded()
    for name in type(settings.training).model_fields:
        if original.parameters.get(name) != recorded.get(name):
            raise SettingsError(
                f"training.{name} is {recorded.get(name)!r} in params.yaml, and version {number} "
                f"was trained with {original.parameters.get(name)!r}; put it back, since the audit "
                "trains models like it"
            )
    if original.parameters.get(LOOP_DIGEST) != loop_digest(settings.training):
        raise SettingsError(
            f"the module of training.loop {settings.training.loop!r} is not the one by which "
            f"version {number} was trained; put its code back, since the audit trains models like "
            "it, or run `dvc repro` to train an original by the new one"
        )
