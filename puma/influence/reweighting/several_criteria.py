"""The exact weights for several criteria: K equations instead of n unknowns.

The proximal point method on λ, its subproblems by semismooth Newton on their dual, as in Li,
Sun and Toh, "A highly efficient semismooth Newton augmented Lagrangian method for solving Lasso
problems" (2018), with the bounds and the ridge of Eq. 10 added.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.errors import SolverError
from puma.influence.reweighting.one_criterion import first
from puma.influence.reweighting.problem import Problem

SHRINK = 0.01  # of the proximal term from one round to the next
FLOOR = 1e-13  # of the proximal term, relative to the curvature of the data term
NEWTON_STEPS = 60


def several_weights(problem: Problem, *, tolerance: float, max_rounds: int) -> Tensor:
    """Find a minimiser λ (n,) with a measured ``problem.residual`` <= ``tolerance``.

    Round k minimises the objective + ρ·‖λ − λ_k‖², with ρ falling to a floor that keeps the
    K x K systems solvable. With the ridge above that floor the last rounds have ρ = 0 and only
    refine. They go on to ``tolerance`` / 100 while they still halve the residual.

    Raises:
        SolverError: ``max_rounds`` rounds do not reach ``tolerance``.
    """
    best = torch.zeros(problem.size, dtype=torch.float64)
    if problem.zero_is_optimal:
        return best
    residual = problem.residual(best)
    weights, size = best, float(problem.scores.square().sum())
    ridge = max(problem.l2, size)  # l2 + ρ
    for _ in range(max_rounds):
        weights, curvature = _Round(problem, weights, ridge).minimise(1e-2 * residual)
        reached = problem.residual(weights)
        floor = max(problem.l2, FLOOR * curvature)
        settled = ridge <= floor or curvature == 0  # a corner is the same for every smaller ridge
        stalled = settled and reached > residual / 2
        if reached < residual:
            best, residual = weights, reached
        if residual <= tolerance / 100 or (stalled and residual <= tolerance):
            return best
        ridge = max(floor, SHRINK * ridge)
    if residual <= tolerance:
        return best
    raise SolverError(
        f"the weights of {len(problem.target)} criteria did not converge: relative KKT residual "
        f"{residual:.3g} after {max_rounds} rounds, tolerance {tolerance:.3g}; raise l2 or "
        "max_rounds, loosen tolerance, or drop criteria whose scores nearly repeat another's"
    )


class _Round:
    """min over λ of (‖Ψλ − target‖² + l1·‖λ‖₁ + l2·‖λ‖² + (ridge − l2)·‖λ − centre‖²) / 2.

    With target − Ψλ = (target − Ψ·centre) + z, each λ_j depends on z alone, and z (K,) is the
    root of ``gap``: monotone, piecewise linear, the gradient of a strongly convex function.
    """

    def __init__(self, problem: Problem, centre: Tensor, ridge: float) -> None:
        self._problem, self._centre, self._ridge = problem, centre, ridge
        rest = problem.target - problem.scores @ centre
        pull = problem.scores.T @ rest - problem.l2 * centre
        # What drives λ_j up from >= 0, and down from <= 0. Formed once, so that its round-off,
        # which is divided by ``ridge``, is the same for every z.
        self._up, self._down = pull - problem.l1 / 2, pull + problem.l1 / 2

    def minimise(self, tolerance: float) -> tuple[Tensor, float]:
        """(λ, trace of ΨΨᵀ over the examples strictly between 0 and a bound).

        Stops at a gap of ``tolerance``·‖target‖ or where round-off lets no step help: whether
        that is good enough, the caller's KKT residual decides.
        """
        scores = self._problem.scores
        goal = tolerance * float(self._problem.target.norm())
        point = self._at(torch.zeros_like(self._problem.target))
        smallest = float(point.gap.norm())
        for _ in range(NEWTON_STEPS):
            if smallest <= goal:
                break
            step = _newton_step(scores[:, point.moving], point.gap, self._ridge)
            found = self._search(point, step, smallest)
            if found is None:
                break
            point, smallest = found, min(smallest, float(found.gap.norm()))
        return point.weights, float(scores[:, point.moving].square().sum())

    def _at(self, z: Tensor) -> _Point:
        lower, upper = self._problem.bounds
        up, down = self._unclipped(z)
        moving = ((up > 0) & (up < upper)) | ((down < 0) & (down > lower))
        weights = up.clamp_(0, upper) + down.clamp_(lower, 0)
        gap = z + self._problem.scores @ (weights - self._centre)
        return _Point(z, weights, moving, gap)

    def _unclipped(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """λ_j is the first, clipped to [0, upper], plus the second, clipped to [lower, 0]."""
        shift = self._problem.scores.T @ z
        up, down = self._up + shift, self._down + shift
        return up.div_(self._ridge).add_(self._centre), down.div_(self._ridge).add_(self._centre)

    def _search(self, start: _Point, step: Tensor, smallest: float) -> _Point | None:
        """The point after the step, whole or in part; None where round-off leaves none.

        The whole step is taken if it halves the smallest gap so far or ends downhill. Else the
        dual function is minimised along it.
        """
        whole = self._at(start.z + step)
        if float(whole.gap.norm()) <= smallest / 2 or float(step @ whole.gap) <= 0:
            return whole
        part = self._best_part(start.z, step)
        return self._at(start.z + part * step) if part > 0 else None

    def _best_part(self, z: Tensor, step: Tensor) -> float:
        """Where in [0, 1] the slope of the dual function along the step is 0; 0 if nowhere.

        The slope rises piecewise linearly: find the segment between two sorted kinks, solve
        there. Slopes, not values: the latter drown in round-off long before the gap does.
        """
        lower, upper = self._problem.bounds
        up, down = self._unclipped(z)
        along = self._problem.scores.T @ step
        rate = along / self._ridge
        first_buffer, second_buffer = torch.empty_like(up), torch.empty_like(up)

        def slope(part: float) -> float:
            weights = torch.add(up, rate, alpha=part, out=first_buffer).clamp_(0, upper)
            weights += torch.add(down, rate, alpha=part, out=second_buffer).clamp_(lower, 0)
            return float(step @ (z + part * step) + along @ weights.sub_(self._centre))

        kinks = torch.cat([-up, upper - up, -down, lower - down]).div_(rate.repeat(4))
        ends = kinks[(kinks > 0) & (kinks < 1)].sort().values
        if len(ends) == 0:  # the step solves a linear system, and yet misses it
            return 0.0
        rising = first(lambda position: slope(float(ends[position])) > 0, len(ends))
        left = float(ends[rising - 1]) if rising > 0 else 0.0
        right = float(ends[rising]) if rising < len(ends) else 1.0
        fall, rise = -slope(left), slope(right)
        return left + (right - left) * fall / (fall + rise) if fall > 0 and rise > 0 else left


@dataclass(frozen=True)
class _Point:
    """``moving`` (n,): which of ``weights`` change with ``z``, strictly between 0 and a bound."""

    z: Tensor
    weights: Tensor
    moving: Tensor
    gap: Tensor


def _newton_step(moving: Tensor, gap: Tensor, ridge: float) -> Tensor:
    """−J⁻¹·gap for J = I + ΨΨᵀ/ridge over the moving examples, an element of gap's Jacobian."""
    values, vectors = torch.linalg.eigh(moving @ moving.T)
    step: Tensor = -ridge * (vectors @ ((vectors.T @ gap) / (values.clamp(min=0) + ridge)))
    return step
