"""Receipts: what each model version is, where it came from, and what was measured of it.

A receipt is written by the stage that made the weights and read by the stage that registers
them, so that the registry can be rebuilt from receipts alone. It holds counts and digests,
never a subject id or a row.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field, ValidationError

from puma.errors import DataError
from puma.project.files import sha256, write_json
from puma.project.workspace import Workspace
from puma.settings import ModelSettings, Strict, is_original, original_of

RETRAIN = "retrain"
BEFORE = ("attack_rate", "attack_auc", "removed_loss")
# What a version is compared by: on its page in the registry and in the tables of the command line.
HEADLINE_METRICS = (
    "accuracy",
    "retained_accuracy",
    "removed_accuracy",
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


class ModelIdentity(Strict):
    """All that makes one model version what it is, measurements excluded.

    ``parent``, a fingerprint, and the deletion fields are None for an original. The deletion
    digest and the counts are of everybody whom the version is without.
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
    parent: str | None = None
    deletion_digest: str | None = None
    n_removed: int = 0
    n_subjects: int = 0
    parameters: dict[str, str | int | float] = Field(default_factory=dict)

    @property
    def identity(self) -> str:
        """As JSON, with sorted keys."""
        own = self.model_dump(mode="json", include=set(ModelIdentity.model_fields))
        return json.dumps(own, sort_keys=True)

    @property
    def fingerprint(self) -> str:
        """Names the version: the digest of its identity.

        Two runs of the same removal on the same weights share it, however long they took.
        """
        return sha256(self.identity.encode())


class ModelRecord(ModelIdentity):
    """One model version and what was measured of it.

    ``metrics`` are floats in the units of their names; ``loss_curve`` is the mean training
    loss (nats) per epoch; ``weights`` is a path relative to the project root, None where no
    stage keeps them.
    """

    weights: str | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    loss_curve: tuple[float, ...] = ()
    verdict: str | None = None
    verdict_reason: str | None = None
    unresolved: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        write_json(path, self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path) -> ModelRecord:
        """Raises DataError when ``path`` is absent, cannot be read, or is not a receipt."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such receipt; run `dvc repro` first") from error
        except OSError as error:
            raise _unreadable(path, error) from error
        except ValidationError as error:
            raise DataError(f"{path}: not a receipt ({error.error_count()} problems)") from error


class AuditRecord(Strict):
    """Which weights an audit attacked, for which request, what it concluded, and its numbers.

    ``unresolved``: numbers that the data cannot tell, and why.
    """

    weights_digest: str
    deletion_digest: str
    verdict: str
    verdict_reason: str
    metrics: dict[str, float]
    unresolved: dict[str, str] = Field(default_factory=dict)

    def write(self, path: Path) -> None:
        write_json(path, self.model_dump(mode="json"))


def read_model_records(workspace: Workspace, dataset: str) -> tuple[ModelRecord, ...]:
    """The complete receipts of ``dataset``: the originals first, then each method in order.

    The audit's metrics are merged in, and into a removal's also its parent's for the same
    request (``attack_rate_before`` …), since a later request measures the parent anew; where
    the same deletion was also retrained, every removal gains ``retrain_seconds`` and
    ``speedup_vs_retrain``. Raises DataError when a
    receipt or its audit is absent or malformed, or when they do not belong together: a removal
    from another original, another request or other data than the rest, an audit of other
    weights. Stages run one by one leave such a mixture; the pipeline does not.
    """
    versions = workspace.settings.versions
    found = {name: ModelRecord.read(workspace.model_record(dataset, name)) for name in versions}
    requests = {receipt.deletion_digest for receipt in found.values()} - {None}
    if len(requests) > 1:
        raise _mixed(dataset, "the removals answer different requests")
    receipts, audits = [], {}
    for name, receipt in found.items():
        if not is_original(name) and receipt.parent != found[original_of(name)].fingerprint:
            raise _mixed(dataset, f"{name} was made from an earlier original")
        if receipt.data_digest != found[versions[0]].data_digest:
            raise _mixed(dataset, f"{name} was made from other data than {versions[0]}")
        audit = audits[name] = _read_audit(workspace.audit(dataset, name))
        if audit.weights_digest != receipt.weights_digest:
            raise _mixed(dataset, f"the audit of {name} attacked other weights than it has now")
        if audit.deletion_digest not in (requests or {audit.deletion_digest}):
            raise _mixed(dataset, f"the audit of {name} was made for another request")
        metrics = {**receipt.metrics, **audit.metrics}
        if not is_original(name):
            before = audits[original_of(name)].metrics
            metrics |= {f"{key}_before": before[key] for key in BEFORE if key in before}
        concluded = {
            "verdict": audit.verdict,
            "verdict_reason": audit.verdict_reason,
            "unresolved": tuple(sorted(audit.unresolved)),
        }
        receipts.append(receipt.model_copy(update={"metrics": metrics, **concluded}))
    return tuple(_with_speedup(receipt, receipts) for receipt in receipts)


def _mixed(dataset: str, what: str) -> DataError:
    return DataError(f"{dataset}: {what}; run `dvc repro` to bring the stages in step")


def _read_audit(path: Path) -> AuditRecord:
    try:
        return AuditRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such audit; run `dvc repro` first") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValidationError as error:
        raise DataError(f"{path}: not an audit ({error.error_count()} problems)") from error


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read ({error.strerror}); remove it and run `dvc repro`")


def _with_speedup(receipt: ModelRecord, all_receipts: list[ModelRecord]) -> ModelRecord:
    if receipt.deletion_digest is None:
        return receipt
    for other in all_receipts:
        if other.method == RETRAIN and other.deletion_digest == receipt.deletion_digest:
            seconds = other.metrics["runtime_seconds"]
            extra = {
                "retrain_seconds": seconds,
                "speedup_vs_retrain": seconds / receipt.metrics["runtime_seconds"],
            }
            return receipt.model_copy(update={"metrics": {**receipt.metrics, **extra}})
    return receipt
