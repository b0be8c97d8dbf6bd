"""Model records: what each model version is, what it was made from, and what was measured of it.

A model record is written by the stage that made the weights and read by the stage that registers
them, so that the registry can be rebuilt from the records alone. It holds counts and digests,
never a subject id or a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import Field, ValidationError

from puma.errors import DataError
from puma.project.files import sha256, write_json
from puma.project.workspace import Workspace
from puma.settings import (
    EvidenceSource,
    ModelSettings,
    Strict,
    TaskName,
    is_original,
    original_of,
)

Record = TypeVar("Record", "ModelRecord", "AuditRecord")

RETRAIN = "retrain"
PRESERVED = "preserved_"  # the metrics of the criteria of puma.preserve
ADOPTED_FROM = "adopted_from"  # among the parameters of an original that was trained elsewhere
# The metrics of the parent that a removal shows beside its own.
BEFORE = ("attack_rate", "attack_auc", "removed_loss")
# What a version is compared by: on its page in the registry and in the tables of the command line.
HEADLINE_METRICS = (
    "accuracy",
    "retained_accuracy",
    "removed_accuracy",
    "test_r2",
    "retained_r2",
    "removed_r2",
    "test_mae",
    "attack_rate",
    "attack_rate_unseen",
    "attack_auc",
    "attack_auc_retrained",
    "attack_quality",
    "remaining_influence",
    "gap_to_retrain",
    "criterion_drift",
    "runtime_seconds",
    "retrain_seconds",
    "speedup_vs_retrain",
)

# What one looks at first: in the registry's comparison and in `dvc metrics show`.
FIRST_METRICS = ("accuracy", "test_r2", "attack_rate", "remaining_influence", "runtime_seconds")


class ModelIdentity(Strict):
    """What makes a model version the one it is, without any measurement.

    Attributes:
        dataset: The name of the dataset.
        method: The removal method, or the name of the original.
        seed: The seed of the initial weights and the batches.
        data_digest: Of the dataset, training and test rows.
        weights_digest: Of the parameters and buffers.
        predictions_digest: Of the classes predicted for the test rows; of a regression, of the
            predicted labels.
        model: How the model is built.
        shape: Of one example.
        classes: Their names, in the order of the logits.
        task: What the model predicts.
        target: Of a regression: the target's value where the model predicts 0, and the step of it
            that the model calls 1.
        parent: The fingerprint of the version that it was made from; None for an original.
        deletion_digest: Keyed digest of everybody whom it is without; None for an original.
        n_removed: The training rows that it is without.
        n_subjects: The people whose rows these are.
        parameters: The settings of its training or its removal.
    """

    dataset: str
    method: str
    seed: int
    data_digest: str
    weights_digest: str
    predictions_digest: str
    model: ModelSettings
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    task: TaskName = "classification"
    target: tuple[float, float] | None = None
    parent: str | None = None
    deletion_digest: str | None = None
    n_removed: int = 0
    n_subjects: int = 0
    parameters: dict[str, str | int | float] = Field(default_factory=dict)

    @property
    def outputs(self) -> int:
        """How many numbers the model gives for a row."""
        from puma.data.task import Task  # which imports PyTorch: no command line waits for it

        return Task(self.task, self.classes).outputs

    @property
    def identity(self) -> str:
        """The fields of this class as JSON, with sorted keys."""
        stored = set(ModelIdentity.model_fields) - self._absent
        own = self.model_dump(mode="json", include=stored)
        return json.dumps(own, sort_keys=True)

    @property
    def _absent(self) -> set[str]:
        """Fields that earlier versions did not have, and this one does not need: not stored."""
        defaults = {name: type(self).model_fields[name].default for name in ("task", "target")}
        return {name for name, default in defaults.items() if getattr(self, name) == default}

    @property
    def fingerprint(self) -> str:
        """The digest of the identity, which names the version.

        Two runs of the same removal on the same weights have the same fingerprint.
        """
        return sha256(self.identity.encode())


class ModelRecord(ModelIdentity):
    """One model version and what was measured of it.

    Attributes:
        weights: Path of the weights from the project root; None where no stage keeps them.
        metrics: In the units of their names.
        loss_curve: The mean training loss (nats) of each epoch.
        verdict: Of its audit; None before it is audited.
        verdict_reason: The sentence with the numbers behind the verdict.
        evidence: What the retrained models of its audit were: see :class:`AuditRecord`.
        unresolved: The names of the metrics that the data cannot resolve.
    """

    weights: str | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    loss_curve: tuple[float, ...] = ()
    verdict: str | None = None
    verdict_reason: str | None = None
    evidence: EvidenceSource | None = None
    unresolved: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write it as JSON, whole or not at all."""
        write_json(path, self.model_dump(mode="json", exclude=self._absent))

    @classmethod
    def read(cls, path: Path) -> ModelRecord:
        """Read what :meth:`write` wrote.

        Raises:
            DataError: ``path`` is absent, cannot be read, or is not a model record.
        """
        return _read(path, cls, "model record")


