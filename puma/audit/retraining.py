"""How far a model is from retraining, by the margins of models trained with and without a request.

k models are trained on everybody (``with``) and k on everybody but the removed people
(``without``), from initial weights and batches of their own. What differs between the two
groups is what the removed rows did; what differs within one is chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student
from sklearn.covariance import ledoit_wolf_shrinkage

from puma.audit.metrics import worst
from puma.audit.predictions import Array
from puma.errors import AuditError

FEWEST = 3  # models of each kind: one left out, two for a spread
SMALLEST_SHRINKAGE = 1e-3  # keeps the covariance invertible; Ledoit and Wolf's is larger


@dataclass(frozen=True)
class RemainingInfluence:
    """How much of what the removed rows did to their own answers is still there.

    value: 1 = as in models trained on them, 0 = as in retrained models, below 0 = past them.
    chance: half the band in which retrained models themselves lie about 0, and so the half
        width of the interval about ``value``.
    told_apart: whether the bands of the models with and without the rows do not touch, so that
        this audit would have noticed a removal that did nothing.
    """

    value: float
    chance: float
    told_apart: bool


def remaining_influence(
    audited: Array, with_rows: Array, without_rows: Array, *, confidence: float = 0.95
) -> RemainingInfluence:
    """Where ``audited`` stands between models trained with and without the removed rows.

    audited: (m,) margins of the m removed rows. with_rows, without_rows: (k, m) the same in the
    two groups of models.

    The margins are projected on the direction that tells the groups apart best if both are
    normal with one covariance: Fisher's discriminant, which is the likelihood ratio of Neyman
    and Pearson, LiRA's per-row ratio extended to all removed rows at once. Rows of one model
    move together and there are more of them than models, hence a joint covariance, shrunk as
    Ledoit and Wolf (2004) do. The position is scaled so that the groups' means are 0 and 1, and
    the bands are prediction intervals (Student) of positions that each model takes in a
    discriminant fitted without it.

    Raises AuditError for fewer than 3 models of a kind, shapes that disagree, or groups that do
    not vary.
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
        # Their centre is above 0: the direction also follows the noise of the groups' means,
        # which a further model does not share; the more rows and the less influence, the higher.
        float(abs(np.mean(left_out)) + band),
        bool(np.mean(left_out) + band < np.mean(left_in) - top_band),
    )


@dataclass(frozen=True)
class GapToRetraining:
    """Per removed row, the distance of its margin from those of retrained models.

    mean: of the rows' 1-Wasserstein distances, in units of the logit margin: mean |x - r| over
        the retrained models, as ``audited`` is one model and its distribution one point.
    expected: what retrained models show of each other, on average; a gap near it is chance.
    worst: over the worst 1 % of the rows, at least one.
    chance: half the band in which mean/expected of retrained models lies about 1.
    below: whether the audited margins are, on average, below the retrained models'.
    """

    mean: float
    expected: float
    worst: float
    chance: float
    below: bool

    @property
    def ratio(self) -> float:
        """How many times further than retrained models are from each other."""
        return self.mean / self.expected


def gap_to_retraining(
    audited: Array, without_rows: Array, *, confidence: float = 0.95
) -> GapToRetraining:
    """See :class:`GapToRetraining`; in the spirit of KLOM and U-LiRA, for one audited model.

    audited: (m,) margins of the removed rows. without_rows: (k, m) of the retrained models.
    Raises AuditError for fewer than 3 of these, shapes that disagree, or models that do not vary.
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
    return GapToRetraining(
        float(rows.mean()),
        expected,
        worst(rows),
        unshared * prediction_band(np.array(others) / expected, confidence),
        bool(audited.mean() < without_rows.mean()),
    )


@dataclass(frozen=True)
class RelativeConfidence:
    """``value``: see :func:`surer_than_retrained`. ``chance``: half its interval."""

    value: float
    chance: float


def surer_than_retrained(
    audited: Array, without_rows: Array, *, confidence: float = 0.95
) -> RelativeConfidence:
    """Chance that ``audited`` is surer of a removed row's label than a retrained model is.

    The AUC of telling the two apart by the margin of the same row, a tie counting one half:
    0.5 = indistinguishable, above: rows still known, below: loss abnormally high. The interval
    is what retrained models themselves show against each other, moved to the value: rows of one
    model move together, so that an interval over rows would be far too short.
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
    shrinkage = max(
        SMALLEST_SHRINKAGE, float(ledoit_wolf_shrinkage(deviations, assume_centered=True))
    )
    scale, ridge = (1 - shrinkage) / count, shrinkage * mean_variance
    if scale == 0:
        return step / ridge
    inner = deviations @ deviations.T + ridge / scale * np.eye(count)
    solved: Array = (step - deviations.T @ np.linalg.solve(inner, deviations @ step)) / ridge
    return solved


def prediction_band(values: ArrayLike, confidence: float) -> float:
    """Half the interval in which one more like the (k,) normal ``values`` lies (Student)."""
    known = np.asarray(values, dtype=np.float64)
    return _reach(float(known.std(ddof=1)), len(known), confidence)


def _reach(spread: float, k: int, confidence: float) -> float:
    quantile = student.ppf((1 + confidence) / 2, k - 1)
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
