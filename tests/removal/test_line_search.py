"""The line search against functions whose crossing is known in closed form."""

from __future__ import annotations

import math

import pytest

from puma.errors import SettingsError
from puma.removal.puma.line_search import largest_dose


@pytest.mark.parametrize(
    ("drift", "crossing"),
    [
        (lambda dose: 1e-4 * dose**2, 10.0),
        (lambda dose: 5 * dose, 0.002),
        (lambda dose: 0.01 * dose, 1.0),
        (lambda dose: 1e-5 * dose, 1000.0),
        (lambda dose: math.sin(dose / 2000), 2000 * math.asin(0.01)),  # the first of several
    ],
)
def test_finds_the_crossing_from_below(drift, crossing):
    asked = []

    def allowed(dose):
        asked.append(dose)
        return drift(dose) <= 0.01

    found = largest_dose(allowed, max_dose=1e6)
    assert crossing * 0.98 <= found.dose <= crossing * (1 + 1e-12)
    assert not found.capped
    assert found.evaluations == len(asked)


def test_precision_is_relative():
    found = largest_dose(lambda dose: dose <= 777, max_dose=1e6, precision=1e-6)
    assert 777 * (1 - 1e-6) <= found.dose <= 777


def test_says_when_the_limit_stopped_it():
    found = largest_dose(lambda _: True, max_dose=100)
    assert (found.dose, found.capped) == (100, True)


def test_a_limit_below_the_first_guess_is_respected():
    found = largest_dose(lambda dose: dose <= 1, max_dose=0.25)
    assert (found.dose, found.capped) == (0.25, True)


def test_nothing_allowed_is_no_dose():
    found = largest_dose(lambda _: False, max_dose=1000)
    assert (found.dose, found.capped) == (0.0, False)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_refuses_a_senseless_limit(limit):
    with pytest.raises(SettingsError, match="max_dose must be > 0"):
        largest_dose(lambda _: True, max_dose=limit)
