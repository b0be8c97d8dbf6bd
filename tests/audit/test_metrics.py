from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import bootstrap, norm

from puma.audit import Resolved, auc_interval, rate, roc, tpr_at_fpr
from puma.audit.metrics import worst
from puma.errors import AuditError
from puma.metrics import auc
from tests.audit.oracles import Floats, best_rate, delong, wilson, wins

SIZES = [(1, 1), (3, 50), (70, 40), (2, 2)]
DECIMALS = pytest.mark.parametrize("decimals", [0, 1, 12], ids=["many ties", "some", "none"])


def draw(sizes: tuple[int, int], decimals: int, seed: int = 7) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    members = np.round(random.normal(0.5, 1, sizes[0]), decimals)
    return members, np.round(random.normal(0, 1, sizes[1]), decimals)


def test_constant_scores_tell_nothing() -> None:
    members, nonmembers = np.full(9, 0.3), np.full(4, 0.3)
    interval = auc_interval(members, nonmembers)
    assert interval.value == 0.5
    assert [interval.low, interval.high] == pytest.approx(wilson(0.5, 4, 0.95))


@DECIMALS
@pytest.mark.parametrize("sizes", [(3, 50), (70, 40), (25, 2)])
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_the_interval_is_wilsons_with_delongs_variance(
    sizes: tuple[int, int], decimals: int, confidence: float
) -> None:
    members, nonmembers = draw(sizes, decimals)
    table = wins(members, nonmembers)
    value = float(table.mean())
    trials = value * (1 - value) / delong(table)
    found = auc_interval(members, nonmembers, confidence=confidence)
    assert found.value == pytest.approx(value)
    assert [found.low, found.high] == pytest.approx(wilson(value, trials, confidence), abs=1e-7)


@pytest.mark.parametrize("distance", [0.0, 0.8, 2.0], ids=["none", "some", "nearly all"])
def test_the_interval_covers_the_truth_as_often_as_it_says(distance: float) -> None:
    random = np.random.default_rng(3)
    truth, hits = norm.cdf(distance / np.sqrt(2)), 0
    for _ in range(300):
        found = auc_interval(random.normal(distance, 1, 40), random.normal(0, 1, 60))
        hits += found.low <= truth <= found.high
    assert 0.9 <= hits / 300 <= 0.99


@pytest.mark.parametrize("sizes", [(1, 1), (1, 20), (2, 2), (30, 40)])
@pytest.mark.parametrize("swapped", [False, True])
def test_groups_that_separate_leave_an_interval_and_no_point(
    sizes: tuple[int, int], swapped: bool
) -> None:
    above, below = np.arange(sizes[0]) + 100.0, np.arange(sizes[1]) + 0.0
    found = auc_interval(below, above) if swapped else auc_interval(above, below)
    expected = wilson(found.value, min(sizes), 0.95)
    assert found.value == (0.0 if swapped else 1.0)
    assert [found.low, found.high] == pytest.approx(expected, abs=1e-7)
    assert 0 <= found.low < found.high <= 1


def test_a_single_row_leaves_the_auc_nearly_open() -> None:
    found = auc_interval([0.5], np.linspace(0, 1, 101)[np.arange(101) != 50])
    assert found.value == 0.5
    assert [found.low, found.high] == pytest.approx(wilson(0.5, 1, 0.95))
    assert found.high - found.low > 0.8


@DECIMALS
def test_intervals_hold_their_value_and_grow_with_confidence(decimals: int) -> None:
    for seed in range(5):
        sides = draw((4, 6), decimals, seed)
        narrow, wide = (auc_interval(*sides, confidence=level) for level in (0.6, 0.99))
        assert 0 <= wide.low <= narrow.low <= narrow.value <= narrow.high <= wide.high <= 1


def test_the_bootstrap_agrees_with_the_interval() -> None:
    sides = draw((200, 150), 12)
    found = auc_interval(*sides)
    resampled = bootstrap(
        sides, auc, method="percentile", vectorized=False, n_resamples=999, random_state=0
    ).confidence_interval
    assert [found.low, found.high] == pytest.approx([resampled.low, resampled.high], abs=0.015)


