"""The weights λ of Eq. 10: how far each retained example compensates for the removed ones.

A new re-weighter is one file with a class that has a ``weights`` method, and one row of
REWEIGHTERS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

import torch
from torch import Tensor

from puma.errors import DataError, SettingsError, require_type
from puma.influence.reweighting.exact_solution import Exact, NoReweighting
from puma.influence.reweighting.problem import Bounds, Problem, Reweighter
from puma.influence.reweighting.scipy_optimisers import LBFGSB, SLSQP

REWEIGHTERS: dict[str, Callable[..., Reweighter]] = {
    "exact": Exact,
    "lbfgsb": LBFGSB,
    "none": NoReweighting,
    "slsqp": SLSQP,
}


def reweight(
    scores: Tensor,
    target: float | Tensor,
    *,
    l1: float,
    l2: float,
    bounds: Bounds = (-1.0, 1.0),
    solver: str | Reweighter = "exact",
) -> Tensor:
    """(n,) λ minimising ‖Ψλ − target‖² + l1·‖λ‖₁ + l2·‖λ‖² within ``bounds`` (Eq. 10).

    λ_j > 0 up-weights example j. λ has no unit; for K = 1 it has the sign of ψ_j·target. Computed
    in double precision, returned in the dtype of ``scores``.

    λ = 0 exactly when l1 >= 2·|Ψ_jᵀ·target| for all examples j that the bounds let move. Where
    the minimiser is not unique and solved exactly, K = 1: with l1 = l2 = 0 it is the one of least
    norm, the limit l2 -> 0; with l2 = 0 alone, examples of equal |ψ| get the same fraction of
    their bounds, or equal shares where these are infinite. K > 1 with l2 = 0: one of the
    minimisers, the same for examples of equal scores; any l2 > 0 makes it unique.

    Args:
        scores: Ψ, the ψ of the examples to up-weight: (n,), or (K, n) to preserve K criteria at
            once. The scale of a row says how much its criterion matters.
        target: Σψ of the removed examples: a number, or (K,).
        l1: Penalty on Σ|λ_j|, >= 0.
        l2: Penalty on Σλ_j², >= 0.
        bounds: Of every λ_j; they must contain 0.
        solver: A name in REWEIGHTERS or, with settings, one of its values.

    Raises:
        DataError: Scores or target are not finite or do not fit each other.
        SettingsError: A negative penalty, bounds without 0, or an unknown solver.
        SolverError: The solver did not converge.
    """
    problem = _problem(scores, target, l1, l2, bounds)
    if isinstance(solver, str):
        if solver not in REWEIGHTERS:
            raise SettingsError(
                f"unknown reweighting solver {solver!r}; choose one of "
                f"{', '.join(sorted(REWEIGHTERS))}"
            )
        solver = REWEIGHTERS[solver]()
    if isinstance(solver, type) or not callable(getattr(solver, "weights", None)):
        raise SettingsError(
            f"solver must be a name or a value such as Exact(), got {solver!r}; choose one of "
            f"{', '.join(sorted(REWEIGHTERS))}"
        )
    return solver.weights(problem).to(scores)


def _problem(
    scores: Tensor, target: float | Tensor, l1: float, l2: float, bounds: Bounds
) -> Problem:
    """The checked problem, in double precision."""
    require_type(scores, Tensor, "scores", DataError, "convert it with torch.as_tensor")
    if scores.ndim not in (1, 2) or 0 in scores.shape[:-1] or not scores.is_floating_point():
        raise DataError(
            "scores must be one floating point number per example, or a row of them per "
            f"criterion, got shape {tuple(scores.shape)} of {scores.dtype}"
        )
    try:
        # A number goes to double precision at once: in between, PyTorch would make it float32.
        sums = (
            target.detach().cpu().double()
            if isinstance(target, Tensor)
            else torch.as_tensor(target, dtype=torch.float64)
        )
    except (RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"target must be numbers, got {type(target).__name__}; pass the sum of the removed ψ"
        ) from error
    if sums.shape != scores.shape[:-1]:
        wanted = f"({len(scores)},), one per row of scores" if scores.ndim == 2 else "one number"
        raise DataError(f"target must be {wanted}, got shape {tuple(sums.shape)}")
    if not torch.isfinite(scores).all() or not torch.isfinite(sums).all():
        raise DataError(
            f"scores and target must be finite, got {int((~torch.isfinite(scores)).sum())} bad "
            f"scores and target {sums.tolist()}; check the solve that made them"
        )
    for name, penalty in (("l1", l1), ("l2", l2)):
        if not (isinstance(penalty, Real) and math.isfinite(penalty) and penalty >= 0):
            raise SettingsError(f"{name} must be finite and >= 0, got {penalty!r}")
    try:
        lower, upper = map(float, bounds)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"bounds must be two numbers, such as (-1.0, 1.0), got {bounds!r}"
        ) from error
    if not lower <= 0 <= upper:
        raise SettingsError(f"bounds must contain 0 (lower <= 0 <= upper), got {tuple(bounds)}")
    rows = torch.atleast_2d(scores.detach().cpu().double())
    return Problem(rows, sums.reshape(-1), l1, l2, (lower, upper))


__all__ = [
    "LBFGSB",
    "REWEIGHTERS",
    "SLSQP",
    "Bounds",
    "Exact",
    "NoReweighting",
    "Problem",
    "Reweighter",
    "reweight",
]