class AuditRecord(Strict):
    """The result of one audit, and what it is about.

    Attributes:
        weights_digest: Of the audited weights.
        deletion_digest: Keyed digest of the request that they were audited for.
        verdict: One of :data:`puma.audit.VERDICTS`.
        verdict_reason: The sentence with the numbers behind the verdict.
        metrics: In the units of their names.
        evidence: "retrain" where the models without the rows were trained, "pool" where the pool
            predicted them.
        unresolved: Metrics that the data cannot resolve, and why.
    """

    weights_digest: str
    deletion_digest: str
    verdict: str
    verdict_reason: str
    metrics: dict[str, float]
    evidence: EvidenceSource = "retrain"
    unresolved: dict[str, str] = Field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write it as JSON, whole or not at all."""
        write_json(path, self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path) -> AuditRecord:
        """Read what :meth:`write` wrote.

        Raises:
            DataError: ``path`` is absent, cannot be read, or is not an audit.
        """
        return _read(path, cls, "audit")


def with_audit(
    record: ModelRecord,
    audit: AuditRecord,
    *,
    before: Mapping[str, float] | None = None,
    retrain_seconds: float | None = None,
) -> ModelRecord:
    """Add to ``record`` what its audit measured and concluded.

    Args:
        record: The audited version, as its removal or training left it.
        audit: Its audit.
        before: The metrics of its parent's audit for the same request; the new metrics
            ``<name>_before`` are the :data:`BEFORE` of these. None for an original.
        retrain_seconds: How long retraining for the same deletion set took, for the metrics
            ``retrain_seconds`` and ``speedup_vs_retrain``. None where nothing was retrained.

    Returns:
        A new record. Its identity is that of ``record``.
    """
    metrics = {**record.metrics, **audit.metrics}
    if before is not None:
        metrics |= {f"{name}_before": before[name] for name in BEFORE if name in before}
    if retrain_seconds is not None:
        metrics["retrain_seconds"] = retrain_seconds
        metrics["speedup_vs_retrain"] = retrain_seconds / record.metrics["runtime_seconds"]
    return record.model_copy(
        update={
            "metrics": metrics,
            "verdict": audit.verdict,
            "verdict_reason": audit.verdict_reason,
            "evidence": audit.evidence,
            "unresolved": tuple(sorted(audit.unresolved)),
        }
    )


def read_model_records(workspace: Workspace, dataset: str) -> tuple[ModelRecord, ...]:
    """Read the model records of ``dataset``, each with its audit: see :func:`with_audit`.

    Returns:
        The originals first, then each method in the order of params.yaml.

    Raises:
        DataError: A record or its audit is absent or malformed, or they do not belong together:
            removals of different requests, a removal from another original or of other data, an
            audit of other weights or for another request. The pipeline leaves no such mixture;
            stages run one by one may.
    """
    versions = workspace.settings.versions
    records = {name: ModelRecord.read(workspace.model_record(dataset, name)) for name in versions}
    audits = {name: AuditRecord.read(workspace.audit(dataset, name)) for name in versions}
    _check_belong_together(dataset, records, audits)
    retrained = records.get(RETRAIN)
    seconds = None if retrained is None else retrained.metrics["runtime_seconds"]
    return tuple(
        with_audit(record, audits[name])
        if is_original(name)
        else with_audit(
            record,
            audits[name],
            before=audits[original_of(name)].metrics,
            retrain_seconds=seconds,
        )
        for name, record in records.items()
    )


def _check_belong_together(
    dataset: str, records: Mapping[str, ModelRecord], audits: Mapping[str, AuditRecord]
) -> None:
    first = next(iter(records))
    requests = {record.deletion_digest for record in records.values()} - {None}
    if len(requests) > 1:
        raise _mixed(dataset, "the removals answer different requests")
    for name, record in records.items():
        audit = audits[name]
        if not is_original(name) and record.parent != records[original_of(name)].fingerprint:
            raise _mixed(dataset, f"{name} was made from an earlier original")
        if record.data_digest != records[first].data_digest:
            raise _mixed(dataset, f"{name} was made from other data than {first}")
        if audit.weights_digest != record.weights_digest:
            raise _mixed(dataset, f"the audit of {name} attacked other weights than it has now")
        if requests and audit.deletion_digest not in requests:
            raise _mixed(dataset, f"the audit of {name} was made for another request")


def _mixed(dataset: str, what: str) -> DataError:
    return DataError(f"{dataset}: {what}; run `dvc repro` to bring the stages in step")


def _read(path: Path, kind: type[Record], what: str) -> Record:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such {what}; run `dvc repro` first") from error
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); remove it and run `dvc repro`"
        ) from error
    except ValidationError as error:
        raise DataError(
            f"{path}: not a PUMA {what} ({error.error_count()} problems); remove it and run "
            "`dvc repro`"
        ) from error
