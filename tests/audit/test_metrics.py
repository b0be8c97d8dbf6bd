from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from puma.audit import auc, rate
from puma.errors import AuditError


@pytest.mark.parametrize("decimals", [0, 1, 12], ids=["many ties", "some ties", "no ties"])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 50), (70, 40)])
def test_auc_agrees_with_sklearn(sizes: tuple[int, int], decimals: int) -> None:
    random = np.random.default_rng(7)
    members = np.round(random.normal(0.5, 1, sizes[0]), decimals)
    nonmembers = np.round(random.normal(0, 1, sizes[1]), decimals)
    truth = np.repeat([1, 0], sizes)
    expected = roc_auc_score(truth, np.concatenate([members, nonmembers]))
    assert auc(members, nonmembers) == pytest.approx(expected, abs=1e-12)


def test_auc_is_one_when_every_member_scores_higher() -> None:
    assert auc([2.0, 3.0], [0.0, 1.0, -1.0]) == 1.0
    assert auc([0.0, 1.0, -1.0], [2.0, 3.0]) == 0.0


def test_constant_scores_tell_nothing() -> None:
    assert auc(np.full(9, 0.3), np.full(4, 0.3)) == 0.5


def test_rate_counts_scores_above_the_threshold() -> None:
    assert rate([0.2, 0.5, 0.51, 0.9]) == 0.5
    assert rate([0.2, 0.5, 0.51, 0.9], threshold=0.1) == 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_scores_are_refused(value: float) -> None:
    with pytest.raises(AuditError, match=r"1 of 2 member scores are NaN or infinite"):
        auc([0.1, value], [0.2])
    with pytest.raises(AuditError, match=r"1 of 2 non-member scores are NaN or infinite"):
        auc([0.2], [value, 0.1])
    with pytest.raises(AuditError, match="NaN or infinite"):
        rate([value])


def test_empty_sides_are_refused() -> None:
    with pytest.raises(AuditError, match=r"member scores .* at least one, got shape \(0,\)"):
        auc([], [0.2])
    with pytest.raises(AuditError, match=r"non-member scores .* at least one"):
        auc([0.2], [])
    with pytest.raises(AuditError, match="at least one"):
        rate([])


def test_scores_of_two_dimensions_are_refused() -> None:
    with pytest.raises(AuditError, match=r"one number per example .* got shape \(2, 2\)"):
        auc(np.zeros((2, 2)), [0.2])
