"""What a version has to show before it may serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from puma.errors import RegistryError
from puma.registry.certificate.verify import check_fields
from puma.registry.loading import registered_weights
from puma.registry.store_errors import is_away
from puma.registry.tombstones import tombstones
from puma.registry.versions import (
    AUDITED_DELETION,
    AUDITED_WEIGHTS,
    PASSED,
    VERDICT_REASON,
    WEIGHTS,
    RegisteredVersion,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

State = Literal["holds", "fails", "unknown"]
BUDGETED = ("puma",)  # these promise how far the retained rows' loss may move
ROUND_OFF = 1e-6  # nats; the losses of a drift are computed in single precision
SHOWN = 8  # digits of a digest


@dataclass(frozen=True)
class Condition:
    """One thing that was looked at; ``detail`` has the numbers, and what to do where it fails."""

    name: str
    state: State
    detail: str


def examine(
    client: MlflowClient,
    dataset: str,
    found: ModelVersion,
    row: RegisteredVersion,
    rows: list[RegisteredVersion],
) -> tuple[Condition, ...]:
    """Whether ``row``, of all ``rows`` of the model of ``dataset``, may serve.

    audit: the verdict of a removal is ``passed``. An original removed nobody, so that there is
        nothing to prove; what could speak against it is the last condition.
    budget: the retained rows' mean loss moved by no more than the method was allowed. A method
        that was given no budget (retraining, SISA, Amnesiac ML) promises nothing of that loss;
        its usefulness is what the verdict's limits on accuracy bound.
    subject: the audit is about the weights that the registered model has, and about the request
        that the version answers. Of an original, its weights are those that were registered.
    certificate: it agrees with the registry, so that nothing of the above was edited since.
    requests: nobody comes back. See :func:`_requests`.
    """
    if not row.method:
        detail = (
            f"version {row.version} was not registered by PUMA, so that nothing says what it "
            "knows; promote one that `puma versions` lists with a method"
        )
        return (Condition("registered by PUMA", "unknown", detail),)
    return (
        _audit(row, found.tags),
        _budget(client, row),
        _subject(found, row),
        _certificate(client, dataset, found),
        _requests(row, _with_erased(client, dataset, rows)),
    )


def _audit(row: RegisteredVersion, tags: dict[str, str]) -> Condition:
    if row.deletion_digest is None:
        return Condition("audit", "holds", "an original removed nobody: nothing to prove")
    if row.verdict is None:
        return Condition(
            "audit", "unknown", f"version {row.version} was never audited; run `dvc repro`"
        )
    if not row.passed:
        return Condition(
            "audit",
            "fails",
            f"the verdict on version {row.version} is {row.verdict}, not {PASSED} "
            f"({tags.get(VERDICT_REASON, 'no reason given')}); promote a version that passed, or "
            "change the settings and run `dvc repro`",
        )
    return Condition("audit", "holds", f"the verdict is {PASSED}")


def _budget(client: MlflowClient, row: RegisteredVersion) -> Condition:
    drift = row.metrics.get("criterion_drift")
    stated = _budget_of(client, row)
    if stated is None and row.method not in BUDGETED:
        moved = "" if drift is None else f" (the retained loss moved by {drift:+.2g} nats)"
        return Condition("budget", "holds", f"{row.method} was given none{moved}")
    if stated is None or drift is None:
        missing = "budget" if stated is None else "criterion_drift"
        return Condition(
            "budget",
            "unknown",
            f"the run of version {row.version} has no {missing}; run `dvc repro -f` to remove "
            "and register again",
        )
    within = abs(drift) <= stated + ROUND_OFF
    detail = f"the retained rows' mean loss moved by {drift:+.4g} nats, of {stated:.4g} allowed"
    if within:
        return Condition("budget", "holds", detail)
    return Condition(
        "budget",
        "fails",
        f"{detail}; raise puma.criterion_sample or lower puma.budget, and run `dvc repro`",
    )


def _budget_of(client: MlflowClient, row: RegisteredVersion) -> float | None:
    """What its removal was run with; None where it was given none, or it cannot be read."""
    from mlflow.exceptions import MlflowException

    try:
        params = client.get_run(row.run_id).data.params if row.run_id else {}
        return float(params["budget"])
    except (MlflowException, KeyError, ValueError) as error:
        if is_away(error):
            raise
        return None


def _subject(found: ModelVersion, row: RegisteredVersion) -> Condition:
    tags, original = found.tags, row.deletion_digest is None
    stated = tags.get(WEIGHTS if original else AUDITED_WEIGHTS)
    if stated is None or (not original and AUDITED_DELETION not in tags):
        return Condition(
            "subject",
            "unknown",
            f"version {row.version} does not say which weights were audited (it was registered "
            "by an earlier PUMA); run `dvc repro`, which writes it down",
        )
    if not original and tags[AUDITED_DELETION] != row.deletion_digest:
        return Condition(
            "subject",
            "fails",
            f"the audit is about request {tags[AUDITED_DELETION][:SHOWN]}…, and version "
            f"{row.version} answers {str(row.deletion_digest)[:SHOWN]}…; run `dvc repro` to "
            "audit it for its own",
        )
    try:
        held = registered_weights(found)
    except RegistryError as error:
        return Condition("subject", "unknown", str(error))
    if held != stated:
        what = "that were registered" if original else "that were audited"
        return Condition(
            "subject",
            "fails",
            f"the registered model has weights {held[:SHOWN]}…, not {stated[:SHOWN]}… {what}: its "
            "files were changed; restore mlruns/ from a backup, or register it again in a new "
            "store",
        )
    return Condition("subject", "holds", f"weights {held[:SHOWN]}…, as registered")


def _certificate(client: MlflowClient, dataset: str, found: ModelVersion) -> Condition:
    for finding in check_fields(client, dataset, found):
        if finding.state in ("fails", "unknown"):
            state: State = "fails" if finding.state == "fails" else "unknown"
            detail = finding.detail if state == "unknown" else f"{finding.field}: {finding.detail}"
            return Condition("certificate", state, f"{detail}; see `puma verify`")
    return Condition("certificate", "holds", "it agrees with the registry")


def _with_erased(
    client: MlflowClient, dataset: str, rows: list[RegisteredVersion]
) -> list[RegisteredVersion]:
    """An erased version tells no less of who was removed."""
    erased = [stone.row for stone in tombstones(client, dataset).values()]
    live = {row.version for row in rows}
    return sorted(
        [*rows, *(row for row in erased if row.version not in live)], key=lambda row: row.version
    )


def _requests(row: RegisteredVersion, rows: list[RegisteredVersion]) -> Condition:
    """Whether the version is sure to know people whom another version has forgotten.

    Digests do not tell who is in a request, so that it is judged by what they rule out:

    - A removal for another request that was registered later, or, if this is an original, at any
      time from the same data: it removed people whom this version has seen.
    - A removal for another request that has served, as large as this one's or larger: this one
      cannot contain it. (A request is to name everybody who was ever to be removed.)

    A version that was made from the other one, at whatever remove, knows none of its people.
    An original trained later on other data is taken to be without them.
    """
    lineage = _ancestors(row, rows)
    for other in reversed(rows):
        if (
            other.deletion_digest in (None, row.deletion_digest)
            or other.version == row.version
            or other.version in lineage
        ):
            continue
        same_data = other.data_digest == row.data_digest
        name = f"version {other.version} ({other.method})"
        digest = str(other.deletion_digest)[:SHOWN]
        if other.version > row.version or (row.deletion_digest is None and same_data):
            return Condition(
                "requests",
                "fails",
                f"{name} removed {other.n_removed} rows for another request, {digest}…, and "
                f"version {row.version} was not made for it: it still knows these people; promote "
                "a version that removed them",
            )
        served = other.promoted_at is not None or "champion" in other.aliases
        if served and same_data and row.n_removed <= other.n_removed:
            return Condition(
                "requests",
                "fails",
                f"{name}, which has served, removed {other.n_removed} rows for request {digest}…; "
                f"version {row.version} removed {row.n_removed} for another request, which cannot "
                "hold them all: some people would come back; put everybody into one request and "
                "run `dvc repro`",
            )
    return Condition("requests", "holds", "no other version is known to have forgotten more people")


def _ancestors(row: RegisteredVersion, rows: list[RegisteredVersion]) -> set[int]:
    parents = {item.version: item.parent_version for item in rows}
    found: set[int] = set()
    parent = row.parent_version
    while parent is not None and parent not in found:
        found.add(parent)
        parent = parents.get(parent)
    return found
