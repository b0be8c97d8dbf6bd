"""Tiny projects: weights, receipts and metrics as the pipeline's stages would leave them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from puma.lineage.records import AuditRecord, ModelRecord
from puma.models import mlp, save_weights, weights_digest
from puma.project.workspace import Workspace
from puma.settings import ORIGINAL, ModelSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient

DATASET = "toy"
FEATURES = 4
CLASSES = ("bad", "good")
MODEL = ModelSettings(hidden=(8,))
METHODS = ("retrain", "puma")
DATA_DIGEST = "d" * 64
DELETION = "e1" * 32
OTHER_DELETION = "e2" * 32
ATTACK_RATES = {"original": 0.75, "retrain": 0.5, "puma": 0.625}
ACCURACIES = {"original": 0.75, "retrain": 0.5, "puma": 0.7}
SECONDS = {"original": 2.0, "retrain": 1.5, "puma": 0.25}
VERDICTS = {"original": "forgetting_incomplete", "retrain": "passed", "puma": "over_forgotten"}
PICTURES = ("losses", "margins", "roc")


def make_project(root: Path) -> Workspace:
    """A project with one dataset, whose original, retrained and PUMA models are all there."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "params.yaml").write_text(
        f"datasets: [{DATASET}]\noriginals: [original]\nmethods: [retrain, puma]\n"
        "versions: [original, retrain, puma]\n"
        "marking: {clusters: 3}\n"
    )
    workspace = Workspace(root.resolve())
    original = write_version(workspace, ORIGINAL, weights_seed=0)
    for seed, method in enumerate(METHODS, start=1):
        write_version(workspace, method, weights_seed=seed, parent=original, deletion=DELETION)
    return workspace


def write_version(
    workspace: Workspace,
    method: str,
    *,
    weights_seed: int,
    parent: ModelRecord | None = None,
    deletion: str | None = None,
    architecture: ModelSettings = MODEL,
    model: nn.Module | None = None,
) -> ModelRecord:
    """The weights, the receipt, and the audit of one version with its pictures."""
    model = model or make_model(weights_seed)
    path = workspace.weights(DATASET, method)
    save_weights(model, path)
    receipt = ModelRecord(
        dataset=DATASET,
        method=method,
        seed=7,
        data_digest=DATA_DIGEST,
        weights_digest=weights_digest(model),
        predictions_digest=f"{weights_seed:064d}",
        weights=str(path.relative_to(workspace.root)),
        model=architecture,
        shape=(FEATURES,),
        classes=CLASSES,
        parent=parent.fingerprint if parent else None,
        deletion_digest=deletion,
        n_removed=0 if parent is None else 3,
        n_subjects=0 if parent is None else 2,
        parameters={"damping": 0.1} if method == "puma" else {},
        metrics={
            "accuracy": ACCURACIES.get(method, 0.6),
            "runtime_seconds": SECONDS.get(method, 1),
        },
        loss_curve=(0.7, 0.5, 0.4),
    )
    receipt.write(workspace.model_record(DATASET, method))
    write_audit(workspace, method, attack_rate=ATTACK_RATES.get(method, 0.6))
    return receipt


def write_audit(
    workspace: Workspace,
    method: str,
    *,
    deletion: str | None = None,
    verdict: str | None = None,
    reason: str = "as expected",
    pictures: str = "first",
    unresolved: tuple[str, ...] = (),
    **metrics: float,
) -> None:
    """The audit of the weights that ``method`` has now; its pictures show ``pictures``."""
    receipt = ModelRecord.read(workspace.model_record(DATASET, method))
    AuditRecord(
        weights_digest=receipt.weights_digest,
        deletion_digest=deletion or receipt.deletion_digest or DELETION,
        verdict=verdict or VERDICTS.get(method, "inconclusive"),
        verdict_reason=reason,
        metrics=metrics,
        unresolved=dict.fromkeys(unresolved, "too few rows"),
    ).write(workspace.audit(DATASET, method))
    for name in PICTURES:
        path = workspace.figures(DATASET, method) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(method, name, pictures))


def picture(method: str, name: str, shown: str = "first") -> bytes:
    """What :func:`write_audit` draws: its file tells whose picture it is."""
    return b"\x89PNG\r\n\x1a\n" + f"{name} of {method}, {shown}".encode()


def make_model(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp(FEATURES, len(CLASSES), MODEL.hidden)


def copy_store(template: Workspace, workspace: Workspace) -> None:
    """The store of ``template`` with all its files for ``workspace``, quicker than making one."""
    from mlflow.tracking._tracking_service.utils import _artifact_repos_cache

    _artifact_repos_cache.clear()  # it knows runs by their ids alone, which the copy keeps
    shutil.copy(template.root / "mlflow.db", workspace.root / "mlflow.db")
    if (template.root / "mlruns").exists():
        shutil.copytree(template.root / "mlruns", workspace.root / "mlruns", dirs_exist_ok=True)
    move_store(workspace, template.root.as_uri())


def move_store(workspace: Workspace, made_at: str) -> None:
    """Let the store find its files here. ``made_at``: the URI of the project it was made in."""
    places = {
        "experiments": "artifact_location",
        "runs": "artifact_uri",
        "logged_models": "artifact_location",
        "model_versions": "storage_location",
    }
    for table, column in places.items():
        execute(
            workspace,
            f"UPDATE {table} SET {column} = replace({column}, ?, ?)",
            (made_at, workspace.root.as_uri()),
        )


def execute(workspace: Workspace, statement: str, values: tuple[str, ...] = ()) -> None:
    with closing(sqlite3.connect(workspace.root / "mlflow.db")) as connection, connection:
        connection.execute(statement, values)


def start_python(code: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """A fresh interpreter that runs ``code`` in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**kept, "MLFLOW_DISABLE_TELEMETRY": "true", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(code: str, folder: Path, **environment: str) -> str:
    """The standard output of :func:`start_python`, which must succeed."""
    process = start_python(code, folder, **environment)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def exported_model(client: MlflowClient, name: str, version: str) -> Path:
    """The file of a registered version's exported graph, in a store of this machine."""
    source = client.get_model_version(name, version).source
    logged = client.get_logged_model(source.removeprefix("models:/"))
    (found,) = Path(logged.artifact_location.removeprefix("file://")).rglob("model.pt2")
    return found
