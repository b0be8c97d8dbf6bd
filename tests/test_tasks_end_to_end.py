"""The real pipeline on a regression, and on two classes by one logit with class weights."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from dvc.utils.serialize import dumps_yaml, loads_yaml
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import mean_absolute_error, r2_score

from puma.data import Dataset
from puma.lineage.records import AuditRecord, ModelRecord
from puma.project.workspace import Workspace
from puma.registry import load_predictor
from tests.test_end_to_end import TINY, copy_project, run

pytestmark = pytest.mark.slow

THREE = {"methods": ["retrain", "puma"], "versions": ["original", "retrain", "puma"]}
DEBUGGED = ("loss", "psi", "self_influence", "ntk", "representer", "g_shapley")


def repro(root: Path, dataset: str, settings: dict[str, object]) -> tuple[Workspace, list[dict]]:
    """A project whose `dvc repro` has run, and its registered versions."""
    workspace = copy_project(root, TINY | THREE | {"datasets": [dataset]} | settings)
    run(workspace, "dvc", "repro")
    listed = run(workspace, "puma", "versions", dataset, "--json").stdout
    return workspace, json.loads(listed)


def remove_one(workspace: Workspace, dataset: str, data: Dataset, version: int) -> dict:
    """Remove one more person by the direct path; the new version."""
    (workspace.root / "requests").mkdir(exist_ok=True)
    deleted = {*workspace.deletion_set(dataset).read_text().split()}
    person = next(each for each in data.train.subject_ids.tolist() if each not in deleted)
    (workspace.root / "requests" / "2.csv").write_text(f"subject_id\n{person}\n")
    named = ("--model", f"models:/puma-{dataset}/{version}", "--deletions", "requests/2.csv")
    run(workspace, "puma", "remove", *named, "--method", "puma", codes=(0, 1))
    return json.loads(run(workspace, "puma", "versions", dataset, "--json").stdout)[-1]


def test_a_regression(tmp_path: Path) -> None:
    workspace, rows = repro(tmp_path, "diabetes", {})
    data = Dataset.load(workspace.data("diabetes"))
    truth = data.task.centre + data.task.scale * data.test.labels.numpy()
    for row in rows:
        predict = load_predictor(workspace, "diabetes", str(row["version"]))
        with torch.no_grad():
            outputs = predict(data.test.features)[:, 0].numpy()
        predicted = data.task.centre + data.task.scale * outputs
        metrics = row["metrics"]
        assert "accuracy" not in metrics
        assert metrics["test_r2"] == pytest.approx(r2_score(truth, predicted), abs=1e-5)
        assert metrics["test_mae"] == pytest.approx(mean_absolute_error(truth, predicted), 1e-5)
        assert metrics["test_mae"] > 10  # in the target's own unit, whose deviation is 77
        record = ModelRecord.read(workspace.model_record("diabetes", row["method"]))
        assert record.task == "regression"
        assert record.target == (data.task.centre, data.task.scale)
        audit = AuditRecord.read(workspace.audit("diabetes", row["method"]))
        assert "R²" in audit.verdict_reason or "accurac" not in audit.verdict_reason
    puma = rows[-1]
    assert abs(puma["metrics"]["criterion_drift"]) <= 0.01

    shown = run(workspace, "puma", "compare", "diabetes").stdout
    for name in ("test_r2", "test_mae", "retained_r2", "removed_r2"):
        assert re.search(rf"^ *{name} ", shown, re.MULTILINE), shown
    assert "R²" in run(workspace, "puma", "versions", "diabetes").stdout
    run(workspace, "puma", "audit", "diabetes", str(puma["version"]), codes=(0, 1))
    removed = remove_one(workspace, "diabetes", data, puma["version"])
    assert removed["n_removed"] == puma["n_removed"] + 1
    assert "test_r2" in removed["metrics"]

    for method in DEBUGGED:
        path = tmp_path / f"{method}.csv"
        run(workspace, "puma", "suspects", "diabetes", "--method", method, "--csv", str(path))
        with path.open(newline="") as stream:
            (first, *_) = csv.DictReader(stream)
        given = re.search(r"labelled (\d+\.?\d*); the model says", first["reason"])
        assert given is not None
        row = data.train.subject_ids.tolist().index(first["subject_id"])
        own = data.task.centre + data.task.scale * data.train.labels[row].item()
        assert float(given[1]) == pytest.approx(own, rel=1e-3)
    shown = run(workspace, "puma", "suspects", "diabetes", "--json").stdout
    labels = [each["labelled"] for each in json.loads(shown)["suspects"]]
    assert all(re.fullmatch(r"[+-]\d\.\d sd", label) for label in labels)
    for notebook in ("debug_labels", "compare"):
        run(workspace, "papermill", "-k", "python3", f"notebooks/{notebook}.ipynb",
            f"reports/{notebook}.ipynb", "-p", "dataset", "diabetes")  # fmt: skip
    refused = run(workspace, "papermill", "-k", "python3", "notebooks/calibrate.ipynb",
        "reports/calibrate.ipynb", "-p", "dataset", "diabetes", codes=(1,))  # fmt: skip
    assert "needs classes, and these rows are a regression's" in refused.stderr


def test_two_classes_by_one_logit_with_class_weights(tmp_path: Path) -> None:
    found = load_breast_cancer(as_frame=True)
    table = found.data.iloc[:, :8].assign(
        owner=[f"{row // 2:04d}" for row in range(len(found.data))],
        ill=np.where(found.target == 0, "yes", "no"),
    )
    (tmp_path / "data").mkdir()
    table.to_csv(tmp_path / "data" / "tumours.csv", index=False)
    source = {"path": "data/tumours.csv", "target": "ill", "subject": "owner", "task": "binary"}
    training = TINY["training"] | {"class_weights": {"yes": 3.0}}  # type: ignore[operator]
    settings = {"sources": {"tumours": source}, "training": training}
    workspace, rows = repro(tmp_path, "tumours", settings)
    data = Dataset.load(workspace.data("tumours"))
    assert data.classes == ("no", "yes")
    for row in rows:
        predict = load_predictor(workspace, "tumours", str(row["version"]))
        with torch.no_grad():
            logits = predict(data.test.features)
        assert logits.shape == (len(data.test), 1)
        right = (logits[:, 0] > 0) == (data.test.labels == 1)
        assert row["metrics"]["accuracy"] == pytest.approx(right.double().mean().item())
    record = ModelRecord.read(workspace.model_record("tumours", "original"))
    assert record.parameters["class_weights"] == "yes: 3.0"
    assert abs(rows[-1]["metrics"]["criterion_drift"]) <= 0.01
    assert remove_one(workspace, "tumours", data, rows[-1]["version"])["parent_version"]

    run(workspace, "puma", "suspects", "tumours", "--csv", str(tmp_path / "suspects.csv"))
    reasons = pd.read_csv(tmp_path / "suspects.csv")["reason"]
    assert reasons.str.contains(r"labelled (?:yes|no); the model says (?:yes|no)").all()
    run(workspace, "papermill", "-k", "python3", "notebooks/calibrate.ipynb",
        "reports/calibrate.ipynb", "-p", "dataset", "tumours")  # fmt: skip

    # Other weights are another training: no version of this one is removed from.
    params = loads_yaml((tmp_path / "params.yaml").read_text())
    params["training"]["class_weights"] = "balanced"
    (tmp_path / "params.yaml").write_text(dumps_yaml(params))
    (tmp_path / "requests" / "3.csv").write_text(f"subject_id\n{data.train.subject_ids[-1]}\n")
    named = ("--model", f"models:/puma-tumours/{rows[-1]['version']}", "--deletions")
    refused = run(workspace, "puma", "remove", *named, "requests/3.csv", codes=(2,))
    assert "training.class_weights is 'balanced' in params.yaml" in refused.stderr
