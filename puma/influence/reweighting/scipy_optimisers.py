"""The paper's general optimisers, SLSQP (Algorithm 1) and L-BFGS: slower, and not exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from puma.errors import require_max_bytes, require_memory
from puma.influence.reweighting.exact_solution import check_limits
from puma.influence.reweighting.problem import Problem
from puma.influence.solvers.solver import not_converged

FLOOR = 1e-6  # of the slope at λ = 0: below it, a violation is held against this


@dataclass(frozen=True)
class SLSQP:
    """The paper's optimiser: sequential least squares, with the analytic gradient.

    An iteration takes time in n³ (for several criteria (2n)³): seconds in all at n = 450 and one
    criterion. Fed with the l1 term as it stands, kinks included, it meets its iteration limit
    there; see ``_minimise``.

    Attributes:
        tolerance: Convergence is judged on the weights themselves, whatever scipy reports: the
            violation of the optimality conditions must be <= ``tolerance`` times the largest of
            l1, 2·l2·|λ| and a millionth of the slope at λ = 0.
        max_iterations: Of scipy's optimiser.
        require_convergence: Raise SolverError where that is missed. Otherwise warn, and return
            the weights reached.
        max_bytes: The memory for scipy's workspace: 84·n² bytes, for several criteria 84·(2n)².

    Raises:
        SettingsError: A tolerance outside (0, 1), no iterations, or no memory.
    """

    tolerance: float = 1e-3
    max_iterations: int = 100
    require_convergence: bool = True
    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        check_limits(self.tolerance, max_iterations=self.max_iterations)
        require_max_bytes(self.max_bytes)

    def weights(self, problem: Problem) -> Tensor:
        """(n,) λ. Raises SolverError where the tolerance is missed, or beyond ``max_bytes``."""
        problem = problem.rescaled()
        options = {"ftol": 1e-15, "maxiter": self.max_iterations}
        weights, report = _minimise(problem, "SLSQP", options, self._require_memory)
        _judge("SLSQP", problem, weights, report, self.tolerance, self.require_convergence)
        return weights

    def _require_memory(self, points: int, unknowns: int) -> None:
        # scipy's workspace without constraints: n(n + 1)/2 + 8n² + 2n(n + 1) doubles, and a few n.
        require_memory(
            84 * unknowns**2,
            self.max_bytes,
            f"SLSQP's {unknowns} unknowns for the weights of {points} points",
            "use the reweighter 'exact', whose memory grows with the points alone, weight fewer "
            "points, or raise max_bytes",
        )


@dataclass(frozen=True)
class LBFGSB:
    """Limited-memory BFGS with bounds; settings and convergence as of ``SLSQP``.

    Its memory grows with n alone: 0.1 GB for 250,000 points.
    """

    tolerance: float = 1e-3
    max_iterations: int = 2000
    require_convergence: bool = True

    def __post_init__(self) -> None:
        check_limits(self.tolerance, max_iterations=self.max_iterations)

    def weights(self, problem: Problem) -> Tensor:
        """(n,) λ. Raises SolverError where the tolerance is missed."""
        problem = problem.rescaled()
        slope = problem.slope_at_zero
        options = {
            "ftol": 0,
            "gtol": self.tolerance / 10 * max(problem.l1 / slope, FLOOR) if slope > 0 else 0,
            "maxiter": self.max_iterations,
            "maxfun": 10 * self.max_iterations,
        }
        weights, report = _minimise(problem, "L-BFGS-B", options)
        _judge("L-BFGS-B", problem, weights, report, self.tolerance, self.require_convergence)
        return weights


def _minimise(
    problem: Problem,
    method: str,
    options: dict[str, Any],
    require_fit: Callable[[int, int], None] = lambda points, unknowns: None,  # noqa: ARG005
) -> tuple[Tensor, str]:
    """(λ, scipy's verdict in words) of a rescaled problem.

    λ = λ⁺ − λ⁻ with both >= 0: the l1 term, which has a kink where most weights end, is then
    linear. With one criterion the sign of every λ_j is known, so only its half is searched.
    ``require_fit`` may refuse the (points, unknowns).
    """
    weights = torch.zeros(problem.size, dtype=torch.float64)
    if problem.zero_is_optimal:
        return weights, "nothing to do"
    lower, upper = problem.bounds
    signs = np.repeat([1.0, -1.0], problem.size)
    caps = np.repeat([upper, -lower], problem.size)
    columns = signs * np.tile(problem.scores.numpy(), 2)
    target = problem.target.numpy()
    used = caps > 0
    if len(target) == 1:
        used &= target @ columns > 0
    require_fit(problem.size, int(used.sum()))
    columns, caps, signs = columns[:, used], caps[used], signs[used]

    # Slopes are 1 at most at the start, which gives the optimisers' tolerances a meaning.
    unit = 2 * np.linalg.norm(target) * np.linalg.norm(columns, axis=0).max()
    if unit == 0:  # the squares of the norm vanish: the target is next to nothing
        unit = np.abs(target).max() * np.abs(columns).max()
    from scipy.optimize import minimize  # a third of a second, for two of three ways

    found = minimize(
        _scaled_objective(columns, target, problem.l1, problem.l2, unit),
        np.zeros(len(caps)),
        jac=True,
        bounds=[(0, None if math.isinf(cap) else cap) for cap in caps],
        method=method,
        options=options,
    )
    halves = np.zeros(2 * problem.size)
    if np.isfinite(found.x).all():
        halves[used] = signs * np.clip(found.x, 0, caps)
    weights = torch.from_numpy(halves.reshape(2, -1).sum(axis=0))
    return problem.proximal_step(weights), f"{found.message} after {found.nit} iterations"


def _scaled_objective(
    columns: np.ndarray, target: np.ndarray, l1: float, l2: float, unit: float
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """The objective of λ >= 0 and its gradient, divided by ``unit``."""

    def objective(sizes: np.ndarray) -> tuple[float, np.ndarray]:
        gap = columns @ sizes - target
        value = gap @ gap + l1 * sizes.sum() + l2 * (sizes @ sizes)
        slope = 2 * (gap @ columns) + l1 + 2 * l2 * sizes
        return float(value / unit), slope / unit

    return objective


def _judge(
    name: str, problem: Problem, weights: Tensor, report: str, tolerance: float, required: bool
) -> None:
    """An error, or a warning, unless the weights meet the tolerance."""
    terms = problem.l1, 2 * problem.l2 * float(weights.abs().max()) if problem.size else 0.0
    scale = max(*terms, FLOOR * problem.slope_at_zero)
    violation = problem.violation(weights)
    if violation <= tolerance * scale:
        return
    message = (
        f"{name} did not converge on {problem.size} weights: relative violation of the optimality "
        f"conditions {violation / scale:.3g}, tolerance {tolerance:.3g} ({report}); use "
        "solver='exact', raise max_iterations, or loosen tolerance"
    )
    not_converged(message, required=required, stacklevel=4)
