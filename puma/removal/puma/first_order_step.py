"""The paper's step, Eqs. 9 to 11, with a measured dose."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.influence import (
    FlatModel,
    Shifted,
    Solution,
    directional_derivatives,
    reweight,
    weighted_gradient,
)
from puma.removal.puma.line_search import largest_dose
from puma.removal.puma.step import Stepper

TEXTBOOK = 1.0  # the dose of first-order influence removal


@dataclass(frozen=True)
class Direction:
    """A step of dose 1: ``vector`` (p,), its first-order change of C, how it was solved."""

    vector: Tensor
    slope: float
    reweighted: bool
    iterations: int
    residual: float


class TextbookStepper(Stepper):
    """Pushes every marked row alike, as far as the budget or ``max_dose`` allows."""

    def move(self, *, first: bool) -> dict[str, float]:  # noqa: ARG002
        return textbook_step(self, self.method.max_dose)


def textbook_step(run: Stepper, max_dose: float) -> dict[str, float]:
    """Take the offered step that forgets most; of two that forget alike, the smaller drift."""
    flat = FlatModel(run.model)
    curvature, gradient = run.curvature(flat), run.criterion.gradient(flat)
    best: tuple[tuple[float, float], dict[str, float], Tensor] | None = None
    for reweighted in run.reweighted:
        direction = _direction(run, flat, curvature, gradient, reweighted=reweighted)

        def allowed(dose: float, direction: Direction = direction) -> bool:
            return run.affordable(flat, flat.vector + dose * direction.vector)

        dose = largest_dose(allowed, max_dose=max_dose, precision=run.method.dose_precision)
        vector = flat.vector + dose.dose * direction.vector
        drift, removed_loss = run.drift(flat, vector), run.removed_loss(flat.module(vector))
        told = {
            "dose": dose.dose,
            "dose_capped": float(dose.capped),
            "reweighted": float(direction.reweighted),
            "predicted_change": dose.dose * direction.slope,
            "drift": drift,
            "removed_loss": removed_loss,
            "iterations": float(direction.iterations),
            "residual": direction.residual,
        }
        merit = (removed_loss, -abs(drift))
        if best is None or merit > best[0]:
            best = (merit, told, vector)
    assert best is not None
    run.model = flat.module(best[2])
    return best[1]


def compensation(run: Stepper, flat: FlatModel, preserved: Solution) -> Tensor:
    """(n,) −λ on the retained rows and 0 on the marked: what offsets Σψ of the marked (Eq. 10)."""
    scores = directional_derivatives(flat, run.train, preserved.value)
    weights = torch.zeros(len(run.train), dtype=flat.dtype)
    weights[~run.marked] = -reweight(
        scores[~run.marked],
        float(scores[run.marked].sum()),
        l1=run.method.l1,
        l2=run.method.l2,
        bounds=(-run.method.max_weight, run.method.max_weight),
    )
    return weights


def _direction(
    run: Stepper, flat: FlatModel, curvature: Shifted, gradient: Tensor, *, reweighted: bool
) -> Direction:
    """(1/n)·H⁻¹(Σ_marked ∇L − Σ_retained λ∇L) (Eq. 11), ``gradient`` ∇C; λ = 0 if not asked for."""
    weights, solutions = run.marked.to(flat.dtype), []
    if reweighted:
        preserved = run.solver().solve(curvature, gradient)
        weights = weights + compensation(run, flat, preserved)
        solutions.append(preserved)
    solved = run.solver().solve(curvature, weighted_gradient(flat, run.train, weights))
    solutions.append(solved)
    return Direction(
        vector=solved.value / len(run.train),
        slope=float(gradient @ solved.value) / len(run.train),
        reweighted=reweighted,
        iterations=sum(each.iterations for each in solutions),
        residual=max(each.residual for each in solutions),
    )
