"""Toy projects whose removals may serve: audited as passed, within their budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from puma.lineage.records import ModelRecord
from puma.project.workspace import Workspace
from puma.registry import register_all
from puma.settings import ORIGINAL
from tests.registry.projects import (
    DATASET,
    DELETION,
    METHODS,
    copy_store,
    make_project,
    write_audit,
    write_version,
)

BUDGET, DRIFT = 0.01, -0.0025


def amend(
    workspace: Workspace,
    method: str,
    *,
    parameters: dict[str, str | int | float] | None = None,
    **metrics: float,
) -> ModelRecord:
    """The receipt of ``method`` with more in it."""
    path = workspace.model_record(DATASET, method)
    receipt = ModelRecord.read(path)
    amended = receipt.model_copy(
        update={
            "metrics": {**receipt.metrics, **metrics},
            "parameters": {**receipt.parameters, **(parameters or {})},
        }
    )
    amended.write(path)
    return amended


def servable_project(template: Workspace, root: Path) -> Workspace:
    """A project of :func:`make_servable` at ``root``, with a copy of the ``template``'s store."""
    workspace = make_project(root)
    copy_store(template, workspace)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        make_servable(workspace)
    return workspace


def make_servable(workspace: Workspace, *, drift: float = DRIFT) -> None:
    """Versions 1 original, 2 retrain, 3 puma; nothing speaks against the removals."""
    amend(workspace, "puma", parameters={"budget": BUDGET}, criterion_drift=drift)
    amend(workspace, "retrain", criterion_drift=0.0625)
    for method in METHODS:
        write_audit(workspace, method, verdict="passed", reason="like retraining")
    register_all(workspace, progress=False)


def answer(
    workspace: Workspace, deletion: str, *, n_removed: int, seed: int, made_from: str = ORIGINAL
) -> None:
    """Two more versions, retrain and puma, for another request; both passed."""
    original = ModelRecord.read(workspace.model_record(DATASET, made_from))
    for place, method in enumerate(METHODS):
        write_version(
            workspace, method, weights_seed=seed + place, parent=original, deletion=deletion
        )
        path = workspace.model_record(DATASET, method)
        ModelRecord.read(path).model_copy(update={"n_removed": n_removed}).write(path)
    write_audit(workspace, ORIGINAL, deletion=deletion)
    make_servable(workspace)


__all__ = ["BUDGET", "DELETION", "DRIFT", "amend", "answer", "make_servable"]
