"""Numbers about membership scores. Higher score = more likely a member; member = 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm, rankdata

from puma.audit.predictions import Array
from puma.errors import AuditError


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its confidence interval, low <= value <= high."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Resolved:
    """A number, or None and why the data cannot tell it."""

    value: float | None
    reason: str = ""


def auc(member_scores: ArrayLike, nonmember_scores: ArrayLike) -> float:
    """Chance that a random member outscores a random non-member, a tie counting one half.

    In [0, 1]: 1 = members always score higher, 0.5 = indistinguishable, 0 = always lower.
    The Mann-Whitney statistic divided by the number of pairs.

    Raises AuditError when a side is empty or holds NaN or infinity.
    """
    return float(_placements(*_sides(member_scores, nonmember_scores))[0].mean())


def auc_interval(
    member_scores: ArrayLike, nonmember_scores: ArrayLike, *, confidence: float = 0.95
) -> Interval:
    """:func:`auc` with a confidence interval, as for rows drawn independently.

    The variance is DeLong's (1988). The interval is Wilson's for a share with the same variance,
    that is with AUC·(1-AUC)/variance trials: unlike value ± z·σ it stays within [0, 1] and does
    not shrink to a point where the groups separate, where min(m, n) trials are assumed. With a
    single row in a group nothing is known of its spread, and one trial is assumed.

    Raises AuditError as :func:`auc` does.
    """
    of_members, of_nonmembers = _placements(*_sides(member_scores, nonmember_scores))
    m, n = len(of_members), len(of_nonmembers)
    value = float(of_members.mean())
    spread = value * (1 - value)
    if min(m, n) == 1:
        trials = 1.0
    else:
        variance = of_members.var(ddof=1) / m + of_nonmembers.var(ddof=1) / n
        trials = spread / variance if variance > 0 else float(min(m, n))
    z = norm.ppf((1 + confidence) / 2)
    centre = (value + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * np.sqrt(spread / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    return Interval(value, max(0.0, float(centre - half)), min(1.0, float(centre + half)))


def bootstrap_auc_interval(
    member_scores: ArrayLike,
    nonmember_scores: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """:func:`auc` with the percentile bootstrap over both groups, drawn separately.

    Slower than :func:`auc_interval`, free of its normal approximation, and a single point where
    the groups separate.
    """
    members, nonmembers = _sides(member_scores, nonmember_scores)
    generator = np.random.default_rng(seed)
    drawn = [
        auc(generator.choice(members, len(members)), generator.choice(nonmembers, len(nonmembers)))
        for _ in range(resamples)
    ]
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    value = auc(members, nonmembers)
    return Interval(value, min(value, float(low)), max(value, float(high)))


def roc(member_scores: ArrayLike, nonmember_scores: ArrayLike) -> tuple[Array, Array]:
    """(false-positive rates, true-positive rates) of every threshold, both from 0 up to 1."""
    from sklearn.metrics import roc_curve

    members, nonmembers = _sides(member_scores, nonmember_scores)
    truth = np.repeat([1, 0], [len(members), len(nonmembers)])
    scores = np.concatenate([members, nonmembers])
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    return false, true


def tpr_at_fpr(member_scores: ArrayLike, nonmember_scores: ArrayLike, level: float) -> Resolved:
    """Share of members found by the best threshold with a false-positive rate of at most ``level``.

    None, with the reason, where there are fewer than 1/level non-members: the lowest rate above
    0 that n of them can show is 1/n.
    """
    members, nonmembers = _sides(member_scores, nonmember_scores)
    needed = int(np.ceil(1 / level - 1e-9))
    if len(nonmembers) < needed:
        return Resolved(
            None,
            f"a false-positive rate of {level:.1%} needs at least {needed} unseen rows, "
            f"there are {len(nonmembers)}",
        )
    false, true = roc(members, nonmembers)
    return Resolved(float(true[false <= level + 1e-12].max()))


def rate(scores: ArrayLike, threshold: float = 0.5) -> float:
    """Share of ``scores`` above ``threshold``, that is: called members. In [0, 1].

    Raises AuditError when there are no scores or they hold NaN or infinity.
    """
    return float((_checked(scores, "scores") > threshold).mean())


def worst(values: ArrayLike, share: float = 0.01) -> float:
    """Mean of the largest ``share`` of ``values``, of at least one of them."""
    ordered = np.sort(_checked(values, "values"))
    return float(ordered[-max(1, round(share * len(ordered))) :].mean())


def _placements(members: Array, nonmembers: Array) -> tuple[Array, Array]:
    """(m,) share of non-members below each member, and (n,) of members above each non-member.

    Ties count one half; the mean of either is the AUC, their variances are DeLong's.
    """
    m, n = len(members), len(nonmembers)
    ranks = rankdata(np.concatenate([members, nonmembers]))
    below = (ranks[:m] - rankdata(members)) / n
    above = 1 - (ranks[m:] - rankdata(nonmembers)) / m
    return below, above


def _sides(member_scores: ArrayLike, nonmember_scores: ArrayLike) -> tuple[Array, Array]:
    return _checked(member_scores, "member scores"), _checked(nonmember_scores, "non-member scores")


def _checked(scores: ArrayLike, what: str) -> Array:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise AuditError(
            f"{what} must be one number per example and at least one, got shape {values.shape}; "
            "pass a group that is not empty"
        )
    bad = int((~np.isfinite(values)).sum())
    if bad:
        raise AuditError(
            f"{bad} of {values.size} {what} are NaN or infinite; "
            "check that the model's weights and its outputs are finite"
        )
    return values
