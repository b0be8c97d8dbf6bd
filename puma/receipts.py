"""Receipts: what each model version is, where it came from, and what was measured of it.

A receipt is written by the stage that made the weights and read by the stage that registers
them, so that the registry can be rebuilt from receipts alone. It holds counts and digests,
never a subject id or a row.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from puma.errors import DataError
from puma.files import sha256, write_json
from puma.settings import ModelSettings, Strict
from puma.workspace import Workspace

ORIGINAL = "original"
RETRAIN = "retrain"


class Receipt(Strict):
    """One model version. ``parent`` and the deletion fields are None for an original.

    ``metrics`` are floats in the units of their names; ``loss_curve`` is the mean training
    loss (nats) per epoch; ``weights`` is a path relative to the project root.
    """

    dataset: str
    method: str
    seed: int
    data_digest: str
    weights_digest: str
    predictions_digest: str
    weights: str
    model: ModelSettings
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    parent: str | None = None
    deletion_digest: str | None = None
    n_removed: int = 0
    n_subjects: int = 0
    parameters: dict[str, str | int | float] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
    loss_curve: tuple[float, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Names the version: digest of all that makes it what it is, measurements excluded.

        Two runs of the same removal on the same weights share it, however long they took.
        """
        identity = self.model_dump(mode="json", exclude={"metrics", "loss_curve", "weights"})
        return sha256(json.dumps(identity, sort_keys=True).encode())

    def write(self, path: Path) -> None:
        write_json(path, self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path) -> Receipt:
        """Raises DataError when ``path`` is absent or not a receipt."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such receipt; run `dvc repro` first") from error
        except ValidationError as error:
            raise DataError(f"{path}: not a receipt ({error.error_count()} problems)") from error


def read_receipts(workspace: Workspace, dataset: str) -> tuple[Receipt, ...]:
    """The complete receipts of ``dataset``: the original first, then each method in order.

    The audit's metrics are merged in; where the same deletion was also retrained, every
    removal gains ``retrain_seconds`` and ``speedup_vs_retrain``. Raises DataError when a
    receipt or its audit is absent or malformed.
    """
    receipts = []
    for method in (ORIGINAL, *workspace.settings.methods):
        receipt = Receipt.read(workspace.receipt(dataset, method))
        audit = _read_metrics(workspace.metrics(dataset, method))
        receipts.append(receipt.model_copy(update={"metrics": {**receipt.metrics, **audit}}))
    return tuple(_with_speedup(receipt, receipts) for receipt in receipts)


def _read_metrics(path: Path) -> dict[str, float]:
    try:
        return TypeAdapter(dict[str, float]).validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such metrics; run `dvc repro` first") from error
    except ValidationError as error:
        raise DataError(f"{path}: not metrics ({error.error_count()} problems)") from error


def _with_speedup(receipt: Receipt, all_receipts: list[Receipt]) -> Receipt:
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
