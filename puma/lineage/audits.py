"""What the audit stage reads and writes. Apart from the rest of the pipeline, so that a change of
the audit does not train models again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from puma.audit import AuditReport, Evidence, LiRA, Population, ShadowAttack, without
from puma.audit.evidence import WITH, WITHOUT, train_without
from puma.errors import AuditError, DataError
from puma.lineage.records import AuditRecord, ModelRecord
from puma.project.files import write_json
from puma.project.workspace import Workspace
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key
from puma.settings import ORIGINAL


def load_evidence(workspace: Workspace, name: str, original: str = ORIGINAL) -> Evidence:
    """What the shadow and reference stages trained for audits of ``original`` and its removals."""
    return Evidence(
        ShadowAttack.load(workspace.attack(name)),
        LiRA(Population.load(workspace.shadows(name))),
        Population.load(workspace.reference(name, original, WITH)),
        Population.load(workspace.reference(name, original, WITHOUT)),
    )


def evidence_for(
    workspace: Workspace,
    deletion_set: DeletionSet,
    original: str = ORIGINAL,
    *,
    progress: bool = True,
) -> Evidence:
    """What audits of ``deletion_set`` compare with, whatever request the pipeline answers.

    Models without its rows are trained where those of the reference stage answer another one;
    all the others are the stages'. Raises AuditError when those are absent, or not as many as
    params.yaml says.
    """
    data, settings = deletion_set.dataset, workspace.settings
    evidence = load_evidence(workspace, data.name, original)
    audit = settings.audit
    trained = (len(evidence.with_rows), len(evidence.lira.shadows))
    if trained != (audit.models, audit.shadow_models):
        raise AuditError(
            f"there are {trained[0]} models of everybody and {trained[1]} shadow models for the "
            f"audits of {data.name!r}, and params.yaml wants {audit.models} and "
            f"{audit.shadow_models}; run `dvc repro` to train them"
        )
    expected = without(data, deletion_set, audit.models)
    if np.array_equal(evidence.without_rows.member, expected):
        return evidence
    rest = train_without(data, deletion_set, original, settings, progress=progress)
    return replace(evidence, without_rows=rest)


def record_audit(
    workspace: Workspace, version: str, deletion_set: DeletionSet, report: AuditReport
) -> None:
    """Save what the audit of ``version`` found, with the weights and the request it is about.

    Raises DataError, with nothing written, when the version was made for another request.
    """
    name = deletion_set.dataset.name
    receipt = ModelRecord.read(workspace.model_record(name, version))
    digest = deletion_set.digest(project_key(workspace.key))
    if receipt.deletion_digest not in (None, digest):
        raise DataError(
            f"{name}: {version} answers another request than the one in "
            f"{workspace.deletion_set(name)}; run `dvc repro` to remove these rows first"
        )
    record = AuditRecord(
        weights_digest=receipt.weights_digest,
        deletion_digest=digest,
        verdict=report.verdict.name,
        verdict_reason=report.verdict.reason,
        metrics=report.metrics,
        unresolved=report.unresolved,
    )
    record.write(workspace.audit(name, version))
    shown = {"verdict": report.verdict.name, **receipt.metrics, **report.metrics}
    write_json(workspace.metrics(name, version), shown)
