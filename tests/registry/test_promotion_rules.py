"""Which version may serve: every condition, on plain values."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from puma.errors import RegistryError
from puma.registry.certificate.findings import Finding, differs
from puma.registry.promotion import PromotionRefusedError
from puma.registry.promotion_rules import Facts, check_conditions
from puma.registry.versions import RegisteredVersion

REQUEST, OTHER = "e1" * 32, "e2" * 32
WEIGHTS = {1: "a1" * 32, 2: "a2" * 32, 3: "a3" * 32}
AUDIT = {"puma.audited_deletion": REQUEST, "puma.verdict_reason": "like retraining"}
HOLDS = (Finding("certificate", "holds", "every field agrees with the registry"),)


def version(number: int, method: str, **values: Any) -> RegisteredVersion:
    original = method == "original"
    known = {
        "dataset": "toy",
        "version": number,
        "aliases": (),
        "method": method,
        "parent_version": None if original else 1,
        "n_removed": 0 if original else 3,
        "deletion_digest": None if original else REQUEST,
        "verdict": "forgetting_incomplete" if original else "passed",
        "metrics": {},
        "data_digest": "d" * 64,
        "fingerprint": "f" * 64,
        "run_id": "run",
        "created": "2026-01-01T00:00:00+00:00",
    }
    return RegisteredVersion(**{**known, **values})


ORIGINAL = version(1, "original", tags={"puma.weights_digest": WEIGHTS[1]})
RETRAIN = version(
    2,
    "retrain",
    metrics={"criterion_drift": 0.0625},
    tags={**AUDIT, "puma.audited_weights": WEIGHTS[2]},
)
PUMA = version(
    3,
    "puma",
    metrics={"criterion_drift": -0.0025},
    tags={**AUDIT, "puma.audited_weights": WEIGHTS[3]},
)
SERVES = {"promoted_at": "2026-01-02T00:00:00+00:00"}


def facts(row: RegisteredVersion, *others: RegisteredVersion, **values: Any) -> Facts:
    known: dict[str, Any] = {
        "row": row,
        "params": {"budget": "0.01"} if row.method == "puma" else {},
        "weights": row.tags.get("puma.audited_weights", row.tags.get("puma.weights_digest", "")),
        "certificate": HOLDS,
        "versions": sorted([row, *others], key=lambda each: each.version),
        "accept": ("passed", "indistinguishable"),
        "requests": {REQUEST: "requests/one.csv", OTHER: "requests/other.csv"},
    }
    return Facts(**{**known, **values})


def unmet(checked: Facts) -> dict[str, tuple[str, str]]:
    """Name -> state and detail of every condition that does not hold."""
    conditions = check_conditions(checked)
    return {one.name: (one.state, one.detail) for one in conditions if one.state != "holds"}


def without(row: RegisteredVersion, *names: str) -> RegisteredVersion:
    return replace(row, tags={tag: text for tag, text in row.tags.items() if tag not in names})


@pytest.mark.parametrize("row", [RETRAIN, PUMA])
def test_a_removal_that_passed_may_serve(row: RegisteredVersion) -> None:
    others = [each for each in (ORIGINAL, RETRAIN, PUMA) if each is not row]
    conditions = check_conditions(facts(row, *others))
    assert [one.name for one in conditions] == [
        *("audit", "target margins", "budget", "subject", "certificate", "requests")
    ]
    assert {one.state for one in conditions} == {"holds"}


def test_an_original_may_serve_while_nobody_was_removed() -> None:
    """Its verdict, that it remembers everybody, is none of a removal."""
    assert unmet(facts(ORIGINAL)) == {}


def test_a_version_that_puma_did_not_register_cannot_be_checked() -> None:
    (condition,) = check_conditions(facts(version(3, "")))
    assert (condition.name, condition.state) == ("registered by PUMA", "unknown")
    assert "version 3 was not registered by PUMA" in condition.detail
    assert "promote one that `puma versions toy` lists with a method" in condition.detail


# --- audit ---


STUCK = ["forgetting_incomplete", "over_forgotten", "utility_lost", "inconclusive"]


@pytest.mark.parametrize("verdict", STUCK)
def test_any_other_verdict_fails(verdict: str) -> None:
    tags = {**PUMA.tags, "puma.verdict_reason": "0.93 of what it was"}
    found = unmet(facts(replace(PUMA, verdict=verdict, tags=tags), ORIGINAL))
    assert found.keys() == {"audit"}
    assert found["audit"][0] == "fails"
    detail = found["audit"][1]
    assert f"is {verdict}, not passed or indistinguishable (0.93 of what it was); " in detail


RETRAINED = (
    "`puma remove --model models:/puma-toy/{} --deletions requests/one.csv --method retrain{}`"
)


@pytest.mark.parametrize("verdict", STUCK)
def test_a_verdict_that_is_not_accepted_names_the_way_out(verdict: str) -> None:
    row = replace(PUMA, verdict=verdict)

    def way_out(row: RegisteredVersion, *others: RegisteredVersion, **values: Any) -> str:
        return unmet(facts(row, *others, **values))["audit"][1].split("); ", 1)[1]

    # The version retrained for the same request, if it may serve.
    assert way_out(row, ORIGINAL, RETRAIN) == (
        "version 2 (retrain) was made for the same request: `puma promote toy 2`"
    )
    # Else one is made: from the version that serves, so that nobody comes back.
    champion = replace(answer(4, 2), aliases=("champion",))
    assert way_out(row, ORIGINAL) == f"retrain without these people: {RETRAINED.format(1, '')}"
    assert way_out(row, ORIGINAL, champion).endswith(RETRAINED.format(4, ""))
    assert "retrain without" in way_out(row, ORIGINAL, RETRAIN, champion)
    sisa = replace(champion, method="sisa")
    assert way_out(row, ORIGINAL, sisa).endswith(RETRAINED.format(1, ""))
    # One that failed, too, is not found again.
    failed = replace(RETRAIN, verdict=verdict, tags={**RETRAIN.tags, "puma.seed": "6"})
    again = f"train it once more, with another seed: {RETRAINED.format(1, ' --seed 7')}"
    assert way_out(row, ORIGINAL, failed) == way_out(failed, ORIGINAL, row) == again
    # What cannot be named is said.
    assert "(FILE: the request of version 3) `puma remove" in way_out(row, ORIGINAL, requests={})
    assert way_out(row).endswith("run `dvc repro`")
    served = replace(RETRAIN, aliases=("champion",))
    assert way_out(row, served) == "version 2, which serves, was made for the same request"


def test_params_says_which_verdicts_are_accepted() -> None:
    row = replace(PUMA, verdict="utility_lost")
    assert unmet(facts(row, ORIGINAL, accept=("passed", "utility_lost"))) == {}
    row = replace(RETRAIN, verdict="indistinguishable")
    assert unmet(facts(row, ORIGINAL, accept=("passed",))).keys() == {"audit"}


# --- target margins ---

TOLERANCE = {"budget": "0.01", "level_tolerance": "0.5"}


def untold(distance: float | None = None, missed: float = 0.0) -> RegisteredVersion:
    """PUMA's removal of so few rows that its audit could show nothing."""
    levels = {} if distance is None else {"level_distance": distance, "level_missed": missed}
    return replace(PUMA, verdict="indistinguishable", metrics={**PUMA.metrics, **levels})


