from __future__ import annotations

import math

import pytest

from benchmarks.agreement import (
    DIFFERS,
    HOLDS,
    PATTERN,
    Measured,
    deviations_apart,
    joint_deviation,
    pattern_holds,
    verdict,
)
from puma.errors import DataError


def test_joint_deviations_are_those_worked_out_by_hand() -> None:
    """3 and 4 make 5; 12 points are then 2.4 of them."""
    one, other = Measured(70.0, 3.0), Measured(82.0, 4.0)
    assert joint_deviation(one, other) == pytest.approx(5.0)
    assert deviations_apart(one, other) == pytest.approx(2.4)
    assert deviations_apart(other, one) == pytest.approx(2.4)


def test_without_a_deviation_only_equal_means_agree() -> None:
    assert deviations_apart(Measured(100.0, 0.0), Measured(100.0, 0.0)) == 0
    assert deviations_apart(Measured(100.0, 0.0), Measured(99.0, 0.0)) == math.inf


@pytest.mark.parametrize(
    ("apart", "pattern", "expected"),
    [
        (0.0, False, HOLDS),
        (2.0, False, HOLDS),
        (2.01, False, DIFFERS),
        (2.01, None, DIFFERS),
        (2.01, True, PATTERN),
        (math.inf, True, PATTERN),
        (math.inf, False, DIFFERS),
    ],
)
def test_verdict(apart: float, pattern: bool | None, expected: str) -> None:
    assert verdict(apart, pattern) == expected


def numbers(**means: float) -> dict[str, Measured]:
    """Each with a deviation of 1: told apart beyond 2·√2 = 2.83."""
    return {name: Measured(mean, 1.0) for name, mean in means.items()}


PAPER = numbers(retrain=90.0, puma=80.0, sisa=79.0)  # puma and sisa are not told apart


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (numbers(retrain=50.0, puma=40.0, sisa=30.0), True),
        (numbers(retrain=50.0, puma=30.0, sisa=40.0), True),  # the paper does not tell these apart
        (numbers(retrain=50.0, puma=47.0, sisa=47.0), True),  # 3 apart
        (numbers(retrain=50.0, puma=47.5, sisa=30.0), False),  # the right order, by too little
        (numbers(retrain=50.0, puma=60.0, sisa=30.0), False),  # the other way
        (numbers(retrain=50.0, puma=40.0), True),  # of those that have a number
        (numbers(puma=50.0, sisa=10.0), None),  # the paper says nothing about this pair
        (numbers(retrain=50.0), None),
        ({}, None),
    ],
)
def test_the_pattern_is_every_pair_that_the_paper_tells_apart(
    ours: dict[str, Measured], expected: bool | None
) -> None:
    assert pattern_holds(PAPER, ours) is expected


def test_relative_deviations_of_a_ratio_add_in_quadrature() -> None:
    """30 % and 40 % make 50 %."""
    ratio = Measured(20.0, 6.0).ratio(Measured(5.0, 2.0))
    assert ratio.mean == pytest.approx(4.0)
    assert ratio.std == pytest.approx(2.0)


@pytest.mark.parametrize("wrong", [(math.nan, 1.0), (1.0, math.nan), (1.0, -0.1), (math.inf, 0.0)])
def test_what_is_no_measurement_is_refused(wrong: tuple[float, float]) -> None:
    with pytest.raises(DataError, match="must be finite"):
        Measured(*wrong)


def test_no_ratio_to_nothing() -> None:
    with pytest.raises(DataError, match="above zero"):
        Measured(1.0, 0.0).ratio(Measured(0.0, 0.0))
