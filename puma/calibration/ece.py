"""The expected calibration error with hard bins, and the reliability diagram that it sums up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from puma.errors import DataError, SettingsError, require_type

# How far the sum of float32 probabilities over thousands of classes may be from 1.
SUM_TOLERANCE = 1e-4


@dataclass(frozen=True, repr=False, eq=False)
class Reliability:
    """Confidence against accuracy, bin by bin; confidence is an example's largest probability.

    Attributes:
        edges: (bins + 1,) from 0 to 1. A bin holds its upper edge but not its lower one; the
            first holds 0 too.
        counts: (bins,) examples in each bin.
        confidence: (bins,) means over these; NaN in empty bins.
        accuracy: (bins,) likewise.
    """

    edges: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    def __repr__(self) -> str:
        return f"Reliability(n={int(self.counts.sum())}, bins={len(self.counts)})"

    @property
    def ece(self) -> float:
        """Σ_b (n_b/n)·|accuracy_b − confidence_b|, between 0 and 1; empty bins do not count."""
        used = self.counts > 0
        return float(self.counts[used] @ self._gaps[used] / self.counts.sum())

    @property
    def mce(self) -> float:
        """The largest |accuracy_b − confidence_b| of a bin with examples."""
        return float(self._gaps[self.counts > 0].max())

    @property
    def _gaps(self) -> np.ndarray:
        gaps: np.ndarray = np.abs(self.accuracy - self.confidence)
        return gaps


def reliability(probabilities: Tensor, labels: Tensor, *, bins: int = 15) -> Reliability:
    """Bin (n, classes) ``probabilities`` with their (n,) ``labels`` in ``bins`` equal bins.

    Guo et al. (2017) is the paper's reference for the error; the paper does not say how many
    bins.

    Raises:
        DataError: There are no examples, shapes are wrong, a label has no column, or rows are not
            probabilities, such as logits.
        SettingsError: ``bins`` is below 1.
    """
    if bins < 1:
        raise SettingsError(f"bins must be >= 1, got {bins}")
    _check(probabilities, labels)
    top, predicted = probabilities.detach().double().max(1)
    confidence = top.clamp(max=1.0).cpu().numpy()  # a sum of rounded numbers may exceed 1
    right = (predicted == labels).cpu().numpy()
    edges = np.linspace(0.0, 1.0, bins + 1)
    # Looked up among the edges themselves: confidence·bins rounds 0.2·15 up into another bin.
    place = np.searchsorted(edges, confidence, side="left").clip(min=1) - 1
    counts = np.bincount(place, minlength=bins)
    per_bin = np.where(counts > 0, counts, np.nan)
    return Reliability(
        edges,
        counts,
        np.bincount(place, weights=confidence, minlength=bins) / per_bin,
        np.bincount(place, weights=right, minlength=bins) / per_bin,
    )


def hard_ece(probabilities: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    """Compute the expected calibration error, 0 to 1; see :func:`reliability`."""
    return reliability(probabilities, labels, bins=bins).ece


def _check(probabilities: Tensor, labels: Tensor) -> None:
    require_type(
        probabilities, Tensor, "probabilities", DataError, "convert it with torch.as_tensor"
    )
    if probabilities.ndim != 2 or 0 in probabilities.shape or not probabilities.is_floating_point():
        raise DataError(
            "probabilities must be one row per example and one column per class, got shape "
            f"{tuple(probabilities.shape)} of {probabilities.dtype}"
        )
    check_labels(labels, *probabilities.shape)
    bad = int((~torch.isfinite(probabilities)).any(1).sum())
    if bad:
        raise DataError(f"probabilities hold NaN or infinity in {bad} rows; check the model")
    wrong = (probabilities.double().sum(1) - 1).abs() > SUM_TOLERANCE
    wrong |= (probabilities < 0).any(1)
    if wrong.any():
        raise DataError(
            f"{int(wrong.sum())} of {len(wrong)} rows are not probabilities (>= 0, sum 1); pass "
            "logits.softmax(1) where these are logits"
        )


def check_labels(labels: Tensor, n: int, classes: int) -> None:
    """Raise DataError unless ``labels`` are ``n`` numbers of ``classes`` classes."""
    require_type(labels, Tensor, "labels", DataError, "convert it with torch.as_tensor")
    if labels.shape != (n,) or labels.dtype not in (torch.int64, torch.int32):
        raise DataError(
            f"labels must be one integer class number for each of {n} examples, got shape "
            f"{tuple(labels.shape)} of {labels.dtype}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise DataError(
            f"labels run from {low} to {high}, but there are {classes} columns, 0 to {classes - 1}"
        )