@pytest.mark.parametrize(
    ("distance", "missed", "holds"),
    [(0.5, 0.0, True), (0.75, 0.0, True), (0.75, 1.0, False)],
)
def test_where_nothing_could_be_shown_the_target_margins_decide(
    distance: float, missed: float, holds: bool
) -> None:
    found = unmet(facts(untold(distance, missed), ORIGINAL, params=TOLERANCE))
    assert found.keys() == (set() if holds else {"target margins"})
    if not holds:
        state, detail = found["target margins"]
        assert state == "fails"
        assert "are 0.75 logits from their target margins on average, of 0.5 allowed" in detail
        assert detail.endswith(RETRAINED.format(1, ""))


@pytest.mark.parametrize("method", ["retrain", "sisa"])
def test_a_method_that_never_saw_the_rows_has_no_margins_to_reach(method: str) -> None:
    row = replace(RETRAIN, method=method, verdict="indistinguishable")
    assert unmet(facts(row, ORIGINAL)) == {}


@pytest.mark.parametrize("method", ["amnesiac", "puma_paper", "puma", "another"])
def test_a_method_without_target_margins_ends_nobody_knows_where(method: str) -> None:
    row = replace(untold(), method=method)
    found = unmet(facts(row, ORIGINAL, params=TOLERANCE))
    assert found.keys() == {"target margins"}
    assert found["target margins"][0] == "fails"
    assert "nothing shows that they are forgotten" in found["target margins"][1]
    assert found["target margins"][1].endswith(RETRAINED.format(1, ""))


