"""The direct path: one deletion request, answered on a registered version."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from puma import plots
from puma.audit import AuditReport, audit_removal, predict_dataset
from puma.errors import RegistryError
from puma.lineage.audits import evidence_for
from puma.lineage.models import removal_record
from puma.lineage.records import BEFORE, RETRAIN, ModelIdentity, ModelRecord
from puma.models import new_model
from puma.project.files import sha256
from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, list_versions, model_name, open_store
from puma.registry.creation import Draft
from puma.registry.loading import load_identity, load_module
from puma.registry.registration import find_answer, register_answer
from puma.registry.removal_history import RemovalHistory, history_of
from puma.registry.store import reaches_store
from puma.registry.tombstones import erased_before
from puma.registry.versions import RETRAIN_DUE, choose_version, find_fingerprint
from puma.removal import Removal, RemovalMethod, Trained
from puma.requests.archive import archive_request, find_data, read_cumulative_request
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key
from puma.workflows.preconditions import (
    refuse_broken_record,
    refuse_lost_key,
    refuse_other_kinds,
    refuse_other_training,
    remover_of,
)

Outcome = Literal["registered", "in place", "nothing left"]


@dataclass(frozen=True)
class Answer:
    """What became of a request.

    outcome: "registered" as a new version; "in place", since the same request was answered so
        before; "nothing left" to remove, as ``parent`` was without all of its people already.
    row: the version that answers it. compared: its parent, and what was retrained for the same
        people, if anything was.
    n_rows, n_subjects: removed for this request, beyond those whom the parent was without.
    sequence: removals since the last full training. due: why one is due, or None.
    seconds: wall time of the whole, from the request to the version.
    """

    dataset: str
    outcome: Outcome
    row: RegisteredVersion
    compared: tuple[RegisteredVersion, ...]
    n_rows: int
    n_subjects: int
    sequence: RemovalHistory
    due: str | None
    seconds: float


@reaches_store
def answer(
    workspace: Workspace,
    dataset: str,
    version_or_alias: str | int,
    request: Path,
    *,
    method: str = "puma",
    budget: float | None = None,
    progress: bool = True,
) -> Answer:
    """Remove the people of ``request`` from a registered version, audit, and register the result.

    The new version is without them and without everybody whom its parent was without: its
    deletion set, digest and audit are of them all. ``budget`` (nats) bounds what this removal may
    move the retained rows' mean loss by. The same request to the same version is answered once.

    Raises RegistryError for a version that is not there, was not registered by PUMA or has a
    record that does not hold, and for what would bring an erased one back; DataError
    when the project does not hold its data or the earlier request, DeletionError for a request
    that cannot be honoured, ModelError and SettingsError for a version or a method that the direct
    path has no way with, AuditError without the pipeline's evidence. Nothing is registered then.
    """
    start = time.perf_counter()
    settings = workspace.settings
    client = open_store(workspace)
    rows = list_versions(client, dataset)
    parent = choose_version(rows, dataset, version_or_alias)
    found = client.get_model_version(model_name(dataset), str(parent.version))
    identity = load_identity(client, found)
    remover = remover_of(method, settings, seed=identity.seed, budget=budget)
    refuse_other_kinds(identity, parent)
    refuse_broken_record(client, dataset, found)
    refuse_lost_key(workspace, rows)
    data = find_data(workspace, dataset, identity.data_digest)
    people = read_cumulative_request(workspace, request, data, identity.deletion_digest)

    def answered(outcome: Outcome, number: int) -> Answer:
        now = list_versions(client, dataset)
        row = choose_version(now, dataset, number)
        reached = history_of(row)
        others = [each for each in now if _stands_beside(each, row)]
        return Answer(
            dataset,
            outcome,
            row,
            tuple(others),
            people.n_rows,
            people.n_subjects,
            reached,
            reached.retraining_reason(settings.retrain_after),
            time.perf_counter() - start,
        )

    if people.new is None:
        return answered("nothing left", parent.version)
    key = _idempotency_key(workspace, identity, people.everybody, remover)
    known = find_answer(client, dataset, key)
    if known is not None:
        return answered("in place", known)
    refuse_other_training(workspace, rows, parent, identity)
    # What is taken to a level once drifts from it as others are removed, and is taken there again.
    marked = people.everybody if remover.idempotent else people.new
    model = load_module(client, found, workspace)
    initial = new_model(identity.model, identity.shape, len(data.classes), seed=identity.seed)
    trained = Trained(model, marked.dataset, initial)
    removal = remover.remove(trained, marked, progress=progress)
    receipt = removal_record(removal, people.everybody, identity, project_key(workspace.key))
    twin = find_fingerprint(client, dataset, receipt.fingerprint)
    if twin is not None:  # the pipeline made it
        return answered("in place", int(twin.version))
    erased = erased_before(client, receipt)
    if erased is not None:
        raise RegistryError(
            f"this is the model that was erased as version {erased.version} on {erased.when}: it "
            f"is not registered again; remove from a version that is without more people, such as "
            f"models:/{model_name(dataset)}@champion"
        )
    before, report = _audit(workspace, model, removal, people.everybody, progress=progress)
    reached = history_of(parent).after(method, removal.criterion_drift)
    receipt = _audited(receipt, before, report, reached)
    if people.earlier is not None:
        archive_request(workspace, people.earlier)
    archive_request(workspace, people.everybody)
    with tempfile.TemporaryDirectory(prefix="puma-") as folder:
        _draw(report, (parent.method, method), Path(folder))
        due = reached.retraining_reason(settings.retrain_after)
        tags = {} if due is None else {RETRAIN_DUE: due}
        draft = Draft(receipt, removal.predictor.cpu().eval(), Path(folder), tags)
        number, created = register_answer(workspace, draft, key)
    return answered("registered" if created else "in place", number)


def _stands_beside(other: RegisteredVersion, row: RegisteredVersion) -> bool:
    """Whether ``row`` is best read beside ``other``: its parent, or the same by retraining."""
    if other.version == row.parent_version:
        return True
    same = other.deletion_digest is not None and other.deletion_digest == row.deletion_digest
    return same and other.method == RETRAIN and other.version != row.version


def _idempotency_key(
    workspace: Workspace, parent: ModelIdentity, everybody: DeletionSet, remover: RemovalMethod
) -> str:
    """Names the removal before it is made: from what, of whom, and how."""
    asked = {
        "parent": parent.fingerprint,
        "deletion": everybody.digest(project_key(workspace.key)),
        "method": remover.method,
        "settings": remover.model_dump(mode="json"),
    }
    return sha256(json.dumps(asked, sort_keys=True).encode())


def _audit(
    workspace: Workspace,
    parent: nn.Module,
    removal: Removal,
    everybody: DeletionSet,
    *,
    progress: bool,
) -> tuple[AuditReport, AuditReport]:
    """Of the parent and of the new model, for the same people."""
    data, settings = everybody.dataset, workspace.settings.audit
    evidence = evidence_for(workspace, everybody, progress=progress)
    before, after = (
        audit_removal(predict_dataset(model, data, parent), data, everybody, evidence, settings)
        for model in (parent, removal.predictor)
    )
    return before, after


def _audited(
    receipt: ModelRecord, before: AuditReport, report: AuditReport, reached: RemovalHistory
) -> ModelRecord:
    """``receipt`` with all that was measured."""
    metrics = {
        **receipt.metrics,
        **report.metrics,
        **{f"{name}_before": before.metrics[name] for name in BEFORE if name in before.metrics},
        **reached.metrics,
    }
    return receipt.model_copy(
        update={
            "metrics": metrics,
            "verdict": report.verdict.name,
            "verdict_reason": report.verdict.reason,
            "unresolved": tuple(sorted(report.unresolved)),
        }
    )


def _draw(report: AuditReport, titles: tuple[str, str], folder: Path) -> None:
    """The pictures that the audit stage draws."""
    pictures = report.pictures
    figures = {
        "margins": plots.margins_against_retraining(pictures.margins),
        "losses": plots.loss_distributions(
            pictures.losses_before, pictures.losses_after, titles=titles
        ),
        "roc": plots.roc_curves(pictures.scores, pictures.retrained_scores),
    }
    plots.save(figures, folder)
