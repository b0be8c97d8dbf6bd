"""The audit's numbers again: by loops over pairs, dense matrices, SciPy and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu, norm, wasserstein_distance
from scipy.stats import t as student
from sklearn.covariance import ledoit_wolf
from sklearn.metrics import roc_auc_score

from puma.audit import Population

Floats = NDArray[np.float64]


def wins(members: Floats, nonmembers: Floats) -> Floats:
    """(m, n): 1 where the member scores higher, a tie one half."""
    table = np.empty((len(members), len(nonmembers)))
    for i, member in enumerate(members):
        for j, other in enumerate(nonmembers):
            table[i, j] = 1.0 if member > other else 0.5 if member == other else 0.0
    return table


def wilson(value: float, trials: float, confidence: float) -> list[float]:
    """Where a share p is just one quantile away: (value − p)² = z²·p·(1 − p)/trials."""
    z = norm.ppf((1 + confidence) / 2)
    shift = z**2 / trials
    ends: list[float] = np.roots([1 + shift, -2 * value - shift, value**2]).real.tolist()
    return sorted(ends)


def delong(table: Floats) -> float:
    """The variance of the mean of :func:`wins` (DeLong et al., 1988), by its definition."""
    m, n = table.shape
    value = table.mean()
    of_members = sum((row.mean() - value) ** 2 for row in table) / (m - 1)
    of_nonmembers = sum((column.mean() - value) ** 2 for column in table.T) / (n - 1)
    return float(of_members / m + of_nonmembers / n)


def auc_of(members: Floats, nonmembers: Floats) -> float:
    truth = np.repeat([1, 0], [len(members), len(nonmembers)])
    return float(roc_auc_score(truth, np.concatenate([members, nonmembers])))


def best_rate(members: Floats, nonmembers: Floats, level: float) -> float:
    """Share of members over the best of all thresholds that few enough non-members pass."""
    best = 0.0
    for threshold in [np.inf, *members, *nonmembers]:
        if (nonmembers >= threshold).sum() <= level * len(nonmembers) + 1e-9:
            best = max(best, float((members >= threshold).mean()))
    return best


def likelihood_ratios(shadows: Population, values: Floats, rows: NDArray[np.int64]) -> Floats:
    """Carlini et al. (2022), Algorithm 1, with one variance for each side (Section VI-B)."""
    spreads, means = {}, {}
    for side in (True, False):
        squares, freedom = 0.0, 0
        for row in range(shadows.margins.shape[1]):
            chosen = [k for k in range(len(shadows)) if shadows.member[k, row] == side]
            own = [shadows.margins[k, row] for k in chosen]
            means[side, row] = sum(own) / len(own)
            squares += sum((each - means[side, row]) ** 2 for each in own)
            freedom += len(own) - 1
        spreads[side] = math.sqrt(squares / freedom)
    return np.array(
        [
            norm.logpdf(value, means[True, row], spreads[True])
            - norm.logpdf(value, means[False, row], spreads[False])
            for value, row in zip(values, rows.tolist(), strict=True)
        ]
    )


def without_one(models: Floats, j: int) -> Floats:
    return np.array([row for place, row in enumerate(models) if place != j])


def reach(values: Floats, confidence: float) -> float:
    """Half a prediction interval for one more normal value."""
    k = len(values)
    deviation = np.sqrt(((values - values.mean()) ** 2).sum() / (k - 1))
    return float(student(k - 1).isf((1 - confidence) / 2) * deviation * np.sqrt(1 + 1 / k))


def covariance(with_rows: Floats, without_rows: Floats) -> Floats:
    """Of the deviations from each group's mean, shrunk as scikit-learn does, by 0.001 at least."""
    groups = [with_rows - with_rows.mean(0), without_rows - without_rows.mean(0)]
    deviations = np.concatenate(groups)
    shrunk, shrinkage = ledoit_wolf(deviations, assume_centered=True)
    found: Floats = shrunk
    if shrinkage < 1e-3:
        empirical = deviations.T @ deviations / len(deviations)
        m = len(empirical)
        found = 0.999 * empirical + 0.001 * np.trace(empirical) / m * np.eye(m)
    return found


def position(audited: Floats, with_rows: Floats, without_rows: Floats) -> float:
    """Along the discriminant: 0 at the mean of the models without the rows, 1 with them."""
    step = with_rows.mean(0) - without_rows.mean(0)
    direction = np.linalg.solve(covariance(with_rows, without_rows), step)
    return float((audited - without_rows.mean(0)) @ direction / (step @ direction))


def left_out(with_rows: Floats, without_rows: Floats) -> tuple[Floats, Floats]:
    """Positions of each model without, and of each model with the rows, by the others."""
    low = [
        position(row, with_rows, without_one(without_rows, j)) for j, row in enumerate(without_rows)
    ]
    high = [
        position(row, without_one(with_rows, j), without_rows) for j, row in enumerate(with_rows)
    ]
    return np.array(low), np.array(high)


def mean_distance(audited: Floats, models: Floats) -> float:
    return float(
        np.mean([wasserstein_distance([x], r) for x, r in zip(audited, models.T, strict=True)])
    )


def mean_wins(audited: Floats, models: Floats) -> float:
    pairs = zip(audited, models.T, strict=True)
    counts = [mannwhitneyu([x], r, method="asymptotic").statistic for x, r in pairs]
    return float(np.mean(counts) / len(models))