def test_the_budget_binds_as_ever() -> None:
    row = replace(untold(0.1), metrics={"level_distance": 0.1, "criterion_drift": 0.02})
    assert unmet(facts(row, ORIGINAL, params=TOLERANCE)).keys() == {"budget"}


# --- not audited ---


def test_a_removal_without_a_verdict_cannot_be_checked() -> None:
    found = unmet(facts(replace(PUMA, verdict=None)))
    assert found == {"audit": ("unknown", "version 3 was never audited; run `dvc repro`")}


# --- budget ---


@pytest.mark.parametrize(
    ("drift", "fails"),
    [(0.01, False), (-0.01, False), (0.010002, True), (-0.010002, True), (0.5, True)],
)
def test_a_drift_beyond_the_budget_fails(drift: float, fails: bool) -> None:
    found = unmet(facts(replace(PUMA, metrics={"criterion_drift": drift})))
    assert found.keys() == ({"budget"} if fails else set())
    if fails:
        assert found["budget"][0] == "fails"
        assert f"moved by {drift:+.4g} nats, of 0.01 allowed; " in found["budget"][1]
        assert "or raise puma.criterion_sample or lower puma.budget" in found["budget"][1]


@pytest.mark.parametrize("bound", ["soft_ece", "soft_ece old"])
def test_a_failed_audit_names_the_budgets_that_kept_the_rows_from_their_targets(bound) -> None:
    row = replace(PUMA, verdict="forgetting_incomplete", tags={**PUMA.tags, "puma.bound_by": bound})
    assert f"the budget of {bound.replace(' ', ' and ')} kept" in unmet(facts(row))["audit"][1]
    row = replace(row, verdict="indistinguishable", metrics={**row.metrics, "level_distance": 3.0})
    params = {"budget": "0.01", "level_tolerance": "0.5"}
    found = unmet(facts(row, params=params))
    assert f"the budget of {bound.replace(' ', ' and ')} kept" in found["target margins"][1]
    assert (
        "kept the rows"
        not in unmet(facts(replace(row, tags=PUMA.tags), params=params))["target margins"][1]
    )


PRESERVE = (
    '[{"criterion": "retained_loss", "budget": 0.01}, {"criterion": "soft_ece", "budget": 0.005}, '
    '{"criterion": "group_loss", "budget": 0.02, "where": "age >= 60", "name": "old"}]'
)


def kept(**drifts: float) -> dict[str, float]:
    values = {
        "criterion_drift": 0.0,
        **{f"preserved_{name}_drift": d for name, d in drifts.items()},
    }
    sides = {f"preserved_{name}_{side}": 0.5 for name in drifts for side in ("before", "after")}
    return {**values, **sides}


@pytest.mark.parametrize(
    ("drifts", "broken"),
    [
        ({"soft_ece": 0.005, "old": -0.02}, []),
        ({"soft_ece": -0.0051, "old": 0.02}, ["soft_ece"]),
        ({"soft_ece": 0.0, "old": 0.021}, ["old"]),
        ({"soft_ece": 0.4, "old": -0.3}, ["soft_ece", "old"]),
    ],
)
def test_each_preserved_criterion_has_a_budget_of_its_own(drifts, broken) -> None:
    row = replace(PUMA, metrics=kept(**drifts))
    checked = facts(row, params={"budget": "0.01", "preserve": PRESERVE})
    (budget,) = (one for one in check_conditions(checked) if one.name == "budget")
    assert budget.state == ("fails" if broken else "holds")
    assert f"; soft_ece by {drifts['soft_ece']:+.4g}, of 0.005 allowed" in budget.detail
    assert f"; old by {drifts['old']:+.4g}, of 0.02 allowed" in budget.detail
    assert "puma.budget" not in budget.detail
    for name in ("soft_ece", "old"):
        assert (f"the budget of {name} in puma.preserve" in budget.detail) == (name in broken)


