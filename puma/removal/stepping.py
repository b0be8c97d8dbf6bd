"""The steps of one PUMA removal: directions, how far to go along them, what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from puma import predictions
from puma.data.base import Examples
from puma.deletion import DeletionSet
from puma.errors import DeletionError
from puma.influence import (
    ConjugateGradients,
    FlatModel,
    GaussNewton,
    GaussNewtonRows,
    LinearOperator,
    MeanLoss,
    Shifted,
    Solver,
    directional_derivatives,
    resolve_solver,
    reweight,
    sampled,
    weighted_gradient,
)
from puma.removal.base import Trained
from puma.removal.dose import Dose, largest_dose
from puma.removal.reference import loss_ranks, reference_ranks

if TYPE_CHECKING:
    from puma.removal.puma import PUMA

TEXTBOOK = 1.0  # the dose of first-order influence removal


@dataclass(frozen=True)
class Direction:
    """A step of dose 1: ``vector`` (p,), its first-order change of C, how it was solved."""

    vector: Tensor
    slope: float
    reweighted: bool
    iterations: int
    residual: float


@dataclass(frozen=True)
class End:
    """Where a step would lead. Of two, the one with the greater ``merit`` is taken."""

    model: nn.Module
    drift: float
    removed_loss: float
    merit: tuple[float, float]


class Stepper:
    """One removal under way: the data it needs, and the model so far."""

    def __init__(
        self, method: PUMA, trained: Trained, deletion_set: DeletionSet, *, progress: bool
    ) -> None:
        self.method = method
        self.model: nn.Module = trained.predictor
        self.train = trained.dataset.train
        self.marked = torch.zeros(len(self.train), dtype=torch.bool)
        self.marked[deletion_set.rows] = True
        self.removed: Examples = self.train.subset(self.marked)
        self.retained = self.train.subset(~self.marked)
        self.unseen = trained.dataset.test.without(deletion_set.test_rows)
        if method.reference_models and len(self.unseen) == 0:
            raise DeletionError(
                "every test row belongs to the people to be removed: no unseen rows are left to "
                "compare with; set reference_models to 0, or test on other people"
            )
        measured, watched = self.retained, self.removed
        if method.criterion_sample is not None:
            measured = sampled(measured, method.criterion_sample, seed=method.seed + 1)
            watched = sampled(watched, method.criterion_sample, seed=method.seed + 1)
        self.criterion, self.watched = MeanLoss(measured), watched
        flat = FlatModel(self.model)
        self.origin = flat.vector
        self.before = self.criterion.value(flat, flat.vector)
        self.goal: Tensor | None = None
        if method.reference_models:
            self.goal = reference_ranks(
                trained.initial,
                self.retained,
                self.removed,
                self.unseen,
                method.training,
                models=method.reference_models,
                fraction=method.reference_fraction,
                epochs=max(1, round(method.reference_epochs * method.training.epochs)),
                seed=method.seed,
                progress=progress,
            )

    def unchanged(self) -> bool:
        """Whether the weights are still the original's, to the last bit."""
        return torch.equal(FlatModel(self.model).vector, self.origin)

    def ranks(self) -> Tensor:
        """(m,) where the removed rows stand now."""
        return loss_ranks(self.model, self.removed, self.unseen)

    def missing(self) -> float:
        """How far the mean rank is below the level; infinite where no level is known."""
        return torch.inf if self.goal is None else float((self.goal - self.ranks()).mean())

    def step(self, *, first: bool, last: bool) -> dict[str, float]:
        """Take the better of the steps on offer and tell what it was and did."""
        repaired = 0.0 if first or not self.method.repair else self._repair()
        flat = FlatModel(self.model)
        target, free = 1.0, self.method.max_dose
        if self.goal is not None:
            now, goal = float(self.ranks().mean()), float(self.goal.mean())
            target = now + (goal - now) * (1.0 if last else 0.5)
            at_level = goal - now <= self.method.level_tolerance
            free = TEXTBOOK if first and at_level else 0.0
        offers = [
            (direction, self._dose(flat, direction, target, free))
            for direction in self._offers(flat, first=first)
        ]
        ends = [self._end(flat, way, dose.dose, target) for way, dose in offers]
        best = max(range(len(offers)), key=lambda number: ends[number].merit)
        direction, dose = offers[best]
        self.model = ends[best].model
        return {
            "dose": dose.dose,
            "dose_capped": float(dose.capped),
            "reweighted": float(direction.reweighted),
            "predicted_change": dose.dose * direction.slope,
            "drift": ends[best].drift,
            "repaired": repaired,
            "removed_loss": ends[best].removed_loss,
            "iterations": float(direction.iterations),
            "residual": direction.residual,
        }

    def _repair(self) -> float:
        """Win budget back: a Newton step on C alone; returns by how much C fell (nats).

        The removed rows have no part in it. It is what Eq. 11 does without marked rows and
        with λ = n/n_retained throughout. The largest share of it that lowers C and keeps the
        budget is taken; where the earlier steps did not raise C, none is.
        """
        flat = FlatModel(self.model)
        start = self.criterion.value(flat, flat.vector)
        if start <= self.before:
            return 0.0
        solved = self._solver().solve(self._curvature(flat), self.criterion.gradient(flat))

        def value(share: float) -> float:
            return self.criterion.value(flat, flat.vector - share * solved.value)

        def allowed(share: float) -> bool:
            reached = value(share)
            return reached < start and abs(reached - self.before) <= self.method.budget

        share = largest_dose(allowed, max_dose=1.0, precision=0.1).dose
        self.model = flat.module(flat.vector - share * solved.value)
        return start - value(share)

    def _solver(self) -> Solver:
        if self.method.solver == "cg":
            return ConjugateGradients(
                tolerance=self.method.tolerance, max_iterations=self.method.max_iterations
            )
        return resolve_solver(self.method.solver)

    def _curvature(self, flat: FlatModel) -> Shifted:
        method, examples = self.method, self.retained
        if method.curvature_sample is not None:
            examples = sampled(examples, method.curvature_sample, seed=method.seed)
        matrix: LinearOperator
        if method.solver == "woodbury":
            matrix = GaussNewtonRows(flat, examples, rows=method.rows, seed=method.seed)
        else:
            matrix = GaussNewton(flat, examples)
        return Shifted(matrix, method.damping + method.training.weight_decay)

    def _offers(self, flat: FlatModel, *, first: bool) -> list[Direction]:
        method, n = self.method, len(self.train)
        curvature, solver = self._curvature(flat), self._solver()
        gradient = self.criterion.gradient(flat)
        pushed = torch.zeros(n, dtype=flat.dtype)
        pushed[self.marked] = 1.0
        if self.goal is not None and not first:
            pushed[self.marked] = (self.ranks() < self.goal).to(flat.dtype)

        choices = {"both": (True, False), "always": (True,), "never": (False,)}
        offers = []
        for reweighted in choices[method.reweighting]:
            weights, iterations, residual = pushed.clone(), 0, 0.0
            if reweighted:
                preserved = solver.solve(curvature, gradient)
                scores = directional_derivatives(flat, self.train, preserved.value)
                weights[~self.marked] = -reweight(
                    scores[~self.marked],
                    float(scores @ pushed),
                    l1=method.l1,
                    l2=method.l2,
                    bounds=(-method.max_weight, method.max_weight),
                )
                iterations, residual = preserved.iterations, preserved.residual
            solved = solver.solve(curvature, weighted_gradient(flat, self.train, weights))
            offers.append(
                Direction(
                    vector=solved.value / n,
                    slope=float(gradient @ solved.value) / n,
                    reweighted=reweighted,
                    iterations=iterations + solved.iterations,
                    residual=max(residual, solved.residual),
                )
            )
        return offers

    def _end(self, flat: FlatModel, direction: Direction, dose: float, target: float) -> End:
        """Forgetting counts first, up to the target; among equals, the smaller drift."""
        vector = flat.vector + dose * direction.vector
        model = flat.module(vector)
        drift = self.criterion.value(flat, vector) - self.before
        removed_loss = predictions.losses(model, self.watched).mean().item()
        reached = removed_loss
        if self.goal is not None:
            rank = float(loss_ranks(model, self.removed, self.unseen).mean())
            reached = min(rank, target - self.method.level_tolerance)
        return End(model, drift, removed_loss, merit=(reached, -abs(drift)))

    def _dose(self, flat: FlatModel, direction: Direction, target: float, free: float) -> Dose:
        origin = flat.vector

        def allowed(dose: float) -> bool:
            vector = origin + dose * direction.vector
            drift = self.criterion.value(flat, vector) - self.before
            if not abs(drift) <= self.method.budget:  # also when it is NaN
                return False
            if dose <= free:
                return True
            ranks = loss_ranks(flat.module(vector), self.removed, self.unseen)
            return float(ranks.mean()) <= target

        return largest_dose(
            allowed, max_dose=self.method.max_dose, precision=self.method.dose_precision
        )
