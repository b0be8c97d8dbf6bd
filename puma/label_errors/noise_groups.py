"""The three groups of label noise in Appendix E, by ψ and confidence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from puma.data.base import Examples
from puma.errors import DataError, SettingsError
from puma.models.predictions import losses
from puma.models.tasks import require_classes


@dataclass(frozen=True)
class Groups:
    """Row numbers of the k rows of lowest ψ; each group from the lowest ψ up, none in two groups.

    Attributes:
        over_confident: S1 of Appendix E.
        over_uncertain: S2.
        other_noise: S3.
    """

    over_confident: Tensor
    over_uncertain: Tensor
    other_noise: Tensor


def own_label_confidence(model: nn.Module, examples: Examples) -> Tensor:
    """(n,) p(y_i|x_i; θ) of the GIVEN label, right or wrong: the confidence of Algorithm 2.

    Raises DataError for a regression.
    """
    require_classes(examples, "the confidence in a label", "rank its rows by Psi alone")
    return losses(model, examples).double().neg().exp().cpu()


def groups(psi: Tensor, confidence: Tensor, k: int) -> Groups:
    """Split the k rows of lowest ψ by the confidence in their own label (Appendix E).

    S1 are also among the k rows of highest confidence, S2 among the k of lowest, S3 in neither.
    With C the calibration error, the paper calls them over-confident, over-uncertain and other
    noise.

    Erratum: Algorithm 2, as printed, calls S3 the mislabelled rows. But a mislabelled row that
    the model has not memorised gives its own label a LOW probability, so S2 holds it. Ranking by
    ψ alone (:class:`puma.label_errors.Psi`) is therefore the default.

    Args:
        psi: (n,) ψ with its sign: the most negative are the most harmful. Ties go by row order.
        confidence: (n,) p(y_i|x_i), as of :func:`own_label_confidence`.
        k: How many rows of lowest ψ to split, from 1 to n/2.

    Raises:
        DataError: The numbers do not fit each other, are not finite, or a confidence is outside
            [0, 1].
        SettingsError: k is below 1 or above n/2, where the highest and the lowest confidences
            overlap.
    """
    lowest, uncertain, confident = _extremes(psi, confidence, k)
    high, low = confident[lowest], uncertain[lowest]
    return Groups(lowest[high], lowest[low], lowest[~(high | low)])


def _extremes(psi: Tensor, confidence: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """(k rows of lowest ψ in order, mask of the k lowest confidences, mask of the k highest)."""
    if psi.ndim != 1 or psi.shape != confidence.shape:
        raise DataError(
            "psi and confidence must be one number per row each, got shapes "
            f"{tuple(psi.shape)} and {tuple(confidence.shape)}"
        )
    bad = int((~(torch.isfinite(psi) & (confidence >= 0) & (confidence <= 1))).sum())
    if bad:
        raise DataError(
            f"psi must be finite and confidence between 0 and 1, got {bad} rows that are not; "
            "pass the probability of each row's own label"
        )
    n = len(psi)
    if not 1 <= k <= n // 2:
        raise SettingsError(
            f"k must be between 1 and n/2 = {n // 2}, got {k}; beyond that the highest and the "
            "lowest confidences overlap"
        )
    order = confidence.argsort(stable=True)
    low, high = (torch.zeros(n, dtype=torch.bool, device=psi.device) for _ in range(2))
    low[order[:k]], high[order[-k:]] = True, True
    return psi.argsort(stable=True)[:k], low, high