@pytest.mark.parametrize(
    ("preserve", "metrics", "message"),
    [
        (
            PRESERVE,
            kept(soft_ece=0.0),
            "the run has no preserved_old_before and no preserved_old_a",
        ),
        (PRESERVE, kept(soft_ece=0.0, old=float("nan")), "the run has no preserved_old_drift"),
        ("[{]", kept(soft_ece=0.0), "the parameter preserve of the run is no list of criteria"),
        ("3", kept(soft_ece=0.0), "the parameter preserve of the run is no list of criteria"),
        ('[{"criterion": "x"}]', {"criterion_drift": 0.0}, "is no list of criteria"),
    ],
)
def test_preserved_criteria_that_were_edited_cannot_be_checked(preserve, metrics, message) -> None:
    params = {"budget": "0.01", "preserve": preserve}
    state, detail = unmet(facts(replace(PUMA, metrics=metrics), params=params))["budget"]
    assert state == "unknown"
    assert message in detail


def test_a_method_without_a_budget_is_bound_by_its_verdict_alone() -> None:
    (budget,) = (one for one in check_conditions(facts(RETRAIN)) if one.name == "budget")
    assert budget.state == "holds"
    assert budget.detail == "retrain was given none (the retained loss moved by +0.062 nats)"


@pytest.mark.parametrize(
    ("params", "metrics", "missing"),
    [
        ({}, {"criterion_drift": 0.0}, "budget"),
        ({"budget": "a lot"}, {"criterion_drift": 0.0}, "budget"),
        ({"budget": "0.01"}, {}, "criterion_drift"),
    ],
)
def test_puma_without_a_drift_or_a_budget_cannot_be_checked(
    params: dict[str, str], metrics: dict[str, float], missing: str
) -> None:
    found = unmet(facts(replace(PUMA, metrics=metrics), params=params))
    assert found.keys() == {"budget"}
    assert found["budget"][0] == "unknown"
    assert f"version 3 has no {missing}; run `dvc repro -f`" in found["budget"][1]


# --- subject ---


@pytest.mark.parametrize(("row", "what"), [(PUMA, "audited"), (ORIGINAL, "registered")])
def test_other_weights_fail(row: RegisteredVersion, what: str) -> None:
    found = unmet(facts(row, weights="bb" * 32))
    assert found.keys() == {"subject"}
    assert found["subject"][0] == "fails"
    words = f"has weights bbbbbbbb…, not {WEIGHTS[row.version][:8]}… that were {what}"
    assert words in found["subject"][1]


def test_an_audit_for_another_request_fails() -> None:
    tags = {**PUMA.tags, "puma.audited_deletion": "ab" * 32}
    found = unmet(facts(replace(PUMA, tags=tags)))
    assert found["subject"][0] == "fails"
    assert f"is about request abababab…, and version 3 answers {REQUEST[:8]}…" in str(found)


@pytest.mark.parametrize(
    ("row", "tag"),
    [
        (PUMA, "puma.audited_weights"),
        (PUMA, "puma.audited_deletion"),
        (ORIGINAL, "puma.weights_digest"),
    ],
)
def test_what_a_version_does_not_say_cannot_be_checked(row: RegisteredVersion, tag: str) -> None:
    found = unmet(facts(without(row, tag)))
    assert found.keys() == {"subject"}
    assert found["subject"][0] == "unknown"
    assert "does not say which weights were audited" in found["subject"][1]


def test_files_that_are_gone_cannot_be_checked() -> None:
    error = RegistryError("puma-toy/3 cannot be loaded (its files are gone); restore mlruns/")
    way = "version 2 (retrain) was made for the same request: `puma promote toy 2`"
    expected = ("unknown", f"{error}. Another way: {way}")
    assert unmet(facts(PUMA, ORIGINAL, RETRAIN, weights=error)) == {"subject": expected}
    assert unmet(facts(ORIGINAL, weights=error)) == {"subject": ("unknown", str(error))}


