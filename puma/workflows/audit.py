"""``puma audit``: audit a version that the registry holds, not the files of the pipeline."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from puma.audit import AuditReport, Predictions, audit_removal
from puma.data import Dataset
from puma.errors import AuditError
from puma.lineage.audits import load_evidence
from puma.lineage.models import load_deletion_set
from puma.models.tasks import likelihood_of
from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, Registry
from puma.registry.versions import choose_version
from puma.requests.archive import find_data, find_request
from puma.settings import original_of

BATCH = 64


def audit_version(
    workspace: Workspace, dataset: str, version_or_alias: str | int, *, progress: bool = False
) -> tuple[RegisteredVersion, AuditReport]:
    """Audit a registered version by the predictions of the registered models themselves.

    It is compared with its parent; an original is its own. A removal is audited for the request
    that it was made for, an original for the current one of the dataset.

    Raises:
        RegistryError: There is no such version, or it cannot be loaded.
        AuditError: The version was not registered by PUMA, its parent is gone, or the pipeline
            has not trained what the audit compares with.
        DataError: The project does not hold its data or its request.
    """
    registry = Registry.open(workspace)
    versions = registry.versions(dataset)
    version = choose_version(versions, dataset, version_or_alias)
    if not version.method:
        raise AuditError(
            f"version {version.version} of {dataset!r} was not registered by PUMA, so that "
            f"nothing says what it was trained on; audit one that `puma versions {dataset}` lists "
            "with a method"
        )
    number = version.version if version.parent_version is None else version.parent_version
    parent = next((each for each in versions if each.version == number), None)
    if parent is None:
        raise AuditError(
            f"version {version.version}'s parent, version {number}, is not registered any more, "
            "and an audit compares the predictions of both; the audit that was made when it was "
            "is in the certificate"
        )
    data = find_data(workspace, dataset, version.data_digest)
    if version.deletion_digest is None:
        deletion_set = load_deletion_set(workspace, data)
    else:
        deletion_set = find_request(workspace, data, version.deletion_digest)
    after = _logits(registry.load_predictor(version), data)
    before = after if parent is version else _logits(registry.load_predictor(parent), data)
    labels = torch.cat([data.train.labels, data.test.labels])
    predictions = Predictions(before, after, labels, np.arange(len(labels)), data.task)
    evidence = load_evidence(
        workspace, deletion_set, original_of(version.method), progress=progress
    )
    settings = workspace.settings.audit
    return version, audit_removal(predictions, data, deletion_set, evidence, settings)


def _logits(predict: Callable[[Tensor], Tensor], data: Dataset) -> Tensor:
    """(n, classes) float64, training rows first, in small batches; see ``Predictions``."""
    parts = (data.train.features, data.test.features)
    found = torch.cat([predict(rows) for part in parts for rows in part.split(BATCH)]).double()
    return likelihood_of(data.task).predictions(found)
