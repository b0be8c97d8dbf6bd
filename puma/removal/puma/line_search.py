"""How far to go along the removal direction: a line search on MEASURED quantities."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from puma.errors import SettingsError

SMALLEST = 1e-6


class StepSize(NamedTuple):
    """A step size.

    Attributes:
        value: The largest that was found to be allowed.
        capped: Whether the limit stopped the search.
    """

    value: float
    capped: bool


def largest_step_size(
    allowed: Callable[[float], bool],
    *,
    limit: float,
    start: float = 1.0,
    precision: float = 0.02,
) -> StepSize:
    """Find the end of the first interval from 0 on which every step size is allowed, from below.

    The step size doubles from ``start`` until it is not allowed, then bisects: the result is
    allowed, and one that is larger by ``precision`` (relative) is not. What is forbidden and
    allowed again within one doubling is not noticed.

    Returns:
        The step size; 0 when none above 1e-6·start is allowed.

    Raises:
        SettingsError: ``limit`` is not positive.
    """
    if not limit > 0:
        raise SettingsError(f"max_dose must be > 0, got {limit}")
    low, high = 0.0, min(start, limit)
    while allowed(high):
        low = high
        if high == limit:
            return StepSize(low, capped=True)
        high = min(2 * high, limit)
    while high - low > precision * low and high > SMALLEST * min(start, limit):
        middle = (low + high) / 2
        if allowed(middle):
            low = middle
        else:
            high = middle
    return StepSize(low, capped=False)
