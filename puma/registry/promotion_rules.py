"""The conditions that a version must meet before it may serve: rules on plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from puma.errors import RegistryError
from puma.html_table import counted
from puma.lineage.records import RETRAIN
from puma.registry.certificate.findings import Finding
from puma.registry.connection import RESTORE
from puma.registry.preserved import ROUND_OFF, preserved_of
from puma.registry.versions import (
    AUDITED_DELETION,
    AUDITED_WEIGHTS,
    BOUND,
    CHAMPION,
    VERDICT_REASON,
    WEIGHTS,
    RegisteredVersion,
)
from puma.removal import METHODS
from puma.settings import ORIGINAL, original_of

State = Literal["holds", "fails", "unknown"]
TARGETS = "target margins"
# Nothing was found, and nothing could have been found; the second is an earlier PUMA's word.
UNSHOWN = ("indistinguishable", "inconclusive")
BUDGETED = ("puma",)  # these methods promise how far the retained rows' loss may move
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
        accept: The verdicts that params.yaml accepts.
        requests: Deletion digest -> path of the request, of those that the project keeps.
    """

    row: RegisteredVersion
    params: Mapping[str, str]
    weights: str | RegistryError
    certificate: Sequence[Finding]
    versions: Sequence[RegisteredVersion]
    accept: Sequence[str]
    requests: Mapping[str, str]


def check_conditions(facts: Facts) -> tuple[Condition, ...]:
    """Check whether a version may serve.

    The conditions, by name:

    - audit: The verdict on a removal is one that ``promotion.accept`` names. An original removed
      nobody: its audit is about later requests, which the last condition covers.
    - target margins: Where the audit could show nothing (``indistinguishable``), something else
      shows that the rows are forgotten: the method never saw them (retraining, SISA), or it took
      them to their target margins. Other methods reach an unknown place.
    - budget: The retained rows' mean loss moved by no more than the method's budget, and so did
      every other criterion that ``puma.preserve`` lists, each by its own. A method
      without a budget (retraining, SISA, Amnesiac ML) promises nothing of that loss; the
      verdict's limits on accuracy bound what it costs.
    - subject: The audit is about the weights in the registered model and about the request that
      the version answers. The weights of an original are those that were registered.
    - certificate: It agrees with the registry, so nobody edited any of the above since.
    - requests: The version brings nobody back whom a version that serves or has served removed.

    Whatever fails, the detail names the command by which a version that may serve is made.
    """
    row = facts.row
    if not row.method:
        detail = (
            f"version {row.version} was not registered by PUMA, so nothing says whose rows it was "
            f"trained on; promote one that `puma versions {row.dataset}` lists with a method"
        )
        return (Condition("registered by PUMA", "unknown", detail),)
    return (
        _audit(facts),
        _target_margins(facts),
        _budget(facts),
        _subject(facts),
        _certificate(row, facts.certificate),
        _requests(facts),
    )


def _audit(facts: Facts) -> Condition:
    row = facts.row
    if row.deletion_digest is None:
        return Condition("audit", "holds", "an original removed nobody: nothing to prove")
    if row.verdict is None:
        return Condition(
            "audit", "unknown", f"version {row.version} was never audited; run `dvc repro`"
        )
    if row.verdict not in facts.accept:
        return Condition(
            "audit",
            "fails",
            f"the verdict on version {row.version} is {row.verdict}, not "
            f"{' or '.join(facts.accept)} "
            f"({row.tags.get(VERDICT_REASON, 'no reason given')}){_bound(row)}; {_way_out(facts)}",
        )
    if row.verdict in UNSHOWN:
        detail = (
            f"the verdict is {row.verdict}: so few rows that no audit could show whether they are "
            "forgotten"
        )
        return Condition("audit", "holds", detail)
    return Condition("audit", "holds", f"the verdict is {row.verdict}")


def _target_margins(facts: Facts) -> Condition:
    """Whether something other than the audit shows that the rows are forgotten, where it has to."""
    row = facts.row
    if row.deletion_digest is None or row.verdict not in {*UNSHOWN} & {*facts.accept}:
        return Condition(TARGETS, "holds", "asked only where the audit could show nothing")
    if _is_exact(row):
        return Condition(
            TARGETS, "holds", f"{row.method} never saw the removed rows: none to reach"
        )
    distance = row.metrics.get("level_distance")
    tolerance = _number(facts.params.get("level_tolerance"))
    if distance is None or tolerance is None:
        return Condition(
            TARGETS,
            "fails",
            f"{row.method} of version {row.version} took the rows to no target margins, so that "
            f"nothing shows that they are forgotten; {_way_out(facts)}",
        )
    detail = (
        f"the removed rows are {distance:.2g} logits from their target margins on average, of "
        f"{tolerance:.2g} allowed"
    )
    if distance <= tolerance:
        return Condition(TARGETS, "holds", detail)
    if row.metrics.get("level_missed") == 0:
        return Condition(
            TARGETS, "holds", f"{detail}, but not above them by more than that: none is still known"
        )
    return Condition(TARGETS, "fails", f"{detail}{_bound(row)}; {_way_out(facts)}")


