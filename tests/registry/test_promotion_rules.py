"""Which version may serve: every condition, on plain values."""

from __future__ import annotations

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
        *("audit", "budget", "subject", "certificate", "requests")
    ]
    assert {one.state for one in conditions} == {"holds"}


def test_an_original_may_serve_while_nobody_was_removed() -> None:
    """Its verdict, that it remembers everybody, is none of a removal."""
    assert unmet(facts(ORIGINAL)) == {}


def test_a_version_that_puma_did_not_register_cannot_be_checked() -> None:
    (condition,) = check_conditions(facts(version(3, "")))
    assert (condition.name, condition.state) == ("registered by PUMA", "unknown")
    assert "version 3 was not registered by PUMA" in condition.detail
    assert "promote one that `puma versions` lists with a method" in condition.detail


# --- audit ---


@pytest.mark.parametrize("verdict", ["forgetting_incomplete", "inconclusive", "utility_lost"])
def test_any_other_verdict_fails(verdict: str) -> None:
    tags = {**PUMA.tags, "puma.verdict_reason": "0.93 of what it was"}
    found = unmet(facts(replace(PUMA, verdict=verdict, tags=tags), ORIGINAL))
    assert found.keys() == {"audit"}
    assert found["audit"][0] == "fails"
    assert f"is {verdict}, not passed (0.93 of what it was); promote" in found["audit"][1]


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
        assert f"moved by {drift:+.4g} nats, of 0.01 allowed; raise" in found["budget"][1]


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
    assert unmet(facts(PUMA, weights=error)) == {"subject": ("unknown", str(error))}


# --- certificate ---


def test_a_certificate_that_does_not_hold_fails() -> None:
    wrong = differs("audit.verdict", "over_forgotten", "passed", "the registry was changed")
    found = unmet(facts(PUMA, certificate=(wrong,)))
    detail = 'audit.verdict: expected "over_forgotten", found "passed": the registry was changed'
    assert found == {"certificate": ("fails", f"{detail}; see `puma verify`")}
    absent = Finding("certificate", "unknown", "version 3 has no certificate")
    found = unmet(facts(PUMA, certificate=(absent,)))
    detail = "version 3 has no certificate; see `puma verify`"
    assert found == {"certificate": ("unknown", detail)}


# --- requests ---


def test_back_to_an_original_that_knows_removed_people_fails() -> None:
    found = unmet(facts(ORIGINAL, RETRAIN, PUMA))
    assert found.keys() == {"requests"}
    state, detail = found["requests"]
    assert state == "fails"
    assert f"version 3 (puma) removed 3 rows for another request, {REQUEST[:8]}…" in detail
    assert "version 1 was not made for it: it still knows these people; promote a" in detail


def test_an_original_trained_later_on_other_data_is_taken_to_be_without_them() -> None:
    later = replace(ORIGINAL, version=4, data_digest="c" * 64)
    assert unmet(facts(later, ORIGINAL, RETRAIN, PUMA)) == {}
    assert unmet(facts(replace(later, data_digest="d" * 64), PUMA)).keys() == {"requests"}


def answer(number: int, n_removed: int, **values: Any) -> RegisteredVersion:
    """A removal for another request, which passed."""
    tags = {**PUMA.tags, "puma.audited_deletion": OTHER}
    named = {"version": number, "deletion_digest": OTHER, "n_removed": n_removed, "tags": tags}
    return replace(PUMA, **named, **values)


def test_a_removal_for_an_earlier_request_fails() -> None:
    later = answer(5, 5)
    found = unmet(facts(PUMA, ORIGINAL, RETRAIN, later))
    assert found.keys() == {"requests"}
    assert "version 5 (puma) removed 5 rows for another request" in found["requests"][1]
    assert unmet(facts(later, ORIGINAL, RETRAIN, PUMA)) == {}


@pytest.mark.parametrize("served", [SERVES, {"aliases": ("champion",)}])
@pytest.mark.parametrize(("n_removed", "holds"), [(4, True), (3, False), (1, False)])
def test_a_request_that_cannot_contain_the_one_that_served_fails(
    n_removed: int, holds: bool, served: dict[str, Any]
) -> None:
    """Three rows went before: one request that holds them and others is larger."""
    found = unmet(facts(answer(5, n_removed), ORIGINAL, replace(PUMA, **served)))
    assert found.keys() == (set() if holds else {"requests"})
    if not holds:
        detail = found["requests"][1]
        assert "version 3 (puma), which has served, removed 3 rows for request" in detail
        assert f"version 5 removed {n_removed} for another request" in detail
        assert "put everybody into one request and run `dvc repro`" in detail


def test_a_demonstration_that_never_served_binds_nobody() -> None:
    assert unmet(facts(answer(5, 1), ORIGINAL, RETRAIN, PUMA)) == {}


def test_a_removal_from_a_removal_knows_none_of_its_people() -> None:
    parent = replace(PUMA, **SERVES)
    child = answer(5, 1, parent_version=3)
    grandchild = replace(child, version=6, parent_version=5, deletion_digest="e3" * 32)
    grandchild = replace(grandchild, tags={**grandchild.tags, "puma.audited_deletion": "e3" * 32})
    assert unmet(facts(child, ORIGINAL, parent)) == {}
    assert unmet(facts(grandchild, ORIGINAL, parent, child)) == {}
    # And its parent knows those of the child.
    assert unmet(facts(parent, ORIGINAL, child)).keys() == {"requests"}


def test_two_removals_for_the_same_request_may_follow_each_other() -> None:
    assert unmet(facts(RETRAIN, ORIGINAL, replace(PUMA, **SERVES))) == {}
    assert unmet(facts(PUMA, ORIGINAL, replace(RETRAIN, **SERVES))) == {}


def test_a_refusal_says_whether_anything_fails() -> None:
    unknown = facts(without(PUMA, "puma.audited_weights"))
    failing = replace(unknown, row=replace(unknown.row, verdict="over_forgotten"))
    assert not PromotionRefusedError("", check_conditions(unknown)).any_fails
    assert PromotionRefusedError("", check_conditions(failing)).any_fails
