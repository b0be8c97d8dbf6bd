"""How far to go along the removal direction: a line search on MEASURED quantities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from puma.errors import SettingsError

SMALLEST = 1e-6


@dataclass(frozen=True)
class Dose:
    """``dose`` is the largest that was found to be allowed; ``capped``: the limit stopped it."""

    dose: float
    capped: bool
    evaluations: int


def largest_dose(
    allowed: Callable[[float], bool],
    *,
    max_dose: float,
    start: float = 1.0,
    precision: float = 0.02,
) -> Dose:
    """The end of the first interval from 0 on which every dose is allowed, from below.

    The dose grows by doubling from ``start`` until it is not allowed, then bisects: the answer
    is allowed, and a dose ``precision`` (relative) larger is not. What is forbidden and allowed
    again within one doubling is not noticed. The dose is 0 when none above 1e-6·start is
    allowed. Raises SettingsError when max_dose is not positive.
    """
    if not max_dose > 0:
        raise SettingsError(f"max_dose must be > 0, got {max_dose}")
    evaluations = 1
    low, high = 0.0, min(start, max_dose)
    while allowed(high):
        low = high
        if high == max_dose:
            return Dose(low, capped=True, evaluations=evaluations)
        high = min(2 * high, max_dose)
        evaluations += 1
    while high - low > precision * low and high > SMALLEST * min(start, max_dose):
        middle = (low + high) / 2
        evaluations += 1
        if allowed(middle):
            low = middle
        else:
            high = middle
    return Dose(low, capped=False, evaluations=evaluations)
