from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from puma.errors import DataError
from puma.lineage.records import AuditRecord, ModelRecord, read_model_records
from puma.project.files import write_json
from puma.project.workspace import Workspace
from puma.settings import ModelSettings, is_original, original_of

COMPLETE: dict[str, Any] = {
    "dataset": "toy",
    "method": "puma",
    "seed": 3,
    "data_digest": "d1",
    "weights_digest": "w1",
    "predictions_digest": "p1",
    "weights": "artifacts/toy/puma.pt",
    "model": ModelSettings(hidden=(5, 4)),
    "shape": (6,),
    "classes": ("good", "bad"),
    "task": "classification",
    "target": None,
    "parent": "f0",
    "deletion_digest": "h1",
    "n_removed": 12,
    "n_subjects": 10,
    "parameters": {"dose": 1000.0, "solver": "cg", "steps": 7, "damping": 1e-3},
    "metrics": {"accuracy": 0.75, "runtime_seconds": 0.1 + 0.2},
    "loss_curve": (0.7, 0.6),
    "verdict": "passed",
    "verdict_reason": "the influence is 0.05 of what it was",
    "evidence": "pool",
    "unresolved": ("attack_tpr_at_1pct_fpr",),
}
# One other value for every field that makes a version what it is.
OTHER: dict[str, Any] = {
    "dataset": "toys",
    "method": "retrain",
    "seed": 4,
    "data_digest": "d2",
    "weights_digest": "w2",
    "predictions_digest": "p2",
    "model": ModelSettings(hidden=(4, 5)),
    "shape": (7,),
    "classes": ("bad", "good"),
    "task": "binary",
    "target": (152.0, 77.0),
    "parent": None,
    "deletion_digest": "h2",
    "n_removed": 13,
    "n_subjects": 11,
    "parameters": {**COMPLETE["parameters"], "dose": 999.0},
}
MEASURED: dict[str, Any] = {
    "metrics": {"accuracy": 0.5},
    "loss_curve": (0.1,),
    "weights": "elsewhere/puma.pt",
    "verdict": "over_forgotten",
    "verdict_reason": "the influence is -0.5 of what it was",
    "evidence": "retrain",
    "unresolved": (),
}


def record(**changed: Any) -> ModelRecord:
    return ModelRecord(**{**COMPLETE, **changed})


def test_the_cases_cover_every_field() -> None:
    assert set(COMPLETE) == set(ModelRecord.model_fields)
    assert set(OTHER) | set(MEASURED) == set(ModelRecord.model_fields)
    assert not set(OTHER) & set(MEASURED)


@pytest.mark.parametrize("field", OTHER)
def test_fingerprint_changes_with_what_the_version_is(field: str) -> None:
    assert record(**{field: OTHER[field]}).fingerprint != record().fingerprint


@pytest.mark.parametrize("field", MEASURED)
def test_fingerprint_ignores_measurements_and_places(field: str) -> None:
    changed = record(**{field: MEASURED[field]})
    assert changed != record()
    assert changed.fingerprint == record().fingerprint


def test_fingerprint_ignores_the_order_of_parameters() -> None:
    turned = dict(reversed(COMPLETE["parameters"].items()))
    assert list(turned) != list(COMPLETE["parameters"])
    assert record(parameters=turned).fingerprint == record().fingerprint


REGRESSION = {"classes": (), "task": "regression", "target": (152.0, 77.0)}


@pytest.mark.parametrize("changed", [{}, {"parent": None, "deletion_digest": None}, REGRESSION])
def test_a_record_reads_back_the_same(tmp_path: Path, changed: dict[str, Any]) -> None:
    original = record(**changed)
    path = tmp_path / "new" / "puma.json"
    original.write(path)
    restored = ModelRecord.read(path)
    assert restored == original
    assert restored.fingerprint == original.fingerprint
    kinds = {name: type(value) for name, value in restored.parameters.items()}
    assert kinds == {"dose": float, "solver": str, "steps": int, "damping": float}
    stored = json.loads(path.read_text())
    assert stored["metrics"] == COMPLETE["metrics"]
    of_other_tasks = set() if changed is REGRESSION else {"task", "target"}
    assert set(stored) == set(ModelRecord.model_fields) - of_other_tasks
    assert of_other_tasks.isdisjoint(json.loads(original.identity))


def test_a_metric_that_is_no_number_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        record(metrics={"accuracy": float("nan")}).write(tmp_path / "puma.json")
    assert list(tmp_path.iterdir()) == []


def test_an_absent_record_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"puma\.json: no such model record; run `dvc repro` first"):
        ModelRecord.read(tmp_path / "puma.json")


@pytest.mark.parametrize(
    ("content", "problems"),
    [(b"", 1), (b"\xff\xfe", 1), (b"[]", 1), (b"{}", 9), (b'{"dataset": "a", "typo": 1}', 9)],
)
def test_other_files_are_no_record(tmp_path: Path, content: bytes, problems: int) -> None:
    (tmp_path / "puma.json").write_bytes(content)
    with pytest.raises(
        DataError, match=rf"puma\.json: not a PUMA model record \({problems} problems\)"
    ):
        ModelRecord.read(tmp_path / "puma.json")


