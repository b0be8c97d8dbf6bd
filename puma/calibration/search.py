"""How far to go along a direction: the measured criterion decides, not its slope."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import minimize_scalar

from puma.errors import SettingsError

HALVINGS = 24
REFINEMENTS = 12


def smallest_criterion(
    value: Callable[[float], float],
    allowed: Callable[[float], bool],
    *,
    max_dose: float,
) -> tuple[float, float]:
    """Find the step size in (0, ``max_dose``] with the smallest ``value`` that is ``allowed``.

    ``max_dose`` and 24 halvings of it are tried, down to 6e-8 of it; then the surroundings of the
    best, by scipy's bounded search in the logarithm. Every step size that was tried counts, so
    the answer is never worse than the best of the halvings, however rugged the criterion is.
    A value that is not finite is never taken.

    Returns:
        The step size and the value there; 0 and the value at 0 where nothing allowed is smaller.

    Raises:
        SettingsError: Not 0 < ``max_dose`` < inf.
    """
    if not 0 < max_dose < math.inf:
        raise SettingsError(f"max_dose must be finite and > 0, got {max_dose}")
    tried = {0.0: value(0.0)}

    def attempt(dose: float) -> float:
        reached = value(dose) if allowed(dose) else math.inf
        tried[dose] = reached if math.isfinite(reached) else math.inf
        return tried[dose]

    for halving in range(HALVINGS + 1):
        attempt(max_dose / 2**halving)
    best = min(tried, key=lambda dose: tried[dose])
    if best > 0:
        # scipy interpolates through what it sees, so what is forbidden needs a finite height.
        forbidden = max(reached for reached in tried.values() if math.isfinite(reached)) + 1
        minimize_scalar(
            lambda exponent: min(attempt(math.exp(exponent)), forbidden),
            bounds=(math.log(best / 2), math.log(min(2 * best, max_dose))),
            method="bounded",
            options={"maxiter": REFINEMENTS},
        )
        best = min(tried, key=lambda dose: tried[dose])
    return best, tried[best]