def test_a_retrained_version_with_other_weights_is_not_led_back_to_itself() -> None:
    (_, detail) = unmet(facts(RETRAIN, ORIGINAL, PUMA, weights="bb" * 32))["subject"]
    assert "puma promote toy 2" not in detail
    assert re.search(r"`puma remove .*models:/puma-toy/1 .*--method retrain --seed \d+`", detail)


# --- certificate ---


def test_a_certificate_that_does_not_hold_fails() -> None:
    wrong = differs("audit.verdict", "over_forgotten", "passed", "the registry was changed")
    found = unmet(facts(PUMA, certificate=(wrong,)))
    detail = 'audit.verdict: expected "over_forgotten", found "passed": the registry was changed'
    assert found == {"certificate": ("fails", f"{detail}; see `puma verify toy 3`")}
    absent = Finding("certificate", "unknown", "version 3 has no certificate")
    found = unmet(facts(PUMA, certificate=(absent,)))
    detail = "version 3 has no certificate; see `puma verify toy 3`"
    assert found == {"certificate": ("unknown", detail)}


# --- requests ---


def answer(number: int, n_removed: int, **values: Any) -> RegisteredVersion:
    """A removal for another request, which passed."""
    tags = {**PUMA.tags, "puma.audited_deletion": OTHER}
    named = {"version": number, "deletion_digest": OTHER, "n_removed": n_removed, "tags": tags}
    return replace(PUMA, **named, **values)


def served(row: RegisteredVersion) -> RegisteredVersion:
    return replace(row, **SERVES)


def note(checked: Facts) -> str:
    """What the condition says that holds."""
    (found,) = (one for one in check_conditions(checked) if one.name == "requests")
    assert found.state == "holds"
    return found.detail


def test_back_to_an_original_that_knows_removed_people_fails() -> None:
    found = unmet(facts(ORIGINAL, RETRAIN, served(PUMA)))
    assert found.keys() == {"requests"}
    state, detail = found["requests"]
    assert state == "fails"
    assert (
        f"version 3 (puma), which has served, removed 3 rows for request {REQUEST[:8]}…" in detail
    )
    assert "version 1 is not known to be without these people: they would come back" in detail
    assert detail.endswith(RETRAINED.format(1, ""))


@pytest.mark.parametrize(
    ("values", "way"),
    [
        (SERVES, "let that one serve: `puma promote toy 2`"),
        ({"aliases": ("champion",)}, "version 2 was made from this one without them; let it serve"),
    ],
)
def test_back_to_the_original_of_a_retrained_version_leads_to_that(
    values: dict[str, Any], way: str
) -> None:
    other = replace(RETRAIN, **values)
    assert way in unmet(facts(ORIGINAL, other))["requests"][1]


def test_an_original_trained_later_on_other_data_is_taken_to_be_without_them() -> None:
    later = replace(ORIGINAL, version=4, data_digest="c" * 64)
    assert unmet(facts(later, ORIGINAL, RETRAIN, served(PUMA))) == {}
    same_data = replace(later, data_digest="d" * 64)
    assert unmet(facts(same_data, served(PUMA))).keys() == {"requests"}
    # What is made from it is, too; what is made later from the old original is not.
    child = answer(5, 1, parent_version=4, data_digest="c" * 64)
    assert unmet(facts(child, ORIGINAL, served(PUMA), later)) == {}
    new = served(answer(5, 9, parent_version=4, data_digest="c" * 64))
    old = replace(PUMA, version=6, parent_version=1)
    assert unmet(facts(old, ORIGINAL, later, new)).keys() == {"requests"}


