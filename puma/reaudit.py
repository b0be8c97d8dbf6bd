"""Auditing what the registry serves, not what the pipeline left on disk."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from puma.audit import AuditReport, answers_to, audit_removal
from puma.auditing import load_evidence
from puma.data import Dataset
from puma.deletion import project_key
from puma.errors import AuditError
from puma.pipeline import load_deletion_set
from puma.registry import VersionRow, load_predictor, open_store
from puma.registry.versions import find_row
from puma.settings import original_of
from puma.workspace import Workspace

BATCH = 64


def audit_version(
    workspace: Workspace, dataset: str, version_or_alias: str | int
) -> tuple[VersionRow, AuditReport]:
    """Audit a registered version by the answers of the registered models themselves.

    Its parent is asked too; an original is its own. The request is the current one of the
    dataset, which a removal must have been made for.

    Raises RegistryError when there is no such version or it cannot be loaded, and AuditError
    when it was not registered by PUMA, or from other data or for another request than the
    project holds now.
    """
    row = find_row(open_store(workspace), dataset, version_or_alias)
    if not row.method:
        raise AuditError(
            f"version {row.version} of {dataset!r} was not registered by PUMA, so that nothing "
            "says what it was trained on; audit one that `puma versions` lists with a method"
        )
    data = Dataset.load(workspace.data(dataset))
    if row.data_digest != data.digest:
        raise AuditError(
            f"version {row.version} of {dataset!r} was trained on other data than "
            f"{workspace.data(dataset)} holds now; check out the data of that version"
        )
    deletion_set = load_deletion_set(workspace, data)
    if row.deletion_digest not in (None, deletion_set.digest(project_key(workspace.key))):
        raise AuditError(
            f"version {row.version} of {dataset!r} answers another request than the one in "
            f"{workspace.deletion_set(dataset)}; put that version's request back and run "
            "`dvc repro`"
        )
    after = _logits(load_predictor(workspace, dataset, row.version), data)
    before = after
    if row.parent_version is not None:
        before = _logits(load_predictor(workspace, dataset, row.parent_version), data)
    answers = answers_to(before, after, data)
    evidence = load_evidence(workspace, dataset, original_of(row.method))
    return row, audit_removal(answers, data, deletion_set, evidence, workspace.settings.audit)


def _logits(predict: Callable[[Tensor], Tensor], data: Dataset) -> Tensor:
    """(n, classes) float64, training rows first, in small batches."""
    parts = (data.train.features, data.test.features)
    return torch.cat([predict(rows) for part in parts for rows in part.split(BATCH)]).double()
