"""Letting another version serve: ``champion`` moves, or it is said why it does not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from puma.errors import RegistryError
from puma.project.workspace import Workspace
from puma.registry.description import add_note
from puma.registry.promotion_rules import Condition, examine
from puma.registry.store import open_store, reaches_store, writing
from puma.registry.versions import (
    CHAMPION,
    FORCED,
    PROMOTED_AT,
    SUPERSEDED_BY,
    choose_version,
    list_versions,
    model_name,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

LONGEST_REASON = 1000  # characters; a page has to stay readable


class PromotionRefusedError(RegistryError):
    """``champion`` stays where it is. ``conditions``: all that was looked at."""

    def __init__(self, message: str, conditions: tuple[Condition, ...]) -> None:
        super().__init__(message)
        self.conditions = conditions

    @property
    def any_fails(self) -> bool:
        """Whether something is known to fail, not merely unknown."""
        return any(condition.state == "fails" for condition in self.conditions)


@dataclass(frozen=True)
class Promotion:
    """``previous``: the version that served before, None for the first. ``moved``: False when
    ``version`` served already. ``overridden``: names of the conditions that were forced."""

    dataset: str
    version: int
    previous: int | None
    moved: bool
    conditions: tuple[Condition, ...] = ()
    overridden: tuple[str, ...] = ()


@reaches_store
def promote(
    workspace: Workspace, dataset: str, version_or_alias: str | int, *, force: str | None = None
) -> Promotion:
    """Move ``champion`` to a version that passes the gate (:func:`examine`).

    ``force``: a reason for which it moves whatever the gate says; it is written on the version
    with the time, and not used where nothing had to be forced. The version that served is
    tagged as superseded. The alias moves last, so that a call that was cut short leaves it, and
    is completed by repeating it.

    Raises PromotionRefusedError when the gate does not open, RegistryError for a version that is
    not there and for a blank reason.
    """
    reason = _checked(force)
    client = open_store(workspace)
    with writing(workspace):
        rows = list_versions(client, dataset)
        row = choose_version(rows, dataset, version_or_alias)
        previous = next((item.version for item in rows if CHAMPION in item.aliases), None)
        if previous == row.version:
            return Promotion(dataset, row.version, previous, moved=False)
        found = client.get_model_version(model_name(dataset), str(row.version))
        conditions = examine(client, dataset, found, row, rows)
        closed = [condition for condition in conditions if condition.state != "holds"]
        if closed and reason is None:
            raise PromotionRefusedError(_refusal(row.version, closed), conditions)
        overridden = tuple(condition.name for condition in closed)
        _write(client, found, previous, reason if closed else None, overridden)
        client.set_registered_model_alias(found.name, CHAMPION, found.version)
    return Promotion(dataset, row.version, previous, True, conditions, overridden)


def _checked(force: str | None) -> str | None:
    if force is None:
        return None
    reason = " ".join(force.split())
    if not reason or len(reason) > LONGEST_REASON:
        what = "a blank reason" if not reason else f"{len(reason)} characters"
        raise RegistryError(
            f"a forced promotion needs a reason of 1 to {LONGEST_REASON} characters, got {what}; "
            "it is written on the version for whoever asks later"
        )
    return reason


def _refusal(version: int, closed: list[Condition]) -> str:
    words = {"fails": "fails", "unknown": "cannot be checked"}
    lines = [f"  {item.name} {words[item.state]}: {item.detail}" for item in closed]
    return (
        "\n".join([f"version {version} was not promoted:", *lines])
        + '\n  or pass --force "a reason", which is written on the version'
    )


def _write(
    client: MlflowClient,
    found: ModelVersion,
    previous: int | None,
    reason: str | None,
    overridden: tuple[str, ...],
) -> None:
    """Everything but the alias."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    if reason is not None:
        note = f"**Promoted by force** on {now}, past {', '.join(overridden)}: {reason}"
        client.update_model_version(found.name, found.version, add_note(found.description, note))
        client.set_model_version_tag(found.name, found.version, FORCED, reason)
    client.set_model_version_tag(found.name, found.version, PROMOTED_AT, now)
    stale = {SUPERSEDED_BY} if reason is not None else {SUPERSEDED_BY, FORCED}
    for name in stale & found.tags.keys():
        client.delete_model_version_tag(found.name, found.version, name)
    if previous is not None:
        client.set_model_version_tag(found.name, str(previous), SUPERSEDED_BY, str(found.version))
