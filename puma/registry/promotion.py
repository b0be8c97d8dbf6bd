"""Promotion: move ``champion`` to another version, or refuse with the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from puma.errors import RegistryError
from puma.project.workspace import Workspace
from puma.registry.certificate.verify import check_fields, weights_or_error
from puma.registry.description import add_note
from puma.registry.promotion_rules import TARGETS, UNSHOWN, Condition, Facts, check_conditions
from puma.registry.store import open_store, reaches_store, writing
from puma.registry.store_errors import is_away
from puma.registry.tombstones import tombstones
from puma.registry.versions import (
    CHAMPION,
    FORCED,
    PROMOTED_AT,
    SUPERSEDED_BY,
    RegisteredVersion,
    choose_version,
    list_versions,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

LONGEST_REASON = 1000  # characters; a version's page has to stay readable


class PromotionRefusedError(RegistryError):
    """A version does not meet the conditions; ``champion`` stays where it is.

    Attributes:
        conditions: Everything that was checked.
    """

    def __init__(self, message: str, conditions: tuple[Condition, ...]) -> None:
        super().__init__(message)
        self.conditions = conditions

    @property
    def any_fails(self) -> bool:
        """Whether a condition fails; otherwise some only cannot be checked."""
        return any(condition.state == "fails" for condition in self.conditions)


@dataclass(frozen=True)
class Promotion:
    """What a promotion did.

    Attributes:
        dataset: The dataset of the model.
        version: The version that serves now.
        previous: The version that served before; None for the first.
        moved: False when ``version`` served already.
        conditions: Everything that was checked; empty when it served already.
        overridden: The names of the conditions that did not hold and were forced.
    """

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
    """Move ``champion`` to a version that meets the conditions.

    The version that served before is tagged as superseded. The alias moves last: a call that was
    cut short leaves it where it was, and the same call completes it.

    Args:
        workspace: The project.
        dataset: The dataset of the model.
        version_or_alias: The version that is to serve.
        force: A reason for moving ``champion`` whether or not the conditions hold. It is written
            on the version with the time; it is not used when all conditions hold.

    Raises:
        PromotionRefusedError: A condition of
            :func:`~puma.registry.promotion_rules.check_conditions` fails or cannot be checked.
        RegistryError: There is no such version, or the reason is blank or too long.
    """
    reason = _valid_reason(force)
    client = open_store(workspace, create=False)
    with writing(workspace):
        rows = list_versions(client, dataset)
        row = choose_version(rows, dataset, version_or_alias)
        previous = next((item.version for item in rows if CHAMPION in item.aliases), None)
        if previous == row.version:
            return Promotion(dataset, row.version, previous, moved=False)
        conditions = check_conditions(_gather(client, workspace, row, rows))
        unmet = [condition for condition in conditions if condition.state != "holds"]
        if unmet and reason is None:
            raise PromotionRefusedError(_refusal(row.version, unmet), conditions)
        overridden = tuple(condition.name for condition in unmet)
        _write(client, row, previous, reason if unmet else None, conditions)
        client.set_registered_model_alias(row.name, CHAMPION, str(row.version))
    return Promotion(dataset, row.version, previous, True, conditions, overridden)


def _valid_reason(force: str | None) -> str | None:
    if force is None:
        return None
    reason = " ".join(force.split())
    if not reason or len(reason) > LONGEST_REASON:
        got = "a blank reason" if not reason else f"{len(reason)} characters"
        raise RegistryError(
            f"a forced promotion needs a reason of 1 to {LONGEST_REASON} characters, got {got}; "
            "it is written on the version for whoever asks later"
        )
    return reason


def _gather(
    client: MlflowClient,
    workspace: Workspace,
    row: RegisteredVersion,
    rows: list[RegisteredVersion],
) -> Facts:
    """Everything that the conditions depend on, from the store."""
    live = {item.version for item in rows}
    buried = tombstones(client, row.dataset).values()
    erased = [each.as_version for each in buried if each.version not in live]
    versions = sorted([*rows, *erased], key=lambda item: item.version)
    kept = {
        each.deletion_digest: workspace.archived_request(row.dataset, each.deletion_digest)
        for each in versions
        if each.deletion_digest is not None
    }
    return Facts(
        row=row,
        params=_params(client, row.run_id),
        weights=weights_or_error(row),
        certificate=check_fields(client, row),
        versions=versions,
        accept=workspace.settings.promotion.accept,
        requests={
            digest: path.relative_to(workspace.root).as_posix()
            for digest, path in kept.items()
            if path.exists()
        },
    )


def _params(client: MlflowClient, run_id: str) -> dict[str, str]:
    """The parameters of a run; none when the run is gone."""
    from mlflow.exceptions import MlflowException

    try:
        return dict(client.get_run(run_id).data.params) if run_id else {}
    except MlflowException as error:
        if is_away(error):
            raise
        return {}


def _refusal(version: int, unmet: list[Condition]) -> str:
    words = {"fails": "fails", "unknown": "cannot be checked"}
    lines = [f"  {item.name} {words[item.state]}: {item.detail}" for item in unmet]
    return (
        "\n".join([f"version {version} was not promoted:", *lines])
        + '\n  or pass --force "a reason", which is written on the version'
    )


def _note(
    row: RegisteredVersion, now: str, reason: str | None, conditions: tuple[Condition, ...]
) -> str | None:
    """What the version's page has to say of its promotion; None if its audit says all."""
    if reason is not None:
        overridden = ", ".join(each.name for each in conditions if each.state != "holds")
        return f"**Promoted by force** on {now}, past {overridden}: {reason}"
    if row.verdict not in UNSHOWN:
        return None
    (instead,) = (each.detail for each in conditions if each.name == TARGETS)
    return (
        f"**Promoted** on {now} although no audit could show that these rows are forgotten: they "
        f"are too few. Checked instead: {instead}."
    )


def _write(
    client: MlflowClient,
    row: RegisteredVersion,
    previous: int | None,
    reason: str | None,
    conditions: tuple[Condition, ...],
) -> None:
    """Everything but the alias."""
    name, version = row.name, str(row.version)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    note = _note(row, now, reason, conditions)
    if note is not None:
        page = client.get_model_version(name, version).description
        client.update_model_version(name, version, add_note(page, note))
    if reason is not None:
        client.set_model_version_tag(name, version, FORCED, reason)
    client.set_model_version_tag(name, version, PROMOTED_AT, now)
    stale = {SUPERSEDED_BY} if reason is not None else {SUPERSEDED_BY, FORCED}
    for tag in stale & row.tags.keys():
        client.delete_model_version_tag(name, version, tag)
    if previous is not None:
        client.set_model_version_tag(name, str(previous), SUPERSEDED_BY, version)
