"""The line search against functions whose crossing is known in closed form."""

from __future__ import annotations

import math

import pytest

from puma.errors import SettingsError
from puma.removal.dose import largest_dose


@pytest.mark.parametrize(
    ("drift", "crossing"),
    [
        (lambda dose: 1e-4 * dose**2, 10.0),
        (lambda dose: -1e-4 * dose**2, 10.0),
        (lambda dose: 5 * dose, 0.002),
        (lambda dose: 0.01 * dose, 1.0),
        (lambda dose: 1e-5 * dose, 1000.0),
    ],
)
def test_finds_the_crossing_from_below(drift, crossing):
    found = largest_dose(drift, budget=0.01, max_dose=1e6)
    assert crossing * 0.98 <= found.dose <= crossing
    assert abs(found.drift) <= 0.01
    assert found.drift == drift(found.dose)
    assert not found.capped


def test_takes_the_first_crossing_of_a_drift_that_returns():
    found = largest_dose(lambda dose: math.sin(dose / 20), budget=0.5, max_dose=1e6)
    assert found.dose == pytest.approx(20 * math.asin(0.5), rel=0.02)


def test_says_when_the_limit_stopped_it():
    found = largest_dose(lambda _: 0.0, budget=0.01, max_dose=100)
    assert (found.dose, found.capped) == (100, True)


def test_a_limit_below_the_first_guess_is_respected():
    found = largest_dose(lambda dose: dose, budget=1.0, max_dose=0.25)
    assert (found.dose, found.capped) == (0.25, True)


def test_loss_that_overflows_counts_as_a_broken_budget():
    found = largest_dose(lambda dose: math.nan if dose > 3 else 0.0, budget=0.01, max_dose=1000)
    assert 3 * 0.98 <= found.dose <= 3


def test_refuses_when_no_dose_keeps_the_budget():
    with pytest.raises(SettingsError, match="raise the budget or the damping"):
        largest_dose(lambda _: 1.0, budget=0.01, max_dose=1000)


@pytest.mark.parametrize("arguments", [{"budget": 0.0}, {"budget": math.nan}, {"max_dose": -1.0}])
def test_refuses_senseless_limits(arguments):
    with pytest.raises(SettingsError, match="must be > 0"):
        largest_dose(lambda dose: dose, **{"budget": 1.0, "max_dose": 1.0, **arguments})