def test_a_record_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\); remove it and run"):
        ModelRecord.read(tmp_path)


def test_a_field_that_no_record_has_is_refused() -> None:
    with pytest.raises(ValidationError, match="subject_ids"):
        record(subject_ids=["ann"])


# --- the records of a dataset together ---


def publish(root: Path, *records: ModelRecord) -> Workspace:
    workspace = Workspace(root)
    versions = [each.method for each in records]
    methods = [name for name in versions if not is_original(name)]
    originals = [name for name in versions if is_original(name)]
    lists = {"originals": originals, "methods": methods, "versions": versions}
    write_json(root / "params.yaml", lists)
    parents = {each.method: each.fingerprint for each in records if is_original(each.method)}
    for each in records:
        parent = each.parent if is_original(each.method) else parents[original_of(each.method)]
        each.model_copy(update={"parent": parent}).write(workspace.model_record("toy", each.method))
        audit(workspace, each)
    return workspace


def audit(workspace: Workspace, audited: ModelRecord, **changed: Any) -> None:
    found = {
        "weights_digest": audited.weights_digest,
        "deletion_digest": "h1",
        "verdict": "inconclusive",
        "verdict_reason": "nothing was found",
        "metrics": {"attack_rate": 0.25},
    }
    AuditRecord.model_validate(found | changed).write(workspace.audit("toy", audited.method))


def version(method: str, seconds: float, deletion_digest: str | None) -> ModelRecord:
    """As a stage leaves it: not audited yet."""
    return record(
        method=method,
        deletion_digest=deletion_digest,
        metrics={"accuracy": 0.75, "runtime_seconds": seconds},
        verdict=None,
        verdict_reason=None,
        evidence=None,
        unresolved=(),
    )


ORIGINAL = version("original", 9.0, None)


def test_removals_gain_the_audit_and_the_time_that_retraining_took(tmp_path: Path) -> None:
    workspace = publish(
        tmp_path, ORIGINAL, version("puma", 0.5, "h1"), version("retrain", 6.0, "h1")
    )
    found = read_model_records(workspace, "toy")
    assert [each.method for each in found] == ["original", "puma", "retrain"]
    audited = {"accuracy": 0.75, "attack_rate": 0.25}
    removed = {**audited, "attack_rate_before": 0.25}
    assert [each.metrics for each in found] == [
        {**audited, "runtime_seconds": 9.0},
        {**removed, "runtime_seconds": 0.5, "retrain_seconds": 6.0, "speedup_vs_retrain": 12.0},
        {**removed, "runtime_seconds": 6.0, "retrain_seconds": 6.0, "speedup_vs_retrain": 1.0},
    ]
    assert [each.fingerprint for each in found] == [
        ModelRecord.read(workspace.model_record("toy", each.method)).fingerprint for each in found
    ]


def test_every_record_gains_the_verdict_of_its_own_audit(tmp_path: Path) -> None:
    puma = version("puma", 0.5, "h1")
    workspace = publish(tmp_path, ORIGINAL, puma)
    found = {"verdict": "passed", "verdict_reason": "as good as retrained", "evidence": "pool"}
    audit(workspace, puma, **found, unresolved={"attack_tpr_at_1pct_fpr": "too few rows"})

    first, second = read_model_records(workspace, "toy")

    assert (first.verdict, first.verdict_reason) == ("inconclusive", "nothing was found")
    assert (second.verdict, second.verdict_reason) == ("passed", "as good as retrained")
    assert (first.evidence, second.evidence) == ("retrain", "pool")  # of an earlier audit's file
    assert (first.unresolved, second.unresolved) == ((), ("attack_tpr_at_1pct_fpr",))
    assert second.metrics.keys() == first.metrics.keys() | {"attack_rate_before"}
    assert second.fingerprint == ModelRecord.read(workspace.model_record("toy", "puma")).fingerprint


def test_numbers_of_the_parent_are_those_of_the_parent_s_audit(tmp_path: Path) -> None:
    puma, sisa = version("puma", 0.5, "h1"), version("sisa", 2.0, "h1")
    sisa_original = version("sisa_original", 8.0, None)
    workspace = publish(tmp_path, ORIGINAL, sisa_original, sisa, puma)
    names = ("attack_rate", "attack_auc", "removed_loss", "unseen_loss")
    for place, each in enumerate((ORIGINAL, sisa_original, sisa, puma)):
        audit(workspace, each, metrics=dict.fromkeys(names, place / 8))

    found = {each.method: each.metrics for each in read_model_records(workspace, "toy")}

    for method, own, before in (("sisa", 0.25, 0.125), ("puma", 0.375, 0.0)):
        assert {name: found[method][name] for name in names} == dict.fromkeys(names, own)
        gained = {name: value for name, value in found[method].items() if "_before" in name}
        assert gained == {f"{name}_before": before for name in names[:3]}
    assert not [name for name in found["sisa_original"] if "_before" in name]