def _bound(row: RegisteredVersion) -> str:
    """Which budgets of puma.preserve kept the rows from their targets, for a message."""
    if BOUND not in row.tags:
        return ""
    titles = row.tags[BOUND].replace(" ", " and ")
    return f"; the budget of {titles} kept the rows from their targets, and may be raised"


def _is_exact(row: RegisteredVersion) -> bool:
    return row.method in METHODS and METHODS[row.method].exact


def _is_plain(row: RegisteredVersion) -> bool:
    """Whether ``puma remove`` can remove from it; what was erased has no time of creation."""
    return bool(row.created and row.method) and original_of(row.method) == ORIGINAL


def _way_out(facts: Facts) -> str:
    """How to get a version without the people of this one that may serve.

    Retraining never saw them, and from the version that serves, nobody comes back.
    """
    row = facts.row
    same = [each for each in facts.versions if each.deletion_digest == row.deletion_digest]
    for other in reversed([each for each in same if each.version != row.version]):
        if CHAMPION in other.aliases:
            return f"version {other.version}, which serves, was made for the same request"
        if (
            _is_exact(other)
            and other.verdict in facts.accept
            and not any(_has_served(each) for each in _not_known_to_lack(other, facts.versions))
        ):
            return (
                f"version {other.version} ({other.method}) was made for the same request: "
                f"`puma promote {row.dataset} {other.version}`"
            )
    bases = [each for each in facts.versions if _is_plain(each) and _same_data(each, row)]
    serving = [each for each in bases if CHAMPION in each.aliases]
    originals = [each for each in bases if each.method == ORIGINAL]
    chosen = [*originals, *serving]
    if not chosen:
        return "nothing is registered to retrain from; run `dvc repro`"
    command = _removal(facts, chosen[-1], row)
    if row.method == RETRAIN or any(
        each.method == RETRAIN and each.verdict not in facts.accept for each in same
    ):
        # The same command again would find that one.
        seeds = [int(each.tags.get("puma.seed", 0)) for each in facts.versions]
        return f"train it once more, with another seed: {command[:-1]} --seed {max(seeds) + 1}`"
    return f"retrain without these people: {command}"


def _removal(facts: Facts, base: RegisteredVersion, people_of: RegisteredVersion) -> str:
    """The command that retrains ``base`` without the people whom another version removed."""
    file = facts.requests.get(str(people_of.deletion_digest))
    command = (
        f"`puma remove --model models:/{base.name}/{base.version} --deletions {file or 'FILE'} "
        f"--method {RETRAIN}`"
    )
    if file is None:
        return f"(FILE: the request of version {people_of.version}) {command}"
    return command


def _budget(facts: Facts) -> Condition:
    row, params = facts.row, facts.params
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
    try:
        kept = preserved_of(params, row.metrics)
    except ValueError as error:
        detail = f"{error}; run `dvc repro -f` to remove and register again"
        return Condition("budget", "unknown", detail)
    detail = f"the retained rows' mean loss moved by {drift:+.4g} nats, of {budget:.4g} allowed"
    lower = [] if abs(drift) <= budget + ROUND_OFF else ["puma.budget"]
    for each in kept:
        detail += f"; {each.title} by {each.drift:+.4g}, of {each.budget:.4g} allowed"
        if not each.holds:
            lower.append(f"the budget of {each.title} in puma.preserve")
    if not lower:
        return Condition("budget", "holds", detail)
    return Condition(
        "budget",
        "fails",
        f"{detail}; {_way_out(facts)}; or raise puma.criterion_sample or lower "
        f"{' and '.join(lower)}, and run `dvc repro`",
    )


