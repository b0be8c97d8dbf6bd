"""Auditing what the registry serves, not what the pipeline left on disk."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from puma.audit import AuditReport, audit_removal, predictions_from_logits
from puma.data import Dataset
from puma.errors import AuditError
from puma.lineage.audits import evidence_for
from puma.lineage.models import load_deletion_set
from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, list_versions, load_predictor, open_store
from puma.registry.store import reaches_store
from puma.registry.versions import choose_version
from puma.requests.archive import find_data, find_request
from puma.settings import original_of

BATCH = 64


@reaches_store
def audit_version(
    workspace: Workspace, dataset: str, version_or_alias: str | int, *, progress: bool = False
) -> tuple[RegisteredVersion, AuditReport]:
    """Audit a registered version by the answers of the registered models themselves.

    Its parent is asked too; an original is its own. The request is the one that a removal was
    made for; of an original, the current one of the dataset.

    Raises RegistryError when there is no such version or it cannot be loaded, AuditError when it
    was not registered by PUMA, and DataError when the project does not hold its data or request.
    """
    rows = list_versions(open_store(workspace), dataset)
    row = choose_version(rows, dataset, version_or_alias)
    if not row.method:
        raise AuditError(
            f"version {row.version} of {dataset!r} was not registered by PUMA, so that nothing "
            "says what it was trained on; audit one that `puma versions` lists with a method"
        )
    if row.parent_version not in {None, *(each.version for each in rows)}:
        raise AuditError(
            f"version {row.version}'s parent, version {row.parent_version}, is not registered any "
            "more, and an audit compares the answers of both; the audit that was made when it was "
            "is in the certificate"
        )
    data = find_data(workspace, dataset, row.data_digest)
    if row.deletion_digest is None:
        deletion_set = load_deletion_set(workspace, data)
    else:
        deletion_set = find_request(workspace, data, row.deletion_digest)
    after = _logits(load_predictor(workspace, dataset, row.version), data)
    before = after
    if row.parent_version is not None:
        before = _logits(load_predictor(workspace, dataset, row.parent_version), data)
    answers = predictions_from_logits(before, after, data)
    evidence = evidence_for(workspace, deletion_set, original_of(row.method), progress=progress)
    return row, audit_removal(answers, data, deletion_set, evidence, workspace.settings.audit)


def _logits(predict: Callable[[Tensor], Tensor], data: Dataset) -> Tensor:
    """(n, classes) float64, training rows first, in small batches."""
    parts = (data.train.features, data.test.features)
    return torch.cat([predict(rows) for part in parts for rows in part.split(BATCH)]).double()
