"""Amnesiac ML: record what every batch did to the weights, and subtract it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor, nn

from puma.data.base import Dataset
from puma.errors import ModelError, SettingsError
from puma.models.training import History, batch_sizes, train
from puma.project.files import written
from puma.removal.base import RemovalMethod
from puma.removal.results import Patch, Trained
from puma.removal.training_records import seal, sealed, unseal
from puma.requests.deletion_set import DeletionSet
from puma.settings import AmnesiacSettings, original_of

UPDATES = "updates.npy"  # (steps, p): what each step added to the trained parameters
BATCHES = "batches.npy"  # (steps, largest batch): the rows it was made on, then -1
CHUNK = 2**24  # bytes of updates that are summed at a time


class Amnesiac(AmnesiacSettings, RemovalMethod):
    """Amnesiac unlearning (Graves, Nagisetty and Ganesh, 2021).

    ``fit`` is plain training, bit for bit, that records the rows of every batch and what its
    step added to the parameters. ``remove`` subtracts the steps of every batch that holds a
    marked row, and then trains ``repair_epochs`` on the retained rows.

    The subtraction undoes the direct effect of those batches, not the indirect one: the steps
    after them would have started from other weights, with other moments of Adam, without them.
    Statistics that batch normalisation gathered are no parameters and stay. What the other rows
    of the same batches taught is lost too: with 50 epochs of batches of 32 from 750 rows, 57
    marked rows are in 9 of 10 batches, and the model is back near its initial weights. The
    authors therefore repair it by a little more training; PUMA's tables show it without.

    Attributes:
        repair_epochs: Epochs on the retained rows after the subtraction, with a fresh optimiser.
        max_bytes: The largest records that ``fit`` may write; they take steps × parameters ×
            bytes of a parameter.
    """

    method = "amnesiac"
    original = original_of("amnesiac")

    @model_validator(mode="after")
    def _sees_every_step(self) -> Amnesiac:
        if self.training.loop is not None:
            raise ValueError(
                f"it records the rows of every step, and training.loop {self.training.loop!r} does "
                "not say them; choose puma, retrain or sisa, or leave training.loop out"
            )
        return self

    def _train(
        self, predictor: nn.Module, dataset: Dataset, records: Path | None, *, progress: bool
    ) -> History:
        folder = cast(Path, records)
        before = _vector(predictor)
        sizes = batch_sizes(predictor, len(dataset.train), self.training.batch_size)
        steps, largest = self.training.epochs * len(sizes), max(sizes)
        self._refuse_too_much(steps, before, largest)
        unseal(folder)
        updates = _rows_file(folder / UPDATES, steps, len(before), before.numpy().dtype)
        batches = _rows_file(folder / BATCHES, steps, largest, np.dtype(np.int32))
        with updates as updates_file, batches as batches_file:

            def record(model: nn.Module, step: int, rows: Tensor) -> None:  # noqa: ARG001
                nonlocal before
                after = _vector(model)
                updates_file.write((after - before).numpy().tobytes())
                padded = np.full(largest, -1, dtype=np.int32)
                padded[: len(rows)] = rows.numpy()
                batches_file.write(padded.tobytes())
                before = after

            history = train(
                predictor,
                dataset.train,
                self.training,
                seed=self.seed,
                on_step=record,
                label="fit",
                progress=progress,
            )
        seal(folder, self._manifest(dataset))
        return history

    def _patch(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Patch:
        folder = sealed(trained.records, self._manifest(trained.dataset))
        predictor = copy.deepcopy(trained.predictor)
        updates = np.load(folder / UPDATES, mmap_mode="r")
        batches = np.load(folder / BATCHES, mmap_mode="r")
        tainted = np.flatnonzero(np.isin(batches, deletion_set.rows.numpy()).any(1))
        _subtract(predictor, _sum(updates, tainted))
        history = None
        if self.repair_epochs:
            history = train(
                predictor,
                trained.dataset.train.without(deletion_set.rows),
                self.training.model_copy(update={"epochs": self.repair_epochs}),
                seed=self.seed,
                label="repair",
                progress=progress,
            )
        return Patch(
            predictor,
            outcomes={"batches_subtracted": len(tainted), "batches_recorded": len(batches)},
            history=history,
        )

    def _manifest(self, dataset: Dataset) -> dict[str, Any]:
        own = self.model_dump(exclude={"repair_epochs", "max_bytes"})
        return {"data_digest": dataset.digest, **own, "method": self.method}

    def _refuse_too_much(self, steps: int, parameters: Tensor, batch: int) -> None:
        row = parameters.nbytes + batch * 4
        if steps * row > self.max_bytes:
            raise SettingsError(
                f"recording {steps:,} steps of {len(parameters):,} parameters takes "
                f"{steps * row:,} bytes, more than amnesiac.max_bytes ({self.max_bytes:,}); lower "
                "training.epochs, take larger batches or a smaller model, or raise "
                "amnesiac.max_bytes"
            )


def _vector(model: nn.Module) -> Tensor:
    """(p,) a copy of the parameters that train, one after the other, on the CPU.

    Raises ModelError when there is none.
    """
    parameters = [each.detach().flatten() for each in model.parameters() if each.requires_grad]
    if not parameters:
        raise ModelError(
            "the model has no parameter with requires_grad=True; unfreeze those to be trained"
        )
    return torch.cat(parameters).cpu()


@torch.no_grad()
def _subtract(model: nn.Module, change: Tensor) -> None:
    """Parameters − ``change``, a (p,) vector of doubles, in place and rounded once."""
    start = 0
    for each in model.parameters():
        if each.requires_grad:
            part = change[start : start + each.numel()].view_as(each)
            each.copy_(each.cpu().double() - part)
            start += each.numel()


def _sum(updates: np.ndarray, chosen: np.ndarray) -> Tensor:
    """(p,) the sum of the ``chosen`` rows, in double precision, a bounded part at a time."""
    total = np.zeros(updates.shape[1])
    at_once = max(1, CHUNK // (updates.shape[1] * updates.itemsize))
    for start in range(0, len(chosen), at_once):
        total += updates[chosen[start : start + at_once]].sum(0, dtype=np.float64)
    return torch.from_numpy(total)


@contextmanager
def _rows_file(path: Path, rows: int, columns: int, kind: np.dtype) -> Iterator[BinaryIO]:
    """A .npy file of (rows, columns), to be written row by row.

    A mapped file would be simpler, but a full disk kills a process that writes to one.
    """
    with written(path) as stream:
        header = {
            "descr": np.lib.format.dtype_to_descr(kind),
            "fortran_order": False,
            "shape": (rows, columns),
        }
        np.lib.format.write_array_header_1_0(stream, header)
        yield stream
