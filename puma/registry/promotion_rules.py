"""The conditions that a version must meet before it may serve: rules on plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from puma.errors import RegistryError
from puma.registry.certificate.findings import Finding
from puma.registry.versions import (
    AUDITED_DELETION,
    AUDITED_WEIGHTS,
    CHAMPION,
    PASSED,
    VERDICT_REASON,
    WEIGHTS,
    RegisteredVersion,
)

State = Literal["holds", "fails", "unknown"]
BUDGETED = ("puma",)  # these methods promise how far the retained rows' loss may move
ROUND_OFF = 1e-6  # nats; the losses of a drift are computed in single precision
SHOWN = 8  # digits of a digest


@dataclass(frozen=True)
class Condition:
    """One condition, and whether a version meets it.

    Attributes:
        name: As `puma promote` prints it.
        state: "unknown" when it cannot be checked.
        detail: The numbers, and what to do unless it holds.
    """

    name: str
    state: State
    detail: str


@dataclass(frozen=True)
class Facts:
    """Everything that the conditions depend on.

    Attributes:
        row: The version that is to serve.
        params: The parameters of its run; empty when the run is gone.
        weights: The digest of the weights in its registered model, or why that cannot be loaded.
        certificate: The findings of :func:`~puma.registry.certificate.verify.check_fields`.
        versions: Every version of the model, erased ones included, oldest first.
    """

    row: RegisteredVersion
    params: Mapping[str, str]
    weights: str | RegistryError
    certificate: Sequence[Finding]
    versions: Sequence[RegisteredVersion]


def check_conditions(facts: Facts) -> tuple[Condition, ...]:
    """Check whether a version may serve.

    The conditions, by name:

    - audit: The verdict on a removal is ``passed``. An original removed nobody: its audit is
      about later requests, which the last condition covers.
    - budget: The retained rows' mean loss moved by no more than the method's budget. A method
      without a budget (retraining, SISA, Amnesiac ML) promises nothing of that loss; the
      verdict's limits on accuracy bound what it costs.
    - subject: The audit is about the weights in the registered model and about the request that
      the version answers. The weights of an original are those that were registered.
    - certificate: It agrees with the registry, so nobody edited any of the above since.
    - requests: The version knows nobody whom another version has removed.
    """
    row = facts.row
    if not row.method:
        detail = (
            f"version {row.version} was not registered by PUMA, so nothing says whose rows it was "
            "trained on; promote one that `puma versions` lists with a method"
        )
        return (Condition("registered by PUMA", "unknown", detail),)
    return (
        _audit(row),
        _budget(row, facts.params),
        _subject(row, facts.weights),
        _certificate(facts.certificate),
        _requests(row, facts.versions),
    )


def _audit(row: RegisteredVersion) -> Condition:
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
            f"({row.tags.get(VERDICT_REASON, 'no reason given')}); promote a version that passed, "
            "or change the settings and run `dvc repro`",
        )
    return Condition("audit", "holds", f"the verdict is {PASSED}")


def _budget(row: RegisteredVersion, params: Mapping[str, str]) -> Condition:
    drift = row.metrics.get("criterion_drift")
    budget = _number(params.get("budget"))
    if budget is None and row.method not in BUDGETED:
        moved = "" if drift is None else f" (the retained loss moved by {drift:+.2g} nats)"
        return Condition("budget", "holds", f"{row.method} was given none{moved}")
    if budget is None or drift is None:
        missing = "budget" if budget is None else "criterion_drift"
        return Condition(
            "budget",
            "unknown",
            f"the run of version {row.version} has no {missing}; run `dvc repro -f` to remove "
            "and register again",
        )
    detail = f"the retained rows' mean loss moved by {drift:+.4g} nats, of {budget:.4g} allowed"
    if abs(drift) <= budget + ROUND_OFF:
        return Condition("budget", "holds", detail)
    return Condition(
        "budget",
        "fails",
        f"{detail}; raise puma.criterion_sample or lower puma.budget, and run `dvc repro`",
    )


def _number(text: str | None) -> float | None:
    """The number in a parameter; None when it is absent or was edited into something else."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _subject(row: RegisteredVersion, weights: str | RegistryError) -> Condition:
    tags, original = row.tags, row.deletion_digest is None
    stated = tags.get(WEIGHTS if original else AUDITED_WEIGHTS)
    if stated is None or (not original and AUDITED_DELETION not in tags):
        return Condition(
            "subject",
            "unknown",
            f"version {row.version} does not say which weights were audited (it was registered "
            "by an earlier PUMA); run `dvc repro`, which adds that",
        )
    if not original and tags[AUDITED_DELETION] != row.deletion_digest:
        return Condition(
            "subject",
            "fails",
            f"the audit is about request {tags[AUDITED_DELETION][:SHOWN]}…, and version "
            f"{row.version} answers {str(row.deletion_digest)[:SHOWN]}…; run `dvc repro` to "
            "audit it for its own",
        )
    if isinstance(weights, RegistryError):
        return Condition("subject", "unknown", str(weights))
    if weights != stated:
        what = "that were registered" if original else "that were audited"
        return Condition(
            "subject",
            "fails",
            f"the registered model has weights {weights[:SHOWN]}…, not {stated[:SHOWN]}… {what}: "
            "its files were changed; restore mlruns/ from a backup, or register it again in a new "
            "store",
        )
    return Condition("subject", "holds", f"weights {weights[:SHOWN]}…, as registered")


def _certificate(findings: Sequence[Finding]) -> Condition:
    for finding in findings:
        if finding.state == "fails":
            detail = f"{finding.field}: {finding.detail}; see `puma verify`"
            return Condition("certificate", "fails", detail)
        if finding.state == "unknown":
            return Condition("certificate", "unknown", f"{finding.detail}; see `puma verify`")
    return Condition("certificate", "holds", "it agrees with the registry")


def _requests(row: RegisteredVersion, versions: Sequence[RegisteredVersion]) -> Condition:
    """Whether the version knows people whom another version has removed.

    Digests do not show who is in a request, so only what they rule out is judged:

    - A removal for another request that was registered later, or, if this is an original, at any
      time from the same data: it removed people whom this version has seen.
    - A removal for another request that has served and is as large as this one's or larger: this
      request cannot contain it. (A request names everybody who was ever to be removed.)

    A version knows none of the people whom one of its ancestors removed. An original that was
    trained later on other data is taken to be without them.
    """
    ancestors = _ancestors(row, versions)
    for other in reversed(versions):
        if (
            other.deletion_digest in (None, row.deletion_digest)
            or other.version == row.version
            or other.version in ancestors
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
        served = other.promoted_at is not None or CHAMPION in other.aliases
        if served and same_data and row.n_removed <= other.n_removed:
            return Condition(
                "requests",
                "fails",
                f"{name}, which has served, removed {other.n_removed} rows for request {digest}…; "
                f"version {row.version} removed {row.n_removed} for another request, which cannot "
                "contain them all: some people would come back; put everybody into one request "
                "and run `dvc repro`",
            )
    return Condition("requests", "holds", "no other version is known to have removed more people")


def _ancestors(row: RegisteredVersion, versions: Sequence[RegisteredVersion]) -> set[int]:
    parents = {item.version: item.parent_version for item in versions}
    found: set[int] = set()
    parent = row.parent_version
    while parent is not None and parent not in found:
        found.add(parent)
        parent = parents.get(parent)
    return found
