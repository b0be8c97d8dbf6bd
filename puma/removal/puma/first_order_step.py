"""The paper's step, Eqs. 9 to 11, with a measured step size."""

from __future__ import annotations

import torch
from torch import Tensor

from puma.influence import (
    Solution,
    directional_derivatives,
    reweight,
    weighted_gradient,
)
from puma.removal.puma.line_search import largest_step_size
from puma.removal.puma.stepper import Stepper

FIRST_ORDER = 1.0  # the dose of first-order influence removal


class FirstOrderStepper(Stepper):
    """Moves every marked row alike, as far as the budget or ``max_dose`` allows."""

    def move(self, *, first: bool) -> dict[str, float]:  # noqa: ARG002
        """Take a step of the largest allowed size."""
        return first_order_step(self, self.settings.max_dose)


def first_order_step(run: Stepper, max_dose: float) -> dict[str, float]:
    """Take the step of Eq. 11, of the largest size that the budget allows, up to ``max_dose``.

    Returns:
        Its numbers: ``dose``, ``dose_capped``, ``drift`` (nats), ``predicted_change`` (of C, to
        first order), ``removed_loss``, and how it was solved.
    """
    direction, slope, solutions = _direction(run)
    start = run.flat.vector

    def allowed(size: float) -> bool:
        return run.affordable(run.drift(start + size * direction))

    size, capped = largest_step_size(allowed, limit=max_dose)
    run.go_to(start + size * direction)
    return {
        "dose": size,
        "dose_capped": float(capped),
        "reweighted": float(run.reweighted),
        "predicted_change": size * slope,
        "drift": run.drift(run.flat.vector),
        "removed_loss": run.removed_loss(),
        **how_solved(solutions),
    }


def how_solved(solutions: list[Solution]) -> dict[str, float]:
    """Sum the iterations of several solves; find their largest residual and smallest factor."""
    return {
        "iterations": float(sum(each.iterations for each in solutions)),
        "residual": max(each.residual for each in solutions),
        "rows": float(min(each.rows for each in solutions)),
    }


def compensation_weights(run: Stepper, preserved: Solution) -> Tensor:
    """Solve Eq. 10 for λ, which makes the retained rows offset Σψ of the marked rows.

    Args:
        run: The removal under way.
        preserved: H⁻¹∇C (Eq. 9).

    Returns:
        (n,) −λ on the retained rows and 0 on the marked.
    """
    scores = directional_derivatives(run.flat, run.train, preserved.value)
    weights = torch.zeros(len(run.train), dtype=scores.dtype)
    weights[~run.marked] = -reweight(
        scores[~run.marked],
        float(scores[run.marked].sum()),
        l1=run.settings.l1,
        l2=run.settings.l2,
        bounds=(-run.settings.max_weight, run.settings.max_weight),
    )
    return weights


def _direction(run: Stepper) -> tuple[Tensor, float, list[Solution]]:
    """(1/n)·H⁻¹(Σ_marked ∇L − Σ_retained λ∇L) (Eq. 11), its first-order change of C, the solves."""
    flat, curvature = run.flat, run.curvature()
    gradient = run.criterion.gradient(flat)
    weights, solutions = run.marked.to(flat.dtype), []
    if run.reweighted:
        preserved = run.solver.solve(curvature, gradient)
        weights = weights + compensation_weights(run, preserved)
        solutions.append(preserved)
    solved = run.solver.solve(curvature, weighted_gradient(flat, run.train, weights))
    n = len(run.train)
    return solved.value / n, float(gradient @ solved.value) / n, [*solutions, solved]
