from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from puma.errors import DataError
from puma.metrics import auc, roc


@pytest.mark.parametrize("decimals", [0, 1, 12], ids=["many ties", "some", "none"])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 50), (70, 40)])
def test_auc_agrees_with_sklearn(sizes: tuple[int, int], decimals: int) -> None:
    random = np.random.default_rng(7)
    positives, negatives = (np.round(random.normal(size=size), decimals) for size in sizes)
    truth = np.repeat([1, 0], sizes)
    expected = roc_auc_score(truth, np.concatenate([positives, negatives]))
    assert auc(positives, negatives) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("decimals", [0, 1, 12], ids=["many ties", "some", "none"])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 50), (70, 40)])
def test_roc_agrees_with_sklearn(sizes: tuple[int, int], decimals: int) -> None:
    random = np.random.default_rng(8)
    positives, negatives = (np.round(random.normal(size=size), decimals) for size in sizes)
    truth = np.repeat([1, 0], sizes)
    false, true, _ = roc_curve(
        truth, np.concatenate([positives, negatives]), drop_intermediate=False
    )
    np.testing.assert_array_equal(roc(positives, negatives), (false, true))


def test_auc_of_groups_that_separate_and_of_constants() -> None:
    assert auc([2, 3], [0, 1, -1]) == 1
    assert auc([0, 1, -1], [2, 3]) == 0
    assert auc([0.3] * 9, [0.3] * 4) == 0.5


@pytest.mark.parametrize("bad", [[], [[1.0, 2.0]], [1.0, np.nan], [-np.inf]])
def test_auc_refuses_what_it_cannot_rank(bad: list[float]) -> None:
    with pytest.raises(DataError, match="positive scores"):
        auc(bad, [0.0])
    with pytest.raises(DataError, match="negative scores"):
        auc([0.0], bad)
