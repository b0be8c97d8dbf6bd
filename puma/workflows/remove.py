"""``puma remove``: one deletion request, answered on a registered version."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from puma import plots
from puma.audit import AuditReport, Verdict, audit_removal, judge_rows, predict
from puma.errors import RegistryError
from puma.lineage.audits import audit_record, load_evidence
from puma.lineage.models import initial_model, load_pool, removal_record
from puma.lineage.records import RETRAIN, ModelIdentity, ModelRecord, with_audit
from puma.project.files import sha256
from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, Registry
from puma.registry.creation import Draft
from puma.registry.removal_history import RemovalHistory, history_of
from puma.registry.versions import REQUEST_VERDICT, RETRAIN_DUE, choose_version
from puma.removal import Removal, RemovalMethod, Trained
from puma.requests.archive import (
    CumulativeRequest,
    archive_request,
    find_data,
    read_cumulative_request,
)
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key
from puma.workflows.preconditions import (
    refuse_broken_record,
    refuse_lost_key,
    refuse_other_kinds,
    refuse_other_training,
    removal_method,
)
from puma.workflows.ranks import Ranks

Outcome = Literal["registered", "in place", "nothing left"]


@dataclass(frozen=True)
class RemovalOutcome:
    """What became of a request.

    Attributes:
        dataset: The dataset.
        outcome: "registered" as a new version; "in place", since the same request has a version
            already; "nothing left", since the parent was without all of its people.
        version: The version that answers the request.
        compared: Its parent, and the version retrained for the same people, if there is one.
        n_rows: Rows removed for this request, without those removed before.
        n_subjects: The people whose rows these are.
        history: The removals since the last full training.
        retrain_due: Why a full training is due; None while it is not.
        seconds: Wall time from the request to the version.
    """

    dataset: str
    outcome: Outcome
    version: RegisteredVersion
    compared: tuple[RegisteredVersion, ...]
    n_rows: int
    n_subjects: int
    history: RemovalHistory
    retrain_due: str | None
    seconds: float

    @property
    def request_verdict(self) -> str | None:
        """The verdict, and its reason, on the people whom the version removed from its parent.

        The version's own verdict is on everybody whom it is without. None for a removal from an
        original, where both are the same people.
        """
        return self.version.tags.get(REQUEST_VERDICT)


def remove_request(
    workspace: Workspace,
    dataset: str,
    version_or_alias: str | int,
    request: Path,
    *,
    method: str = "puma",
    budget: float | None = None,
    seed: int | None = None,
    progress: bool = True,
    ranks: Ranks | None = None,
) -> RemovalOutcome:
    """Remove the people of ``request`` from a registered version, audit, and register the result.

    The new version is without them and without everybody whom its parent was without. Its
    deletion set, its digest and its audit are of them all. The same request to the same version
    is answered once.

    Args:
        workspace: The project.
        dataset: Its dataset.
        version_or_alias: The version to remove from.
        request: A CSV of subject ids.
        method: A method that needs no more than a model and its data.
        budget: By how much (nats) this removal may move the mean loss of the retain set; that of
            params.yaml if None.
        seed: Of what the method draws, and of the weights that a training starts from; that of
            the version if None. Retraining with another seed is another model of the same people.
        progress: Whether to show bars.
        ranks: Of which this is the first; the others :meth:`~puma.workflows.ranks.Ranks.help`.

    Raises:
        RegistryError: The version is not there, was not registered by PUMA, has a record that
            does not hold, or would bring an erased version back.
        DataError: The project does not hold the version's data or its earlier request.
        DeletionError: The request cannot be honoured.
        ModelError: The version needs a method that the registry has no records for.
        SettingsError: The method, the budget or the settings do not fit.
        AuditError: The pipeline has not trained what the audit compares with.
        RankError: Another of the ``ranks`` has failed.

        In all of these cases nothing is registered.
    """
    start = time.perf_counter()
    settings = workspace.settings.for_dataset(dataset)
    registry = Registry.open(workspace)
    versions = registry.versions(dataset)
    parent = choose_version(versions, dataset, version_or_alias)
    identity = registry.identity(parent)
    remover = removal_method(
        method, settings, seed=identity.seed if seed is None else seed, budget=budget
    )
    refuse_other_kinds(identity, parent)
    refuse_broken_record(registry, parent)
    refuse_lost_key(workspace, versions)
    data = find_data(workspace, dataset, identity.data_digest)
    people = read_cumulative_request(workspace, request, data, identity.deletion_digest)

    def outcome_of(outcome: Outcome, number: int) -> RemovalOutcome:
        current = registry.versions(dataset)
        version = choose_version(current, dataset, number)
        history = history_of(version)
        return RemovalOutcome(
            dataset,
            outcome,
            version,
            tuple(each for each in current if _is_compared(each, version)),
            people.n_rows,
            people.n_subjects,
            history,
            history.retraining_reason(settings.retrain_after),
            time.perf_counter() - start,
        )

    if people.new is None:
        return outcome_of("nothing left", parent.version)
    key = _idempotency_key(workspace, identity, people.everybody, remover)
    known = registry.find_removal(dataset, key)
    if known is not None:
        return outcome_of("in place", known.version)
    refuse_other_training(registry, versions, parent, identity)
    # A method that moves rows to target margins has to move the earlier ones again: removing
    # others lets them drift.
    forget_set = people.everybody if remover.idempotent else people.new
    model = registry.load_module(parent)
    initial = initial_model(identity.model_copy(update={"seed": remover.seed}))
    pooled = remover.uses_pool or settings.audit.evidence == "pool"
    pool = load_pool(workspace, data) if pooled else None
    trained = Trained(model, forget_set.dataset, initial, pool=pool)
    if ranks is None:
        removal = remover.remove(trained, forget_set, progress=progress)
    else:
        removal = ranks.remove(remover, trained, identity, forget_set, progress=progress)
    record = removal_record(removal, people.everybody, identity, project_key(workspace.key))
    record = record.model_copy(update={"seed": remover.seed})
    same = registry.find(dataset, record.fingerprint)
    if same is not None:  # the pipeline made it
        return outcome_of("in place", same.version)
    erased = registry.erased_before(record)
    if erased is not None:
        raise RegistryError(
            f"this is the model that was erased as version {erased.version} on {erased.when}: it "
            f"is not registered again; add --seed {remover.seed + 1} --method {RETRAIN}, which "
            "makes another, or remove from a version that is without more people"
        )
    before, report, alone = _audit(workspace, trained, removal, people, progress=progress)
    history = history_of(parent).after(method, removal.criterion_drift)
    record = _with_measurements(record, before, report, history, versions)
    if people.earlier is not None:
        archive_request(workspace, people.earlier)
    archive_request(workspace, people.everybody)
    with tempfile.TemporaryDirectory(prefix="puma-") as folder:
        plots.save(plots.audit_figures(report.plot_data, (parent.method, method)), Path(folder))
        due = history.retraining_reason(settings.retrain_after)
        tags = {} if due is None else {RETRAIN_DUE: due}
        if alone is not None:
            tags[REQUEST_VERDICT] = f"{alone.name}: {alone.reason}"
        draft = Draft(record, removal.predictor.cpu().eval(), Path(folder), tags)
        version, created = registry.register_removal(draft, key)
    return outcome_of("registered" if created else "in place", version.version)


def _is_compared(other: RegisteredVersion, version: RegisteredVersion) -> bool:
    """Whether ``other`` is the parent of ``version``, or retrained for the same people."""
    if other.version == version.parent_version:
        return True
    return _is_retrained(other, version.deletion_digest) and other.version != version.version


def _is_retrained(version: RegisteredVersion, deletion_digest: str | None) -> bool:
    """Whether ``version`` was retrained without the deletion set of this digest."""
    return (
        deletion_digest is not None
        and version.method == RETRAIN
        and version.deletion_digest == deletion_digest
    )


def _idempotency_key(
    workspace: Workspace, parent: ModelIdentity, everybody: DeletionSet, remover: RemovalMethod
) -> str:
    """Name the removal before it is made: its parent, its people, its method and settings."""
    named = {
        "parent": parent.fingerprint,
        "deletion": everybody.digest(project_key(workspace.key)),
        "method": remover.method,
        "settings": remover.model_dump(mode="json"),
        **remover.training_code(),
    }
    return sha256(json.dumps(named, sort_keys=True).encode())


def _audit(
    workspace: Workspace,
    trained: Trained,
    removal: Removal,
    people: CumulativeRequest,
    *,
    progress: bool,
) -> tuple[AuditReport, AuditReport, Verdict | None]:
    """Audit the parent and the new model for everybody, and the latter for the new people alone.

    Returns:
        Of a removal from an original, where everybody is new, None as the third.
    """
    everybody = people.everybody
    data, settings = everybody.dataset, workspace.settings.audit
    evidence = load_evidence(workspace, everybody, pool=trained.pool, progress=progress)
    predictions = predict(removal.predictor, data.train, data.test, parent=trained.predictor)
    before, after = (
        audit_removal(each, data, everybody, evidence, settings)
        for each in (predictions.of_parent(), predictions)
    )
    if people.earlier is None:
        return before, after, None
    rows = np.setdiff1d(everybody.rows.numpy(), people.earlier.rows.numpy())
    alone, _ = judge_rows(predictions, rows, evidence.with_rows, evidence.without_rows, settings)
    return before, after, alone


def _with_measurements(
    record: ModelRecord,
    before: AuditReport,
    report: AuditReport,
    history: RemovalHistory,
    versions: list[RegisteredVersion],
) -> ModelRecord:
    """``record`` with its audit, its cost beside retraining's, and the removals so far."""
    costs = [each.metrics for each in versions if _is_retrained(each, record.deletion_digest)]
    if record.method == RETRAIN:
        costs = [record.metrics]
    seconds = costs[0]["runtime_seconds"] if costs else None
    audit = audit_record(report, record.weights_digest, str(record.deletion_digest))
    audited = with_audit(record, audit, before=before.metrics, retrain_seconds=seconds)
    return audited.model_copy(update={"metrics": {**audited.metrics, **history.metrics}})
