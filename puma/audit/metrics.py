"""Numbers about membership scores. Higher score = more likely a member; member = 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from puma.errors import AuditError


def auc(member_scores: ArrayLike, nonmember_scores: ArrayLike) -> float:
    """Chance that a random member outscores a random non-member, a tie counting one half.

    In [0, 1]: 1 = members always score higher, 0.5 = indistinguishable, 0 = always lower.
    The Mann-Whitney statistic divided by the number of pairs.

    Raises AuditError when a side is empty or holds NaN or infinity.
    """
    members = _checked(member_scores, "member scores")
    nonmembers = _checked(nonmember_scores, "non-member scores")
    m, n = len(members), len(nonmembers)
    ranks = rankdata(np.concatenate([members, nonmembers]))
    return float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))


def rate(scores: ArrayLike, threshold: float = 0.5) -> float:
    """Share of ``scores`` above ``threshold``, that is: called members. In [0, 1].

    Raises AuditError when there are no scores or they hold NaN or infinity.
    """
    return float((_checked(scores, "scores") > threshold).mean())


def _checked(scores: ArrayLike, what: str) -> np.ndarray:
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
