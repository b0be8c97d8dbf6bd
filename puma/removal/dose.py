"""How far to go along the removal direction: a line search on a MEASURED quantity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from puma.errors import SettingsError


@dataclass(frozen=True)
class Dose:
    """``dose`` is the largest found whose ``drift`` keeps the budget; ``capped`` at the limit."""

    dose: float
    drift: float
    capped: bool
    evaluations: int


def largest_dose(
    drift: Callable[[float], float],
    *,
    budget: float,
    max_dose: float,
    start: float = 1.0,
    precision: float = 0.02,
) -> Dose:
    """The end of the first interval from 0 on which |drift(τ)| ≤ budget, from below.

    Eq. 2 enforced on the measured criterion instead of its Taylor expansion: ``drift(τ)`` is
    C(θ(τ)) − C(θ), with drift(0) = 0. The dose grows by doubling from ``start`` until the
    budget breaks, then bisects; the answer keeps the budget and a dose ``precision`` (relative)
    larger breaks it. A drift that leaves the budget and comes back within one doubling is not
    noticed. A non-finite drift counts as a broken budget. Raises SettingsError when budget or
    max_dose is not positive, or when no dose above 1e-6·start keeps the budget.
    """
    if not budget > 0 or not max_dose > 0:
        raise SettingsError(f"budget and max_dose must be > 0, got {budget} and {max_dose}")
    evaluations = 0

    def measure(dose: float) -> tuple[float, bool]:
        nonlocal evaluations
        evaluations += 1
        value = drift(dose)
        return value, abs(value) <= budget  # False for NaN

    low, low_drift = 0.0, 0.0
    high = min(start, max_dose)
    while True:
        value, kept = measure(high)
        if not kept:
            break
        low, low_drift = high, value
        if high == max_dose:
            return Dose(low, low_drift, capped=True, evaluations=evaluations)
        high = min(2 * high, max_dose)
    while high - low > precision * low:
        if high < 1e-6 * start:
            raise SettingsError(
                f"even a dose of {high:.1e} changes the criterion by {value:.2e}, more than the "
                f"budget {budget:.2e}; raise the budget or the damping"
            )
        middle = (low + high) / 2
        value, kept = measure(middle)
        if kept:
            low, low_drift = middle, value
        else:
            high = middle
    return Dose(low, low_drift, capped=False, evaluations=evaluations)
