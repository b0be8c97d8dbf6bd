"""The paper's step, Eqs. 9 to 11, with a measured step size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.influence import (
    Solution,
    directional_derivatives,
    reweight,
)
from puma.influence.reweighting import Exact
from puma.influence.sharding import agreed
from puma.removal.puma.line_search import largest_step_size
from puma.removal.puma.stepper import Stepper
from puma.removal.results import RowWeights

SEVERAL = 1e-8  # tolerance of λ for several criteria; for one it is exact
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
        first order; with λ, which needs the gradient of C), ``removed_loss``, and how it was
        solved.
    """
    direction, slope, solutions = _direction(run)
    start = run.flat.vector
    refused: tuple[str, ...] = ()
    kept: tuple[float, ...] | None = None

    def allowed(size: float) -> bool:
        nonlocal refused, kept
        drifts = run.drifts(start + size * direction)
        broken = run.broken(drifts)
        if broken:
            refused = broken  # in the end, of the smallest size that was refused
        else:
            kept = drifts  # in the end, of the largest size that was allowed
        return not broken

    size, capped = largest_step_size(allowed, limit=max_dose)
    run.bound_by = () if capped else refused
    run.go_to(start + size * direction)
    predicted = {} if slope is None else {"predicted_change": size * slope}
    return {
        "dose": size,
        "dose_capped": float(capped),
        "reweighted": float(run.reweighted),
        **predicted,
        **run.shown(run.drifts(run.flat.vector) if kept is None else kept),
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


@dataclass(frozen=True)
class PromisedScores:
    """Ψ of every training row, and what is promised of them.

    Attributes:
        scores: (K, n) ψ of each promised criterion (Eq. 9), in units of its budget: relative to
            that of the first. On the CPU, as λ is.
        run: The removal under way.
    """

    scores: Tensor
    run: Stepper

    @classmethod
    def of(cls, run: Stepper, preserved: list[Solution]) -> PromisedScores:
        """Compute them from H⁻¹∇C of each criterion."""
        budget = run.promises[0].budget
        rows = [
            directional_derivatives(run.flat, run.train, solved.value).cpu()
            * (budget / promise.budget)
            for promise, solved in zip(run.promises, preserved, strict=True)
        ]
        return cls(torch.stack(rows), run)

    def with_weights(self, weights: Tensor) -> RowWeights:
        """ψ of the first criterion beside the λ (n,) that the step uses."""
        return RowWeights(self.scores[0].cpu(), weights.cpu())

    @property
    def targets(self) -> Tensor:
        """(K,) Σψ of the marked rows."""
        return torch.stack([row[self.run.marked].sum() for row in self.scores])

    def weights(self, targets: Tensor) -> Tensor:
        """Solve Eq. 10 for λ, which makes the retained rows offset sums ``targets`` (K,) of Ψ.

        Returns:
            (n,) −λ on the retained rows and 0 on the marked.
        """
        run, settings = self.run, self.run.settings
        weights = torch.zeros(len(run.train), dtype=self.scores.dtype)
        weights[~run.marked] = -reweight(
            self.scores[:, ~run.marked],
            targets,
            l1=settings.l1,
            l2=settings.l2,
            bounds=(-settings.max_weight, settings.max_weight),
            solver=Exact(tolerance=SEVERAL),
        )
        return agreed(weights)


def _direction(run: Stepper) -> tuple[Tensor, float | None, list[Solution]]:
    """(1/n)·H⁻¹(Σ_marked ∇L − Σ_retained λ∇L) (Eq. 11), its first-order change of C, the solves.

    Without λ nothing else needs ∇C, and the change is None.
    """
    run.row_weights = None
    curvature, n = run.curvature(), len(run.train)
    weights = run.marked.to(run.flat.dtype)
    if not run.reweighted:
        solved = run.solver.solve(curvature, run.summed_gradient(weights))
        return solved.value / n, None, [solved]
    gradients = run.gradients()
    solutions = [run.solver.solve(curvature, gradient) for gradient in gradients]
    promised = PromisedScores.of(run, solutions)
    retained = promised.weights(promised.targets)
    run.row_weights = promised.with_weights(-retained)
    weights = weights + retained
    solved = run.solver.solve(curvature, run.summed_gradient(weights))
    return solved.value / n, float(gradients[0] @ solved.value) / n, [*solutions, solved]
