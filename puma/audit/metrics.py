"""Measures of membership scores. A higher score means more likely a member."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from puma import metrics
from puma.audit.predictions import Array
from puma.errors import AuditError


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval, low <= value <= high."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Resolved:
    """A number, or None and why the data cannot resolve it."""

    value: float | None
    reason: str = ""


def auc_interval(
    member_scores: ArrayLike, nonmember_scores: ArrayLike, *, confidence: float = 0.95
) -> Interval:
    """:func:`puma.metrics.auc` with a confidence interval, for independent rows.

    The variance is that of DeLong et al. (1988). The interval is Wilson's for a share of the same
    variance, that is with AUC·(1 - AUC)/variance trials. Unlike value ± z·σ it stays within
    [0, 1], and it has a width where the groups separate: min(m, n) trials are assumed there. With
    a single row in a group nothing is known of its spread, and one trial is assumed.

    Args:
        member_scores: (m,), m >= 1.
        nonmember_scores: (n,), n >= 1.
        confidence: Of the interval, in (0, 1).

    Raises:
        AuditError: A side is empty or holds NaN or infinity.
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
    z = float(ndtri((1 + confidence) / 2))
    centre = (value + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * np.sqrt(spread / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    return Interval(value, max(0.0, float(centre - half)), min(1.0, float(centre + half)))


def roc(member_scores: ArrayLike, nonmember_scores: ArrayLike) -> tuple[Array, Array]:
    """False-positive and true-positive rates of every threshold, both from 0 up to 1."""
    return metrics.roc(*_sides(member_scores, nonmember_scores))


def tpr_at_fpr(member_scores: ArrayLike, nonmember_scores: ArrayLike, level: float) -> Resolved:
    """Find the largest true-positive rate with a false-positive rate of at most ``level``.

    It is unresolved if there are fewer than 1/level non-members: the lowest rate above 0 that n
    of them can show is 1/n.
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
    """Share of ``scores`` above ``threshold``: the rows that are taken for members.

    Raises:
        AuditError: There are no scores, or they hold NaN or infinity.
    """
    return float((_checked(scores, "scores") > threshold).mean())


def worst(values: ArrayLike, share: float = 0.01) -> float:
    """Mean of the largest ``share`` of ``values``, and of at least one of them."""
    ordered = np.sort(_checked(values, "values"))
    return float(ordered[-max(1, round(share * len(ordered))) :].mean())


def _placements(members: Array, nonmembers: Array) -> tuple[Array, Array]:
    """(m,) share of non-members below each member, and (n,) of members above each non-member.

    Ties count one half; the mean of either is the AUC, their variances are DeLong's.
    """
    return metrics.share_below(members, nonmembers), 1 - metrics.share_below(nonmembers, members)


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
