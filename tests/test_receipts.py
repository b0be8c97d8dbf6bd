from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from puma.errors import DataError
from puma.files import write_json
from puma.receipts import Receipt, read_receipts
from puma.settings import ModelSettings
from puma.workspace import Workspace

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
    "parent": "f0",
    "deletion_digest": "h1",
    "n_removed": 12,
    "n_subjects": 10,
    "parameters": {"dose": 1000.0, "solver": "cg", "steps": 7, "damping": 1e-3},
    "metrics": {"accuracy": 0.75, "runtime_seconds": 0.1 + 0.2},
    "loss_curve": (0.7, 0.6),
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
}


def receipt(**changed: Any) -> Receipt:
    return Receipt(**{**COMPLETE, **changed})


def test_the_cases_cover_every_field() -> None:
    assert set(COMPLETE) == set(Receipt.model_fields)
    assert set(OTHER) | set(MEASURED) == set(Receipt.model_fields)
    assert not set(OTHER) & set(MEASURED)


@pytest.mark.parametrize("field", OTHER)
def test_fingerprint_changes_with_what_the_version_is(field: str) -> None:
    assert receipt(**{field: OTHER[field]}).fingerprint != receipt().fingerprint


@pytest.mark.parametrize("field", MEASURED)
def test_fingerprint_ignores_measurements_and_places(field: str) -> None:
    changed = receipt(**{field: MEASURED[field]})
    assert changed != receipt()
    assert changed.fingerprint == receipt().fingerprint


def test_fingerprint_ignores_the_order_of_parameters() -> None:
    turned = dict(reversed(COMPLETE["parameters"].items()))
    assert list(turned) != list(COMPLETE["parameters"])
    assert receipt(parameters=turned).fingerprint == receipt().fingerprint


@pytest.mark.parametrize("changed", [{}, {"parent": None, "deletion_digest": None}])
def test_a_receipt_reads_back_the_same(tmp_path: Path, changed: dict[str, Any]) -> None:
    original = receipt(**changed)
    path = tmp_path / "new" / "puma.json"
    original.write(path)
    restored = Receipt.read(path)
    assert restored == original
    assert restored.fingerprint == original.fingerprint
    kinds = {name: type(value) for name, value in restored.parameters.items()}
    assert kinds == {"dose": float, "solver": str, "steps": int, "damping": float}
    stored = json.loads(path.read_text())
    assert stored["metrics"] == COMPLETE["metrics"]
    assert set(stored) == set(Receipt.model_fields)


def test_a_metric_that_is_no_number_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        receipt(metrics={"accuracy": float("nan")}).write(tmp_path / "puma.json")
    assert list(tmp_path.iterdir()) == []


def test_an_absent_receipt_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"puma\.json: no such receipt; run `dvc repro` first"):
        Receipt.read(tmp_path / "puma.json")


@pytest.mark.parametrize(
    ("content", "problems"),
    [(b"", 1), (b"\xff\xfe", 1), (b"[]", 1), (b"{}", 10), (b'{"dataset": "a", "typo": 1}', 10)],
)
def test_other_files_are_no_receipt(tmp_path: Path, content: bytes, problems: int) -> None:
    (tmp_path / "puma.json").write_bytes(content)
    with pytest.raises(DataError, match=rf"puma\.json: not a receipt \({problems} problems\)"):
        Receipt.read(tmp_path / "puma.json")


def test_a_field_that_no_receipt_has_is_refused() -> None:
    with pytest.raises(ValidationError, match="subject_ids"):
        receipt(subject_ids=["ann"])


# --- the receipts of a dataset together ---


def publish(root: Path, *receipts: Receipt) -> Workspace:
    workspace = Workspace(root)
    methods = [each.method for each in receipts if each.method != "original"]
    versions = ["original", *methods]
    write_json(root / "params.yaml", {"methods": methods, "versions": versions})
    for each in receipts:
        each.write(workspace.receipt("toy", each.method))
        write_json(workspace.metrics("toy", each.method), {"attack_rate": 0.25})
    return workspace


def version(method: str, seconds: float, deletion_digest: str | None) -> Receipt:
    metrics = {"accuracy": 0.75, "runtime_seconds": seconds}
    return receipt(method=method, deletion_digest=deletion_digest, metrics=metrics)


ORIGINAL = version("original", 9.0, None)


def test_removals_gain_the_audit_and_the_time_that_retraining_took(tmp_path: Path) -> None:
    workspace = publish(
        tmp_path, ORIGINAL, version("puma", 0.5, "h1"), version("retrain", 6.0, "h1")
    )
    found = read_receipts(workspace, "toy")
    assert [each.method for each in found] == ["original", "puma", "retrain"]
    audited = {"accuracy": 0.75, "attack_rate": 0.25}
    assert [each.metrics for each in found] == [
        {**audited, "runtime_seconds": 9.0},
        {**audited, "runtime_seconds": 0.5, "retrain_seconds": 6.0, "speedup_vs_retrain": 12.0},
        {**audited, "runtime_seconds": 6.0, "retrain_seconds": 6.0, "speedup_vs_retrain": 1.0},
    ]
    assert [each.fingerprint for each in found] == [
        Receipt.read(workspace.receipt("toy", each.method)).fingerprint for each in found
    ]


@pytest.mark.parametrize(
    "others",
    [(version("retrain", 6.0, "h2"),), (version("sisa", 6.0, "h1"),), ()],
    ids=["another deletion set", "another method", "alone"],
)
def test_speedup_needs_retraining_for_the_same_deletion(
    tmp_path: Path, others: tuple[Receipt, ...]
) -> None:
    workspace = publish(tmp_path, ORIGINAL, version("puma", 0.5, "h1"), *others)
    puma = read_receipts(workspace, "toy")[1]
    assert puma.method == "puma"
    assert set(puma.metrics) == {"accuracy", "runtime_seconds", "attack_rate"}


def test_receipts_without_their_audit_are_incomplete(tmp_path: Path) -> None:
    workspace = publish(tmp_path, ORIGINAL, version("puma", 0.5, "h1"))
    path = workspace.metrics("toy", "puma")
    path.write_text('{"attack_rate": "low"}')
    with pytest.raises(DataError, match=r"puma\.json: not metrics \(1 problems\)"):
        read_receipts(workspace, "toy")
    path.unlink()
    with pytest.raises(DataError, match=r"metrics/toy/puma\.json: no such metrics; run `dvc"):
        read_receipts(workspace, "toy")
    workspace.receipt("toy", "puma").unlink()
    with pytest.raises(DataError, match=r"lineage/toy/puma\.json: no such receipt"):
        read_receipts(workspace, "toy")
