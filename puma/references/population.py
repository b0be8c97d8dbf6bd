"""Predictions of many models of the same data, each trained on a known part of it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puma.errors import AuditError
from puma.project.files import PRIVATE, write_bytes

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class Population:
    """Predictions of k models for the same n rows: the training rows, then the test rows.

    They are of single rows: keep the file as private as the data.

    Attributes:
        margins: (k, n) float64, see :meth:`puma.models.tasks.Likelihood.margins`.
        correct: (k, n) whether the most probable class is the label; False for a regression.
        member: (k, n) whether the model was trained on the row.

    Raises:
        AuditError: Margins are not finite, or shapes disagree.
    """

    margins: Array
    correct: Mask
    member: Mask

    def __post_init__(self) -> None:
        shapes = {self.margins.shape, self.correct.shape, self.member.shape}
        if len(shapes) != 1 or self.margins.ndim != 2 or not np.isfinite(self.margins).all():
            raise AuditError(
                f"a population needs finite margins and two masks of one shape (models, rows), "
                f"got {sorted(shapes)}; train it again"
            )

    def __len__(self) -> int:
        return len(self.margins)

    def __repr__(self) -> str:
        return f"Population(models={len(self)}, rows={self.margins.shape[1]})"

    def save(self, path: Path) -> None:
        """Write it, whole or not at all, for the owner alone."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, margins=self.margins, correct=self.correct, member=self.member)
        write_bytes(path, buffer.getvalue(), mode=PRIVATE)

    @classmethod
    def load(cls, path: Path) -> Population:
        """Read what :meth:`save` wrote.

        Raises:
            AuditError: The file is absent, or PUMA did not write it.
        """
        with stored_arrays(path, "models", "population") as stored:
            return cls(stored["margins"], stored["correct"], stored["member"])


@contextmanager
def stored_arrays(path: Path, absent: str, kind: str) -> Iterator[Mapping[str, Any]]:
    """Open the arrays that PUMA stored at ``path``, to build an object of them.

    Raises:
        AuditError: There is no such file (of ``absent``), or what it holds, or is built of it, is
            no ``kind``.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            yield stored
    except FileNotFoundError as error:
        raise AuditError(f"{path}: no such {absent}; run `dvc repro`") from error
    except Exception as error:  # numpy raises zip, pickle, key and value errors alike here
        raise AuditError(
            f"{path}: not a {kind} written by PUMA ({error}); delete it and run `dvc repro`"
        ) from error
