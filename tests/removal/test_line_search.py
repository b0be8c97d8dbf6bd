"""The line search against functions whose crossing is known in closed form."""

from __future__ import annotations

import math

import pytest

from puma.errors import SettingsError
from puma.removal.puma.line_search import largest_step_size


@pytest.mark.parametrize(
    ("drift", "crossing"),
    [
        (lambda size: 1e-4 * size**2, 10.0),
        (lambda size: 5 * size, 0.002),
        (lambda size: 0.01 * size, 1.0),
        (lambda size: 1e-5 * size, 1000.0),
        (lambda size: math.sin(size / 2000), 2000 * math.asin(0.01)),  # the first of several
    ],
)
def test_finds_the_crossing_from_below(drift, crossing):
    found = largest_step_size(lambda size: drift(size) <= 0.01, limit=1e6)
    assert crossing * 0.98 <= found.value <= crossing * (1 + 1e-12)
    assert not found.capped


def test_precision_is_relative():
    found = largest_step_size(lambda size: size <= 777, limit=1e6, precision=1e-6)
    assert 777 * (1 - 1e-6) <= found.value <= 777


def test_finds_out_when_the_limit_stopped_it():
    assert largest_step_size(lambda _: True, limit=100) == (100, True)


def test_a_limit_below_the_first_guess_is_respected():
    assert largest_step_size(lambda size: size <= 1, limit=0.25) == (0.25, True)


def test_nothing_allowed_is_no_step():
    assert largest_step_size(lambda _: False, limit=1000) == (0.0, False)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_refuses_a_senseless_limit(limit):
    with pytest.raises(SettingsError, match="max_dose must be > 0"):
        largest_step_size(lambda _: True, limit=limit)
