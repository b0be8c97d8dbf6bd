"""Measures of scores, shared by the rooms above."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from puma.errors import DataError

Array = NDArray[np.float64]


def auc(positive_scores: ArrayLike, negative_scores: ArrayLike) -> float:
    """Probability that a random positive outscores a random negative, a tie counting one half.

    This is the area under the ROC curve, computed as the Mann-Whitney statistic over the number
    of pairs, in double precision. 1: positives always score higher. 0.5: the scores do not
    separate the two. 0: positives always score lower.

    Args:
        positive_scores: (m,) scores, m >= 1.
        negative_scores: (n,) scores, n >= 1.

    Returns:
        A number in [0, 1].

    Raises:
        DataError: A side is empty, is not one-dimensional, or holds NaN or infinity.
    """
    positives = _checked(positive_scores, "positive")
    negatives = _checked(negative_scores, "negative")
    return float(share_below(positives, negatives).mean())


def share_below(scores: Array, others: Array) -> Array:
    """(m,) share of the (n,) ``others`` below each of the (m,) ``scores``, a tie counting half."""
    ordered = np.sort(others)
    below, not_above = (np.searchsorted(ordered, scores, side) for side in ("left", "right"))
    return np.asarray((below + not_above) / (2 * len(ordered)))


def roc(positives: Array, negatives: Array) -> tuple[Array, Array]:
    """Shares of the negatives and of the positives at or above every threshold, from 0 up to 1.

    scikit-learn's ``roc_curve`` gives the same, and takes a second to import.
    """
    thresholds = np.unique(np.concatenate([positives, negatives]))[::-1]

    def shares(group: Array) -> Array:
        above = len(group) - np.searchsorted(np.sort(group), thresholds)
        return np.concatenate([[0.0], above / len(group)])

    return shares(negatives), shares(positives)


def _checked(scores: ArrayLike, side: str) -> np.ndarray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise DataError(
            f"{side} scores must be (n,) numbers with n >= 1, got shape {values.shape}; pass one "
            "score per example and a group that is not empty"
        )
    bad = int((~np.isfinite(values)).sum())
    if bad:
        raise DataError(
            f"{bad} of {values.size} {side} scores are NaN or infinite; check that the model's "
            "parameters and outputs are finite"
        )
    return values
