"""What the audit stage reads and writes.

It is apart from the models, so that a change of the audit does not train models again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from puma.audit import AuditReport, Evidence, LiRA, Population, ShadowAttack, without
from puma.audit.evidence import (
    WITH,
    WITHOUT,
    evidence_source,
    predict_without,
    train_references,
    train_without,
)
from puma.errors import AuditError, DataError
from puma.lineage.models import load_pool
from puma.lineage.records import FIRST_METRICS, AuditRecord, ModelRecord
from puma.project.files import write_json
from puma.project.workspace import Workspace
from puma.references import Pool
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key
from puma.settings import ORIGINAL


def load_evidence(
    workspace: Workspace,
    deletion_set: DeletionSet,
    original: str = ORIGINAL,
    *,
    pool: Pool | None = None,
    progress: bool = True,
) -> Evidence:
    """Load what audits of ``deletion_set`` compare with.

    The shadow and reference stages made it. Only where the models without the rows are of another
    request, they are predicted or trained here.

    Args:
        workspace: The project.
        deletion_set: The audited request.
        original: The original that the audited version was made from.
        pool: The pool of the plain original, where it is loaded already.
        progress: Whether to show a bar while models are trained.

    Raises:
        AuditError: The models are absent, or not as many as params.yaml says.
    """
    data = deletion_set.dataset
    settings = workspace.settings.for_dataset(data.name)
    source = evidence_source(original, settings)
    evidence = Evidence(
        ShadowAttack.load(workspace.attack(data.name)),
        LiRA(Population.load(workspace.shadows(data.name))),
        Population.load(workspace.reference(data.name, original, WITH)),
        Population.load(workspace.reference(data.name, original, WITHOUT)),
        source,
    )
    wanted = (
        settings.pool.everybody if source == "pool" else settings.audit.models,
        settings.audit.shadow_models,
    )
    trained = (len(evidence.with_rows), len(evidence.lira.shadows))
    if trained != wanted:
        raise AuditError(
            f"there are {trained[0]} models of everybody and {trained[1]} shadow models for the "
            f"audits of {data.name!r}, and params.yaml wants {wanted[0]} and {wanted[1]}; run "
            "`dvc repro` to train them"
        )
    expected = without(data, deletion_set, len(evidence.without_rows))
    if np.array_equal(evidence.without_rows.member, expected):
        return evidence
    if source == "pool":
        pool = pool or load_pool(workspace, data)
        rest = predict_without(pool, deletion_set, settings, progress=progress)
    else:
        rest = train_without(data, deletion_set, original, settings, progress=progress)
    return replace(evidence, without_rows=rest)


def make_references(
    workspace: Workspace,
    deletion_set: DeletionSet,
    original: str = ORIGINAL,
    *,
    progress: bool = True,
) -> tuple[Population, Population]:
    """What the reference stage stores: models with the rows and without them.

    The pool of the plain original predicts them, or they are trained, see
    :func:`puma.audit.evidence.evidence_source`.

    Returns:
        :attr:`Evidence.with_rows` and :attr:`Evidence.without_rows`.

    Raises:
        AuditError: There is no pool, or it is of other data.
    """
    data = deletion_set.dataset
    settings = workspace.settings.for_dataset(data.name)
    if evidence_source(original, settings) == "pool":
        pool = load_pool(workspace, data)
        return pool.everybody, predict_without(pool, deletion_set, settings, progress=progress)
    return train_references(data, deletion_set, original, settings, progress=progress)


def audit_record(report: AuditReport, weights_digest: str, deletion_digest: str) -> AuditRecord:
    """Describe ``report``, of these weights and this request, without the data of its plots."""
    return AuditRecord(
        weights_digest=weights_digest,
        deletion_digest=deletion_digest,
        verdict=report.verdict.name,
        verdict_reason=report.verdict.reason,
        metrics=report.metrics,
        evidence=report.evidence,
        unresolved=report.unresolved,
    )


def record_audit(
    workspace: Workspace, version: str, deletion_set: DeletionSet, report: AuditReport
) -> None:
    """Write the audit of ``version``, and its first metrics for `dvc metrics`.

    Raises:
        DataError: The version was made for another request. Nothing is written.
    """
    name = deletion_set.dataset.name
    record = ModelRecord.read(workspace.model_record(name, version))
    digest = deletion_set.digest(project_key(workspace.key))
    if record.deletion_digest not in (None, digest):
        raise DataError(
            f"{name}: {version} answers another request than the one in "
            f"{workspace.deletion_set(name)}; run `dvc repro` to remove these rows first"
        )
    audit_record(report, record.weights_digest, digest).write(workspace.audit(name, version))
    metrics = {**record.metrics, **report.metrics}
    shown = {each: metrics[each] for each in FIRST_METRICS if each in metrics}
    write_json(workspace.metrics(name, version), {"verdict": report.verdict.name, **shown})