@DECIMALS
@pytest.mark.parametrize("sizes", SIZES)
def test_roc_has_a_point_for_every_threshold(sizes: tuple[int, int], decimals: int) -> None:
    members, nonmembers = draw(sizes, decimals)
    thresholds = [np.inf, *sorted({*members, *nonmembers}, reverse=True)]
    false, true = roc(members, nonmembers)
    np.testing.assert_allclose(false, [(nonmembers >= each).mean() for each in thresholds])
    np.testing.assert_allclose(true, [(members >= each).mean() for each in thresholds])
    assert np.trapezoid(true, false) == pytest.approx(auc(members, nonmembers))


@DECIMALS
@pytest.mark.parametrize("sizes", [(30, 10), (3, 50), (1, 200)])
@pytest.mark.parametrize("level", [0.1, 0.25, 0.5])
def test_tpr_at_fpr_is_that_of_the_best_threshold(
    sizes: tuple[int, int], decimals: int, level: float
) -> None:
    members, nonmembers = draw(sizes, decimals)
    expected = best_rate(members, nonmembers, level)
    assert tpr_at_fpr(members, nonmembers, level).value == pytest.approx(expected)


def test_tpr_at_fpr_uses_every_threshold_of_a_straight_curve() -> None:
    scores = np.arange(20.0)  # each shared by a member and a non-member
    assert tpr_at_fpr(scores, scores, 0.1).value == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("level", "n", "words"),
    [
        (0.1, 9, "of 10.0% needs at least 10 unseen rows, there are 9"),
        (0.001, 999, "of 0.1% needs at least 1000 unseen rows, there are 999"),
        (0.3, 3, "of 30.0% needs at least 4 unseen rows, there are 3"),
    ],
)
def test_a_rate_that_so_few_rows_cannot_show_is_none_with_the_reason(
    level: float, n: int, words: str
) -> None:
    found = tpr_at_fpr([1.0, 2.0], np.linspace(0, 0.5, n), level)
    assert found.value is None
    assert found.reason == f"a false-positive rate {words}"
    assert tpr_at_fpr([1.0, 2.0], np.linspace(0, 0.5, n + 1), level) == Resolved(1.0)


def test_rate_counts_scores_above_the_threshold() -> None:
    assert rate([0.2, 0.5, 0.51, 0.9]) == 0.5
    assert rate([0.2, 0.5, 0.51, 0.9], threshold=0.1) == 1.0


@pytest.mark.parametrize(
    ("n", "share", "taken"), [(1, 0.01, 1), (149, 0.01, 1), (250, 0.01, 2), (1000, 0.05, 50)]
)
def test_worst_is_the_mean_of_the_largest(n: int, share: float, taken: int) -> None:
    values = np.random.default_rng(0).permutation(n).astype(float)
    expected = np.mean([n - 1 - place for place in range(taken)])
    assert worst(values, share) == pytest.approx(expected)


OF_TWO_SIDES = pytest.mark.parametrize(
    "measure",
    [auc_interval, roc, lambda *sides: tpr_at_fpr(*sides, 0.5)],
    ids=["interval", "roc", "tpr_at_fpr"],
)


@OF_TWO_SIDES
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_non_finite_scores_are_refused(measure: Callable[..., object], value: float) -> None:
    with pytest.raises(AuditError, match=r"1 of 2 member scores are NaN or infinite"):
        measure([0.1, value], [0.2])
    with pytest.raises(AuditError, match=r"1 of 2 non-member scores are NaN or infinite"):
        measure([0.2], [value, 0.1])


@OF_TWO_SIDES
def test_one_class_alone_is_refused(measure: Callable[..., object]) -> None:
    with pytest.raises(AuditError, match=r"member scores .* at least one, got shape \(0,\)"):
        measure([], [0.2])
    with pytest.raises(AuditError, match=r"non-member scores .* at least one"):
        measure([0.2], [])
    with pytest.raises(AuditError, match=r"one number per example .* got shape \(2, 2\)"):
        measure(np.zeros((2, 2)), [0.2])


@pytest.mark.parametrize("measure", [rate, worst])
def test_rates_and_means_of_nothing_or_of_nan_are_refused(
    measure: Callable[..., float],
) -> None:
    with pytest.raises(AuditError, match="at least one"):
        measure([])
    with pytest.raises(AuditError, match="NaN or infinite"):
        measure([np.nan])