@pytest.mark.parametrize("verdict", [*STUCK, "passed", "indistinguishable", None])
def test_a_removal_that_never_served_blocks_nobody(verdict: str | None) -> None:
    """Version 3 serves nobody; promoting 2 over 1 means that fewer people are known."""
    champion = replace(ORIGINAL, aliases=("champion",))
    stuck = answer(4, 5, verdict=verdict)
    checked = facts(RETRAIN, champion, stuck)
    assert unmet(checked) == {}
    assert note(checked) == (
        f"nobody comes back; version 4 (puma) removed 5 rows for request {OTHER[:8]}… and never "
        "served; version 2 is not known to be without these people: if they are to be deleted, "
        "make one version without all of them: `puma remove --model models:/puma-toy/2 "
        "--deletions requests/other.csv --method retrain`"
    )


@pytest.mark.parametrize("values", [SERVES, {"aliases": ("champion",)}])
def test_a_removal_for_an_earlier_request_fails_after_a_later_one_served(
    values: dict[str, Any],
) -> None:
    later = answer(5, 5, **values)
    found = unmet(facts(PUMA, ORIGINAL, RETRAIN, later))
    assert found.keys() == {"requests"}
    detail = found["requests"][1]
    assert "version 5 (puma), which " in detail
    assert "removed 5 rows for request" in detail
    # From the one that served, without this one's people, too.
    assert detail.endswith(RETRAINED.format(5, ""))
    assert unmet(facts(later, ORIGINAL, RETRAIN, PUMA)) == {}


def test_the_way_to_one_version_without_all_starts_from_one_that_can_be_removed_from() -> None:
    def way(later: RegisteredVersion, row: RegisteredVersion = PUMA) -> str:
        return unmet(facts(row, ORIGINAL, later))["requests"][1]

    other = "`puma remove --model models:/puma-toy/3 --deletions requests/other.csv"
    erased = served(answer(5, 5, created=""))
    assert other in way(erased)
    assert other in way(served(answer(5, 5, method="sisa")))
    sisa = replace(PUMA, method="sisa")
    assert "put everybody into one request and run `dvc repro`" in way(erased, sisa)


@pytest.mark.parametrize("values", [SERVES, {"aliases": ("champion",)}])
@pytest.mark.parametrize(("n_removed", "holds"), [(4, True), (3, False), (1, False)])
def test_a_request_that_cannot_contain_the_one_that_served_fails(
    n_removed: int, holds: bool, values: dict[str, Any]
) -> None:
    """Three rows went before: one request that holds them and others is larger."""
    found = unmet(facts(answer(5, n_removed), ORIGINAL, replace(PUMA, **values)))
    assert found.keys() == (set() if holds else {"requests"})


def test_a_demonstration_that_never_served_binds_nobody() -> None:
    checked = facts(answer(5, 1), ORIGINAL, RETRAIN, PUMA)
    assert unmet(checked) == {}
    # It is noted once, for both versions that were made for it.
    assert note(checked).count("never served") == 1
    assert "version 3 (puma)" in note(checked)


def test_a_removal_from_a_removal_knows_none_of_its_people() -> None:
    parent = served(PUMA)
    child = answer(5, 1, parent_version=3)
    grandchild = replace(child, version=6, parent_version=5, deletion_digest="e3" * 32)
    grandchild = replace(grandchild, tags={**grandchild.tags, "puma.audited_deletion": "e3" * 32})
    assert unmet(facts(child, ORIGINAL, parent)) == {}
    assert unmet(facts(grandchild, ORIGINAL, parent, child)) == {}
    # Nor whom another version for the request of its parent was without.
    assert unmet(facts(child, ORIGINAL, PUMA, served(RETRAIN))) == {}
    # And its parent knows those of the child.
    assert unmet(facts(parent, ORIGINAL, served(child))).keys() == {"requests"}


def test_two_removals_for_the_same_request_may_follow_each_other() -> None:
    assert unmet(facts(RETRAIN, ORIGINAL, served(PUMA))) == {}
    assert unmet(facts(PUMA, ORIGINAL, served(RETRAIN))) == {}


def test_a_refusal_says_whether_anything_fails() -> None:
    unknown = facts(without(PUMA, "puma.audited_weights"))
    failing = replace(unknown, row=replace(unknown.row, verdict="over_forgotten"))
    assert not PromotionRefusedError("", check_conditions(unknown)).any_fails
    assert PromotionRefusedError("", check_conditions(failing)).any_fails
