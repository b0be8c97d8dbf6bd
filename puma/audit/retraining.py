"""Distances between a model and retrained models, by the margins of the removed rows.

k models are trained on everybody and k on everybody but the removed people, each from its own
initial weights and batches. Differences between the two groups are the influence of the removed
rows; differences within a group are chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from puma.audit.metrics import worst
from puma.audit.predictions import Array
from puma.errors import AuditError

FEWEST = 3  # models of each kind: one left out, two for a spread
SMALLEST_SHRINKAGE = 1e-3  # keeps the covariance invertible; Ledoit and Wolf's is larger


@dataclass(frozen=True)
class RemainingInfluence:
    """How much of the removed rows' influence on their own predictions remains.

    Attributes:
        value: 1 = as in models trained on them, 0 = as in retrained models, negative = beyond.
        chance: Half the width of the band in which retrained models lie about 0, and so of the
            interval about ``value``.
        distinguishable: Whether the bands of the models with and without the rows do not touch.
            Only then would this audit have noticed a removal that did nothing.
    """

    value: float
    chance: float
    distinguishable: bool


def remaining_influence(
    audited: Array, with_rows: Array, without_rows: Array, *, confidence: float = 0.95
) -> RemainingInfluence:
    """Locate ``audited`` between models trained with and without the removed rows.

    The margins are projected on Fisher's discriminant, the direction that separates the groups
    best if both are normal with one covariance. This is the likelihood ratio of Neyman and
    Pearson: LiRA's ratio, extended from one row to all removed rows at once. The rows of one
    model move together, and there are more rows than models, hence a joint covariance, shrunk as
    Ledoit and Wolf (2004) do. The position is scaled so that the groups' means are 0 and 1. The
    bands are prediction intervals (Student) of the positions that each model takes in a
    discriminant fitted without it.

    Args:
        audited: (m,) margins of the m removed rows in the audited model.
        with_rows: (k, m) the same in models trained on the rows.
        without_rows: (k, m) the same in retrained models.
        confidence: Of the bands, in (0, 1).

    Raises:
        AuditError: There are fewer than 3 models of a kind, shapes disagree, or the models of
            the groups do not vary.
    """
    _check(audited, with_rows, without_rows)
    left_out = [
        _position(row, with_rows, np.delete(without_rows, j, 0))
        for j, row in enumerate(without_rows)
    ]
    left_in = [
        _position(row, np.delete(with_rows, j, 0), without_rows) for j, row in enumerate(with_rows)
    ]
    band, top_band = (prediction_band(each, confidence) for each in (left_out, left_in))
    return RemainingInfluence(
        _position(audited, with_rows, without_rows),
        # The centre of the models left out is above 0: the direction also follows the noise of
        # the groups' means, which a further model does not share. It is the higher, the more rows
        # there are and the less influence they have.
        float(abs(np.mean(left_out)) + band),
        bool(np.mean(left_out) + band < np.mean(left_in) - top_band),
    )


@dataclass(frozen=True)
class GapToRetraining:
    """The distance of the removed rows' margins from those of retrained models.

    Attributes:
        mean: Of the rows' 1-Wasserstein distances, in units of the margin. The distribution of
            one audited model is a point, so that a row's distance is the mean |x - r| over the
            margins r of the retrained models.
        expected: The mean distance of retrained models from each other; a gap near it is chance.
        worst: The mean distance of the worst 1 % of the rows, and of at least one.
        chance: Half the width of the band in which mean/expected of retrained models lies about 1.
        below: Whether the audited model is, on average, less sure than the retrained models.
    """

    mean: float
    expected: float
    worst: float
    chance: float
    below: bool

    @property
    def ratio(self) -> float:
        """How many times as far as retrained models are from each other."""
        return self.mean / self.expected


def gap_to_retraining(
    audited: Array,
    without_rows: Array,
    *,
    confidence: float = 0.95,
    scores: Callable[[Array], Array] | None = None,
) -> GapToRetraining:
    """Measure :class:`GapToRetraining`, in the spirit of KLOM and U-LiRA, for one audited model.

    Args:
        audited: (m,) margins of the removed rows in the audited model.
        without_rows: (k, m) the same in retrained models.
        confidence: Of the band, in (0, 1).
        scores: From margins to what is larger where a model is surer; None: they are.

    Raises:
        AuditError: There are fewer than 3 models, shapes disagree, or the models do not vary.
    """
    _check(audited, without_rows, without_rows)
    rows = np.abs(without_rows - audited).mean(0)
    others = [
        np.abs(np.delete(without_rows, j, 0) - row).mean() for j, row in enumerate(without_rows)
    ]
    expected = float(np.mean(others))
    if expected == 0:
        raise _no_chance()
    # Every distance counts for both of its models, which pulls their k means together.
    unshared = (len(others) - 1) / (len(others) - 2)
    sure = scores or np.asarray
    return GapToRetraining(
        float(rows.mean()),
        expected,
        worst(rows),
        unshared * prediction_band(np.array(others) / expected, confidence),
        bool(sure(audited).mean() < sure(without_rows).mean()),
    )


@dataclass(frozen=True)
class RelativeConfidence:
    """How often the audited model is more confident of a removed row than retrained models.

    Attributes:
        value: See :func:`relative_confidence`.
        chance: Half the width of its interval.
    """

    value: float
    chance: float


def relative_confidence(
    audited: Array, without_rows: Array, *, confidence: float = 0.95
) -> RelativeConfidence:
    """Compute the probability that ``audited`` has a larger score of a row than a retrained model.

    A tie counts one half. 0.5: the two are alike. Above: the rows are still known. Below: their
    loss is abnormally high. The interval is the one that retrained models show against each
    other: the rows of one model move together, so that an interval over rows would be far too
    short.

    Args:
        audited: (m,) scores of the removed rows in the audited model, larger where it is surer;
            with classes these are the margins.
        without_rows: (k, m) the same in retrained models.
        confidence: Of the interval, in (0, 1).

    Raises:
        AuditError: There are fewer than 3 models, or shapes disagree.
    """
    _check(audited, without_rows, without_rows)
    k = len(without_rows)
    value = _wins(audited, without_rows)
    null = [_wins(row, np.delete(without_rows, j, 0)) - 0.5 for j, row in enumerate(without_rows)]
    # They average to exactly 0: every win of one model is a loss of another.
    spread = np.sqrt(np.square(null).sum() / (k - 1))
    return RelativeConfidence(value, _reach(float(spread), k, confidence))


def _wins(audited: Array, others: Array) -> float:
    return float(((audited > others) + 0.5 * (audited == others)).mean())


def _position(audited: Array, with_rows: Array, without_rows: Array) -> float:
    """Along the discriminant, scaled to 0 at the mean without the rows and 1 with them."""
    start = without_rows.mean(0)
    step = with_rows.mean(0) - start
    direction = _solve(np.concatenate([with_rows - with_rows.mean(0), without_rows - start]), step)
    distance = step @ direction
    if distance == 0:
        raise AuditError(
            "models with and without the removed rows give exactly the same mean margins; check "
            "that the deletion set is the one they were trained without"
        )
    return float((audited - start) @ direction / distance)


def _solve(deviations: Array, step: Array) -> Array:
    """Σ⁻¹ step for Σ = (1-s)·RᵀR/N + s·μ·I, by Woodbury: N models, however many rows."""
    count, rows = deviations.shape
    mean_variance = np.square(deviations).sum() / (count * rows)
    if mean_variance == 0:
        raise _no_chance()
    shrinkage = max(SMALLEST_SHRINKAGE, _shrinkage(deviations))
    scale, ridge = (1 - shrinkage) / count, shrinkage * mean_variance
    if scale == 0:
        scaled: Array = step / ridge
        return scaled
    inner = deviations @ deviations.T + ridge / scale * np.eye(count)
    solved: Array = (step - deviations.T @ np.linalg.solve(inner, deviations @ step)) / ridge
    return solved


def _shrinkage(deviations: Array) -> float:
    """Share of the mean variance in the covariance of centred (N, n) rows (Ledoit & Wolf, 2004).

    ``sklearn.covariance.ledoit_wolf_shrinkage`` gives the same, and takes a second to import.
    """
    count, rows = deviations.shape
    squares = np.square(deviations)
    mean_variance = squares.sum() / (count * rows)
    products = np.square(deviations @ deviations.T).sum() / count**2
    error = (np.square(squares.sum(1)).sum() / count - products) / (count * rows)
    distance = products / rows - mean_variance**2
    return float(min(error, distance) / distance) if distance > 0 else 0.0


def prediction_band(values: ArrayLike, confidence: float) -> float:
    """Half the width of the interval for one more draw of the (k,) normal ``values`` (Student)."""
    known = np.asarray(values, dtype=np.float64)
    return _reach(float(known.std(ddof=1)), len(known), confidence)


def _reach(spread: float, k: int, confidence: float) -> float:
    quantile = stdtrit(k - 1, (1 + confidence) / 2)
    return float(quantile * spread * np.sqrt(1 + 1 / k))


def _no_chance() -> AuditError:
    return AuditError(
        "the models trained for the audit all give the same margins, so that chance cannot be "
        "told from influence; check that their seeds differ"
    )


def _check(audited: Array, with_rows: Array, without_rows: Array) -> None:
    shapes = {audited.shape[-1:], with_rows.shape[1:], without_rows.shape[1:]}
    if audited.ndim != 1 or len(audited) == 0 or len(shapes) != 1:
        raise AuditError(
            f"margins must be of the same removed rows, got {audited.shape}, {with_rows.shape} "
            f"and {without_rows.shape}; pass (m,), (k, m) and (k, m)"
        )
    fewest = min(len(with_rows), len(without_rows))
    if fewest < FEWEST:
        raise AuditError(
            f"the gap to retraining needs at least {FEWEST} models of each kind, got {fewest}; "
            "raise audit.models"
        )
