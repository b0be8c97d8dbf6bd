"""Algorithm 2 as it is printed, and Appendix E's three groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from puma.data.base import Examples
from puma.errors import DataError, SettingsError
from puma.models.predictions import losses


@dataclass(frozen=True)
class Groups:
    """Long row numbers of the k least influential rows, each group from the lowest ψ up.

    over_confident: S1 of Appendix E. over_uncertain: S2. other_noise: S3. No row is in two.
    """

    over_confident: Tensor
    over_uncertain: Tensor
    other_noise: Tensor


def own_label_confidence(model: nn.Module, examples: Examples) -> Tensor:
    """(n,) p(y_i|x_i; θ) of the GIVEN label, right or wrong: the confidence of Algorithm 2."""
    return losses(model, examples).double().neg().exp().cpu()


def groups(psi: Tensor, confidence: Tensor, k: int) -> Groups:
    """The k rows of lowest ψ by the confidence of their own label (Appendix E).

    S1: also among the k of highest confidence; S2: also among the k of lowest; S3: neither. With
    C the calibration error these are said to be over-confident, over-uncertain and other noise.

    ψ (n,): with its sign, the most negative most harmful. confidence (n,): p(y_i|x_i). Equal
    numbers go by row order. Erratum: a mislabelled row that the model has not memorised gives
    its own label a LOW probability, so it is S2, not "other noise", that holds it.

    Raises DataError for numbers that do not fit each other or are not finite, confidences
    outside [0, 1]; SettingsError for k below 1 or above n/2, where the highest and the lowest
    confidences overlap.
    """
    lowest, uncertain, confident = _extremes(psi, confidence, k)
    high, low = confident[lowest], uncertain[lowest]
    return Groups(lowest[high], lowest[low], lowest[~(high | low)])


def printed_suspects(psi: Tensor, confidence: Tensor, k: int) -> Tensor:
    """Long rows that Algorithm 2, as printed, calls mislabelled: from the lowest ψ up, k at most.

    S = the k rows of lowest ψ, less the k of lowest and the k of highest confidence; emptied
    when the mean ψ of S is above the mean ψ of (k lowest ψ) ∩ (k lowest confidence).

    Errata, and why ranking by ψ alone is the default:

    - Confidence is printed as p(y_i|x_i), the probability of the row's OWN label. A wrong label
      is the one that the model finds improbable, so the filter throws out the mislabelled rows.
      The text wants rows near the decision boundary out; for those the probability is near
      1/classes, not lowest.
    - The last test then empties S whenever the rows thrown out have lower ψ than those kept,
      which is the rule: mislabelled rows have the lowest.
    - Where the intersection is empty its mean is undefined and nothing is printed for that; we
      keep S, as comparing with NaN would. An empty S is returned as it is.

    Arguments and errors are those of :func:`groups`.
    """
    parts = groups(psi, confidence, k)
    kept, thrown = parts.other_noise, parts.over_uncertain
    if len(kept) and len(thrown) and psi[kept].mean() > psi[thrown].mean():
        return kept[:0]
    return kept


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
