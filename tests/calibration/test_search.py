"""The dose is the best that was measured, whatever the criterion looks like."""

from __future__ import annotations

import math

import pytest

from puma.calibration import smallest_criterion
from puma.errors import SettingsError


def anything(_dose: float) -> bool:
    return True


@pytest.mark.parametrize("best", [1e-4, 0.3, 7.0, 99.0])
def test_the_bottom_of_a_bowl(best):
    dose, value = smallest_criterion(lambda dose: (dose - best) ** 2, anything, max_dose=100.0)
    assert dose == pytest.approx(best, rel=0.02)
    assert value == (dose - best) ** 2


def test_uphill_is_no_dose_at_all():
    assert smallest_criterion(lambda dose: 3 + dose, anything, max_dose=10.0) == (0, 3)


def test_what_is_flat_is_no_dose():
    assert smallest_criterion(lambda _: 1.0, anything, max_dose=10.0)[0] == 0


def test_downhill_ends_at_the_limit():
    assert smallest_criterion(lambda dose: -dose, anything, max_dose=10.0)[0] == 10


def test_what_is_forbidden_is_never_taken():
    dose, _ = smallest_criterion(lambda dose: -dose, lambda dose: dose <= 3.3, max_dose=10.0)
    assert 2.5 <= dose <= 3.3
    assert smallest_criterion(lambda dose: -dose, lambda dose: dose == 0, max_dose=1.0)[0] == 0


def test_what_is_not_finite_is_never_taken():
    def broken(dose: float) -> float:
        return math.nan if dose > 2 else -dose

    assert 1 <= smallest_criterion(broken, anything, max_dose=64.0)[0] <= 2


def test_the_better_of_two_valleys():
    def valleys(dose: float) -> float:
        return min((math.log(dose + 1e-9) - math.log(0.01)) ** 2, abs(dose - 8) - 1)

    assert smallest_criterion(valleys, anything, max_dose=64.0)[0] == pytest.approx(8, rel=0.01)


@pytest.mark.parametrize("max_dose", [0.0, -1.0, math.inf, math.nan])
def test_impossible_limits_are_refused(max_dose):
    with pytest.raises(SettingsError, match="max_dose must be finite and > 0, got"):
        smallest_criterion(lambda dose: dose, anything, max_dose=max_dose)
