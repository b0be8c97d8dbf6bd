"""How good a ranking is: wrong labels found against rows inspected."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from puma.errors import DataError, SettingsError


def found_curve(suspicion: Tensor, flipped: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(share of rows inspected, share of the wrong labels found), each (n + 1,) from 0 to 1.

    Rows are inspected from the most suspect down: the paper's figure of label flips. Among rows
    of equal suspicion the curve is the mean over all of their orders, a straight line, so that
    neither the order of the rows nor a constant score gains anything.

    Args:
        suspicion: (n,) finite numbers, higher is more suspect.
        flipped: (n,) bool, True where the label is wrong.

    Raises:
        DataError: The two do not fit each other, suspicion is not finite, or no row is flipped.
    """
    scores, wrong = _checked(suspicion, flipped)
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=-np.inf)) + 1
    found = np.concatenate([[0], wrong[order].cumsum()])
    inspected = np.arange(len(scores) + 1)
    knots = np.concatenate([[0], ends])
    expected = np.interp(inspected, knots, found[knots])
    return inspected / len(scores), expected / wrong.sum()


def found_at(suspicion: Tensor, flipped: Tensor, share: float = 0.1) -> float:
    """Expected share of the wrong labels found in the ``share`` most suspect rows, in [0, 1].

    Linear between whole numbers of rows: half a row is one that is inspected half the time.

    Raises:
        SettingsError: A share outside [0, 1].
        DataError: What :func:`found_curve` refuses.
    """
    if not 0 <= share <= 1:
        raise SettingsError(f"share must be between 0 and 1, got {share}")
    return float(np.interp(share, *found_curve(suspicion, flipped)))


def _checked(suspicion: Tensor, flipped: Tensor) -> tuple[np.ndarray, np.ndarray]:
    if suspicion.ndim != 1 or suspicion.shape != flipped.shape or flipped.dtype != torch.bool:
        raise DataError(
            "suspicion must be (n,) numbers and flipped an (n,) bool mask, got shapes "
            f"{tuple(suspicion.shape)} and {tuple(flipped.shape)} of {flipped.dtype}"
        )
    scores = suspicion.detach().to("cpu", torch.float64).numpy()
    if not np.isfinite(scores).all():
        raise DataError(
            f"suspicion has {int((~np.isfinite(scores)).sum())} entries that are NaN or infinite; "
            "check the model that was ranked with"
        )
    wrong = flipped.cpu().numpy()
    if not wrong.any():
        raise DataError(f"none of {len(wrong)} rows is flipped; there is nothing to find")
    return scores, wrong