def _number(text: str | None) -> float | None:
    """The number in a parameter; None when it is absent or was edited into something else."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _subject(facts: Facts) -> Condition:
    row, weights = facts.row, facts.weights
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
    way = "" if original else f". Another way: {_way_out(facts)}"
    if isinstance(weights, RegistryError):
        return Condition("subject", "unknown", f"{weights}{way}")
    if weights != stated:
        what = "that were registered" if original else "that were audited"
        return Condition(
            "subject",
            "fails",
            f"the registered model has weights {weights[:SHOWN]}…, not {stated[:SHOWN]}… {what}: "
            f"its files were changed; {RESTORE}{way}",
        )
    return Condition("subject", "holds", f"weights {weights[:SHOWN]}…, as registered")


def _certificate(row: RegisteredVersion, findings: Sequence[Finding]) -> Condition:
    see = f"see `puma verify {row.dataset} {row.version}`"
    for finding in findings:
        if finding.state == "fails":
            detail = f"{finding.field}: {finding.detail}; {see}"
            return Condition("certificate", "fails", detail)
        if finding.state == "unknown":
            return Condition("certificate", "unknown", f"{finding.detail}; {see}")
    return Condition("certificate", "holds", "it agrees with the registry")


def _requests(facts: Facts) -> Condition:
    """Whether people would come back whom a version that serves or has served removed.

    A promotion may not undo a deletion that took effect, and one takes effect when its version
    serves. A removal that never served, perhaps because it never passed, binds nobody: the
    people of its request are known to the version that serves now, too, so that promoting
    another one loses nothing. The detail says that they are still to be removed.

    Digests do not show who is in a request. A version is known to be without the people of
    another one's request if it, or a version that it was made from, was made for the same
    request. It is taken to be without them if it was registered later and

    - it removed more rows from the same data (a request names everybody who was ever to be
      removed), or
    - its original was trained later, on other data.
    """
    row = facts.row
    others = _not_known_to_lack(row, facts.versions)
    served = [each for each in others if _has_served(each)]
    if served:
        other = served[-1]
        return Condition(
            "requests",
            "fails",
            f"version {other.version} ({other.method}), which "
            f"{'serves' if CHAMPION in other.aliases else 'has served'}, removed "
            f"{counted(other.n_removed, 'row')} for request {_short(other)}, and version "
            f"{row.version} is not known to be without these people: they would come back; "
            f"{_together(facts, other)}",
        )
    if not others:
        return Condition(
            "requests", "holds", "no other version is known to have removed more people"
        )
    newest = {each.deletion_digest: each for each in others}
    notes = [
        f"version {each.version} ({each.method}) removed {counted(each.n_removed, 'row')} for "
        f"request {_short(each)} and never served; version {row.version} is not known to be "
        f"without these people: if they are to be deleted, {_together(facts, each, next_step=True)}"
        for each in newest.values()
    ]
    return Condition("requests", "holds", "; ".join(["nobody comes back", *notes]))


def _together(facts: Facts, other: RegisteredVersion, *, next_step: bool = False) -> str:
    """How to make one version without the people of this version and those of ``other``.

    From this version if that is to serve meanwhile (``next_step``), else from ``other``.
    """
    row = facts.row
    if other.method == RETRAIN and other.created and other.parent_version == row.version:
        # The command below would find that one.
        if CHAMPION in other.aliases:
            return f"version {other.version} was made from this one without them; let it serve on"
        return f"let that one serve: `puma promote {other.dataset} {other.version}`"
    pairs = [(row, other), (other, row)] if next_step else [(other, row), (row, other)]
    for base, people_of in pairs:
        if _is_plain(base) and _same_data(row, other) and people_of.deletion_digest is not None:
            return f"make one version without all of them: {_removal(facts, base, people_of)}"
    return "put everybody into one request and run `dvc repro`"


def _not_known_to_lack(
    row: RegisteredVersion, versions: Sequence[RegisteredVersion]
) -> list[RegisteredVersion]:
    """The versions, oldest first, whose request may name people whom ``row`` still knows."""
    line = [each for each in versions if each.version in {row.version, *_ancestors(row, versions)}]
    lacked = {each.deletion_digest for each in line} | {row.deletion_digest, None}
    first = min((each.version for each in line), default=row.version)
    return [
        other
        for other in versions
        if other.deletion_digest not in lacked
        and not (
            row.n_removed > other.n_removed and other.version < row.version
            if _same_data(row, other)
            else other.version < first
        )
    ]


def _has_served(row: RegisteredVersion) -> bool:
    return row.promoted_at is not None or CHAMPION in row.aliases


def _same_data(row: RegisteredVersion, other: RegisteredVersion) -> bool:
    return row.data_digest == other.data_digest


def _short(row: RegisteredVersion) -> str:
    return f"{str(row.deletion_digest)[:SHOWN]}…"


def _ancestors(row: RegisteredVersion, versions: Sequence[RegisteredVersion]) -> set[int]:
    parents = {item.version: item.parent_version for item in versions}
    found: set[int] = set()
    parent = row.parent_version
    while parent is not None and parent not in found:
        found.add(parent)
        parent = parents.get(parent)
    return found