def test_an_audit_s_record_reads_back_the_same(tmp_path: Path) -> None:
    record = AuditRecord(
        weights_digest="w1",
        deletion_digest="h1",
        verdict="passed",
        verdict_reason="as good as retrained",
        metrics={"attack_auc": 0.1 + 0.2, "audit_passed": 1.0},
        evidence="pool",
        unresolved={"attack_tpr_at_1pct_fpr": "needs at least 100 unseen rows, there are 41"},
    )
    path = tmp_path / "new" / "puma.audit.json"
    record.write(path)
    assert AuditRecord.model_validate_json(path.read_bytes()) == record
    assert json.loads(path.read_text()) == {
        "weights_digest": "w1",
        "deletion_digest": "h1",
        "verdict": "passed",
        "verdict_reason": "as good as retrained",
        "metrics": {"attack_auc": 0.1 + 0.2, "audit_passed": 1.0},
        "evidence": "pool",
        "unresolved": {"attack_tpr_at_1pct_fpr": "needs at least 100 unseen rows, there are 41"},
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"verdict": None},
        {"metrics": {"attack_auc": "high"}},
        {"evidence": "hearsay"},
        {"unresolved": {"attack_auc_class_1": 0.5}},
        {"subject_ids": ["ann"]},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_audit_s_record_holds_nothing_else(changed: dict[str, Any]) -> None:
    known: dict[str, Any] = {
        "weights_digest": "w1",
        "deletion_digest": "h1",
        "verdict": "passed",
        "verdict_reason": "as good as retrained",
        "metrics": {"attack_auc": 0.5},
    }
    assert AuditRecord.model_validate(known).unresolved == {}
    with pytest.raises(ValidationError, match=next(iter(changed))):
        AuditRecord.model_validate(known | changed)


def test_a_removal_from_another_original_is_compared_with_retraining_too(tmp_path: Path) -> None:
    workspace = publish(
        tmp_path,
        ORIGINAL,
        version("sisa_original", 8.0, None),
        version("retrain", 6.0, "h1"),
        version("sisa", 2.0, "h1"),
    )
    found = read_model_records(workspace, "toy")
    assert [each.method for each in found] == ["original", "sisa_original", "retrain", "sisa"]
    speedups = [each.metrics.get("speedup_vs_retrain") for each in found]
    assert speedups == [None, None, 1.0, 3.0]


@pytest.mark.parametrize(
    "others",
    [(version("amnesiac", 6.0, "h1"),), ()],
    ids=["another method", "alone"],
)
def test_speedup_needs_retraining(tmp_path: Path, others: tuple[ModelRecord, ...]) -> None:
    originals = [version(original_of(each.method), 9.0, None) for each in others]
    originals = [each for each in originals if each.method != "original"]
    workspace = publish(tmp_path, ORIGINAL, *originals, version("puma", 0.5, "h1"), *others)
    puma = read_model_records(workspace, "toy")[1 + len(originals)]
    assert puma.method == "puma"
    assert set(puma.metrics) == {"accuracy", "runtime_seconds", "attack_rate", "attack_rate_before"}


def test_records_without_their_audit_are_incomplete(tmp_path: Path) -> None:
    workspace = publish(tmp_path, ORIGINAL, version("puma", 0.5, "h1"))
    path = workspace.audit("toy", "puma")
    path.write_text('{"attack_rate": "low"}')
    with pytest.raises(DataError, match=r"puma\.audit\.json: not a PUMA audit \(6 problems\)"):
        read_model_records(workspace, "toy")
    path.unlink()
    with pytest.raises(DataError, match=r"lineage/toy/puma\.audit\.json: no such audit; run `dvc"):
        read_model_records(workspace, "toy")
    workspace.model_record("toy", "puma").unlink()
    with pytest.raises(DataError, match=r"lineage/toy/puma\.json: no such model record"):
        read_model_records(workspace, "toy")


def refusal(workspace: Workspace) -> str:
    with pytest.raises(DataError, match="run `dvc repro` to bring the stages in step") as caught:
        read_model_records(workspace, "toy")
    return str(caught.value)


def test_stages_run_out_of_step_are_refused(tmp_path: Path) -> None:
    puma = version("puma", 0.5, "h1")
    workspace = publish(tmp_path, ORIGINAL, version("retrain", 6.0, "h1"), puma)
    read_model_records(workspace, "toy")

    audit(workspace, puma, weights_digest="0" * 64)
    assert "the audit of puma attacked other weights" in refusal(workspace)
    audit(workspace, puma, deletion_digest="h2")
    assert "the audit of puma was made for another request" in refusal(workspace)
    audit(workspace, puma)
    audit(workspace, ORIGINAL, deletion_digest="h2")
    assert "the audit of original was made for another request" in refusal(workspace)
    audit(workspace, ORIGINAL)
    read_model_records(workspace, "toy")

    path = workspace.model_record("toy", "puma")
    current = ModelRecord.read(path)
    current.model_copy(update={"deletion_digest": "h2"}).write(path)
    assert "the removals answer different requests" in refusal(workspace)
    current.model_copy(update={"parent": "f" * 64}).write(path)
    assert "puma was made from an earlier original" in refusal(workspace)
    current.model_copy(update={"data_digest": "f" * 64}).write(path)
    assert "puma was made from other data" in refusal(workspace)
