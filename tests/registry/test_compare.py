"""Tampering, on plain values: whatever is changed, its field is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from puma.errors import RegistryError
from puma.registry.certificate.build import build, canonical, digest, parent_fields
from puma.registry.certificate.compare import (
    Comparison,
    Record,
    check_chain,
    check_champion,
    check_fields,
    check_page,
    check_weights,
    compare,
)
from puma.registry.certificate.findings import Finding, Verification, differences
from puma.registry.tombstones import Tombstone
from puma.registry.versions import RegisteredVersion
from tests.registry.records import (
    METRICS,
    ORIGINAL,
    PAGE,
    REMOVAL,
    REMOVAL_TAGS,
    as_ancestor,
    below,
    issued,
    run_of,
    tagged,
)


def findings(record: Record) -> list[Finding]:
    """Of the fields, the page and the chain."""
    comparison = compare(record)
    if isinstance(comparison, Finding):
        return [comparison]
    chain = check_chain(record, comparison.trusted["parent_certificate"])
    return [*check_fields(comparison), check_page(record), *chain]


def failed(record: Record) -> tuple[str, ...]:
    return Verification("toy", record.version, tuple(findings(record))).failed


def unknown(record: Record) -> str:
    """Why its certificate cannot be checked, which is all that is found."""
    (finding,) = findings(record)
    assert (finding.field, finding.state) == ("certificate", "unknown")
    return finding.detail


def failure(record: Record) -> Finding:
    (finding,) = (one for one in findings(record) if one.state == "fails")
    return finding


def edited(record: Record, change: Callable[[dict[str, Any]], object]) -> Record:
    certificate = json.loads(record.certificate or "")
    change(certificate)
    return replace(record, certificate=canonical(certificate))


# --- the stored form ---


def test_schema_1_is_written_as_ever() -> None:
    """Certificates that were issued are rebuilt byte for byte; a change needs a new schema."""
    golden = Path(__file__).with_name("certificate_schema_1.json").read_text(encoding="utf-8")
    parent = parent_fields(1, ORIGINAL.tags)
    assert canonical(build("toy", REMOVAL_TAGS, run_of(), parent, "b" * 64)) == golden
    # Written by the first PUMA that issued certificates.
    assert digest(golden) == "7dfac0b41f84c6e8ac0b17532df0be5a9d391ce74d8432ed88aa5e392aecf73a"
    original = canonical(build("toy", REMOVAL_TAGS, run_of(), None, None))
    assert digest(original) == "9f96b578d9c7bb1dba15418071b987d9b03711984424f32f08756f583c15b71d"


@pytest.mark.parametrize("record", [ORIGINAL, REMOVAL])
def test_what_was_issued_holds(record: Record) -> None:
    assert {one.state for one in findings(record)} == {"holds"}
    fields = {"certificate", "certificate.html"}
    assert {one.field for one in findings(record)} - {"parent_certificate"} == fields


# --- every field of a certificate ---

VALUES = {
    "schema": 2,
    "dataset": "other",
    "fingerprint": "0" * 64,
    "registered": "2026-01-01T00:00:00+00:00",
    "method": "retrain",
    "seed": 8,
    "parameters.damping": "0.2",
    "parameters.budget": "0.02",
    "data_digest": "0" * 64,
    "weights_digest": "0" * 64,
    "parent.version": 2,
    "parent.fingerprint": "0" * 64,
    "parent.weights_digest": "0" * 64,
    "parent_certificate": "0" * 64,
    "replaces": "0" * 64,
    "deletion.digest": "0" * 64,
    "deletion.rows": 99,
    "deletion.subjects": 99,
    "audit.verdict": "over_forgotten",
    "audit.reason": "because",
    "audit.weights_digest": "0" * 64,
    "audit.deletion_digest": "0" * 64,
    "audit.unresolved": ["accuracy"],
    "audit.metrics.accuracy": 0.99,
    "audit.metrics.criterion_drift": 0.0,
    "environment.python": "2.7",
    "environment.torch": "0.1",
    "environment.puma": "9",
    "environment.mlflow": "9",
    "git.commit": "f" * 40,
    "git.uncommitted_changes": True,
    "git.reason": "because",
    "limits": [],
}


def put(certificate: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        certificate = certificate[name]
    assert certificate[last] != value
    certificate[last] = value


@pytest.mark.parametrize("path", VALUES)
def test_a_changed_field_is_named_and_no_other(path: str) -> None:
    tampered = edited(REMOVAL, lambda certificate: put(certificate, path, VALUES[path]))
    before, after = (json.loads(one.certificate or "") for one in (REMOVAL, tampered))
    ((leaf, expected, found),) = differences(before, after)
    assert failed(tampered) == (path,) == (leaf,)
    finding = failure(tampered)
    assert (finding.expected, finding.found) == (expected, found)
    assert "certificate.json was changed after it was issued" in finding.detail


def test_every_field_has_been_tampered_with() -> None:
    def leaves(value: dict[str, Any], path: str = "") -> set[str]:
        found: set[str] = set()
        for name, part in value.items():
            found |= leaves(part, f"{path}{name}.") if isinstance(part, dict) else {path + name}
        return found

    assert leaves(json.loads(REMOVAL.certificate or "")) == VALUES.keys()


def test_a_field_added_or_left_out_is_named() -> None:
    assert failed(edited(REMOVAL, lambda c: c.update(approved_by="nobody"))) == ("approved_by",)
    left_out = edited(REMOVAL, lambda c: c["audit"]["metrics"].pop("accuracy"))
    assert failed(left_out) == ("audit.metrics.accuracy",)


@pytest.mark.parametrize("text", [(REMOVAL.certificate or "") + "\n", "{", "[]"])
def test_the_file_written_otherwise_is_not_the_one_issued(text: str) -> None:
    assert failed(replace(REMOVAL, certificate=text)) == ("certificate.json",)


# --- the registry around it ---


@pytest.mark.parametrize(
    ("tag", "value", "field"),
    [
        ("verdict", "over_forgotten", "audit.verdict"),
        ("weights_digest", "0" * 64, "weights_digest"),
        ("data_digest", "0" * 64, "data_digest"),
        ("deletion_digest", "0" * 64, "deletion.digest"),
        ("n_removed", "many", "deletion.rows"),
        ("method", "sisa", "method"),
        ("fingerprint", "0" * 64, "fingerprint"),
        ("certificate", "0" * 64, "certificate.json"),
        ("certificate_page", "0" * 64, "certificate.html"),
        ("verdict", None, "audit.verdict"),
        ("verdict_reason", None, "audit.reason"),
        ("seed", None, "seed"),
        ("audited_weights", None, "audit.weights_digest"),
    ],
)
def test_a_tag_changed_by_hand_is_named(tag: str, value: str | None, field: str) -> None:
    tampered = tagged(REMOVAL, **{tag: value})
    assert failed(tampered) == (field,)
    if tag == "verdict":
        finding = failure(tampered)
        assert (finding.expected, finding.found) == ("passed", value)
        assert "the registry was changed after it was issued" in finding.detail


def test_another_parent_is_named() -> None:
    other = issued(2, {**ORIGINAL.tags, "puma.fingerprint": "5" * 64})
    tampered = below(tagged(REMOVAL, parent_version="2"), as_ancestor(other))
    assert {"parent.version", "parent.fingerprint"} <= {*failed(tampered)}


def test_a_metric_logged_later_is_named() -> None:
    later = replace(REMOVAL, run=run_of({**METRICS, "attack_auc": 0.5}))
    assert failed(later) == ("audit.metrics.attack_auc",)
    assert failed(replace(ORIGINAL, run=later.run)) == ()  # an original's has no audit


def test_a_copy_that_is_shown_first_is_no_field_until_it_is_edited() -> None:
    shown = {**METRICS, "Headline/accuracy": METRICS["accuracy"]}
    assert failed(replace(REMOVAL, run=run_of(shown))) == ()
    shown["Headline/accuracy"] = 0.99
    edited_copy = replace(REMOVAL, run=run_of(shown))
    assert failed(edited_copy) == ("audit.metrics.Headline/accuracy",)


@pytest.mark.parametrize(
    ("tag", "field"),
    [("audited_weights", "audit.weights_digest"), ("audited_deletion", "audit.deletion_digest")],
)
def test_an_audit_of_something_else_is_named(tag: str, field: str) -> None:
    record = issued(3, {**REMOVAL_TAGS, f"puma.{tag}": "0" * 64}, ORIGINAL)
    assert failed(record) == (field,)
    assert failure(record).detail.endswith("the audit is about another")


@pytest.mark.parametrize("text", [PAGE.replace("passed", "perfect"), None])
def test_a_changed_page_is_named(text: str | None) -> None:
    finding = check_page(replace(REMOVAL, page=text))
    assert (finding.field, finding.state) == ("certificate.html", "fails")
    assert "read certificate.json" in finding.detail


def test_the_weights_are_compared_with_the_certificate_s() -> None:
    assert check_weights("a" * 64, "a" * 64).state == "holds"
    other = check_weights("b" * 64, "a" * 64)
    assert (other.state, other.expected, other.found) == ("fails", "a" * 64, "b" * 64)
    assert "the files of the registered model were changed" in other.detail
    gone = check_weights(RegistryError("its files are gone"), "a" * 64)
    assert (gone.state, gone.detail) == ("unknown", "its files are gone")


# --- what cannot be checked ---


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (replace(REMOVAL, tags={}), "was not registered by PUMA"),
        (replace(REMOVAL, run_id=""), "was not registered by PUMA"),
        (tagged(REMOVAL, certificate=None), "has no certificate: it was registered by an earlier"),
        (tagged(REMOVAL, certificate=None), "run `dvc repro`"),
        (replace(REMOVAL, certificate=None), "certificate.json cannot be read; restore mlruns/"),
        (replace(REMOVAL, run=None), "has lost its run; restore mlruns/ and mlflow.db from a"),
        (below(REMOVAL), "has lost its parent, version 1; restore mlruns/ and mlflow.db from a"),
    ],
)
def test_what_is_lost_cannot_be_checked(record: Record, words: str) -> None:
    assert words in unknown(record)


def test_a_newer_schema_cannot_be_checked() -> None:
    newer = edited(REMOVAL, lambda certificate: certificate.update(schema=99))
    vouched = tagged(newer, certificate=digest(newer.certificate or ""))
    assert unknown(vouched) == "version 3 has a certificate of schema 99; use a newer PUMA"


def test_a_failure_goes_before_what_is_unknown() -> None:
    both = (Finding("a", "unknown", "?"), Finding("b", "fails", "!"), Finding("b", "fails", "!"))
    assert Verification("toy", 1, both).conclusion == "does not hold: b"
    assert Verification("toy", 1, both[:1]).conclusion == "cannot be checked: a"
    assert Verification("toy", 1, (Finding("c", "skipped", "-"),)).conclusion == "holds"


# --- the certificates above ---


def chain(record: Record) -> Finding:
    """What is found of the certificates above; the fields hold."""
    comparison = compare(record)
    assert isinstance(comparison, Comparison)
    (finding,) = check_chain(record, comparison.trusted["parent_certificate"])
    return finding


def test_a_changed_certificate_of_the_parent_breaks_the_chain() -> None:
    changed = edited(ORIGINAL, lambda certificate: certificate.update(seed=8))
    record = below(REMOVAL, as_ancestor(changed))
    now = digest(changed.certificate or "")
    assert failed(record) == ("parent_certificate",)
    finding = failure(record)
    assert (finding.expected, finding.found) == (ORIGINAL.tags["puma.certificate"], now)
    assert failed(changed) == ("seed",)
    vouched = tagged(changed, certificate=now)  # and still not the one that version 3 refers to
    assert failed(below(REMOVAL, as_ancestor(vouched))) == ("parent_certificate",)


def test_a_chain_of_three_goes_up_to_the_original() -> None:
    """The parent was audited again since: its first certificate is kept."""
    first = issued(2, REMOVAL_TAGS, ORIGINAL)
    removal = issued(3, {**REMOVAL_TAGS, "puma.parent_version": "2"}, first)
    again = {
        **REMOVAL_TAGS,
        "puma.verdict": "inconclusive",
        "puma.certificate_replaced": first.tags["puma.certificate"],
    }
    replaced = issued(2, again, ORIGINAL)
    kept = as_ancestor(replaced, first.certificate or "")
    held = below(removal, kept, as_ancestor(ORIGINAL))
    assert chain(held).detail == "the certificates up to version 1's"

    changed = as_ancestor(edited(ORIGINAL, lambda certificate: certificate.update(seed=8)))
    assert failed(below(removal, kept, changed)) == ("version 2: parent_certificate",)
    lost = below(removal, as_ancestor(replaced), as_ancestor(ORIGINAL))
    assert failed(lost) == ("parent_certificate",)


def test_an_ancestor_without_a_certificate_or_gone_is_unknown() -> None:
    bare = chain(below(REMOVAL, as_ancestor(tagged(ORIGINAL, certificate=None))))
    assert (bare.field, bare.state) == ("parent_certificate", "unknown")
    assert "version 1 has no certificate; run `dvc repro`, which issues it" in bare.detail
    first = issued(2, REMOVAL_TAGS, ORIGINAL)
    removal = issued(3, {**REMOVAL_TAGS, "puma.parent_version": "2"}, first)
    gone = chain(below(removal, as_ancestor(first)))
    assert (gone.field, gone.state) == ("version 2: parent_certificate", "unknown")
    assert "version 1 is not registered any more; restore mlruns/ and mlflow.db" in gone.detail


@pytest.mark.parametrize(
    "values", [{}, {"fingerprint": "0" * 64}, {"weights_digest": "0" * 64}, {"parent_version": 2}]
)
def test_an_erased_parent_is_what_its_kept_certificate_says(values: dict[str, Any]) -> None:
    tags = ORIGINAL.tags
    tombstone = Tombstone(
        name="puma-toy",
        version=1,
        when="2026-01-01T00:00:00+00:00",
        fingerprint=tags["puma.fingerprint"],
        weights_digest=tags["puma.weights_digest"],
        certificate=tags["puma.certificate"],
        method="original",
        parent_version=None,
        deletion_digest=None,
        n_removed=0,
        data_digest=tags["puma.data_digest"],
        promoted_at=None,
    )
    tombstone = replace(tombstone, **values)
    erased = replace(as_ancestor(ORIGINAL), tags=tombstone.tags, present=None, tombstone=tombstone)
    record = below(REMOVAL, erased)
    if not values:
        assert "; version 1 was erased on 2026-01-01" in chain(record).detail
        return
    assert failed(record) == ("parent_certificate",)
    (name,) = values
    words = f"{name} in the tag puma.erased.1 is not what the kept certificate says"
    assert failure(record).detail.endswith(words)


# --- champion ---


def row(version: int, *, method: str = "puma", **values: Any) -> RegisteredVersion:
    return RegisteredVersion(
        dataset="toy",
        version=version,
        aliases=values.pop("aliases", ()),
        method=method,
        parent_version=None if method == "original" else 1,
        n_removed=0,
        deletion_digest=None if method == "original" else "e1" * 32,
        verdict=None,
        metrics={},
        data_digest="d" * 64,
        fingerprint="f" * 64,
        run_id="r",
        created="",
        **values,
    )


def champions(rows: list[RegisteredVersion]) -> dict[int, tuple[str, Any, Any]]:
    """Version -> state, expected and found, of those that it concerns."""
    return {
        each.version: (one.state, one.expected, one.found)
        for each in rows
        for one in check_champion(each, rows)
    }


def test_an_alias_moved_by_hand_is_found_from_either_side() -> None:
    serves = ("champion",)
    first = [row(1, method="original", aliases=serves), row(2), row(3)]
    assert champions(first) == {1: ("holds", None, None)}
    moved = [row(1, method="original"), row(2, aliases=serves), row(3)]
    assert champions(moved) == {1: ("fails", 1, 2), 2: ("fails", 1, 2)}
    promoted = row(3, promoted_at="2026-01-02T00:00:00+00:00")
    before = row(1, method="original", superseded_by=3)
    assert champions([before, row(2), replace(promoted, aliases=serves)])[3][0] == "holds"
    back = [replace(before, aliases=serves), row(2), promoted]
    assert champions(back) == {1: ("fails", 3, 1), 3: ("fails", 3, 1)}
    assert champions([before, row(2), promoted]) == {3: ("fails", 3, None)}
