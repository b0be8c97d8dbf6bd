"""Steps that take every marked row to its own level, and the retained rows' loss nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from puma.errors import DeletionError, SettingsError
from puma.influence import (
    SOLVERS,
    ConjugateGradients,
    FlatModel,
    LinearOperator,
    MarginGaussNewton,
    Preconditioner,
    Shifted,
    Solution,
    Solver,
    resolve_solver,
    weighted_gradient,
)
from puma.removal.base import Trained
from puma.removal.puma.criterion_projection import Free, Joint, Preserving
from puma.removal.puma.first_order_step import TEXTBOOK, compensation, textbook_step
from puma.removal.puma.step import Stepper
from puma.removal.puma.target_margins import margins, ranks_among, reference_margins
from puma.requests.deletion_set import DeletionSet

if TYPE_CHECKING:
    from puma.removal.puma.method import PUMA

PULL = 0.1  # nats per squared logit; .1, .3 and 1 end in the same place
REACH = 10.0  # logits: a row that is further from its level pulls no harder
SHARES = tuple(2.0**-k for k in range(8))  # of the whole way, tried in one step
LEAST_GAIN = 0.05  # of the distance by a whole step, for another to be worth its price


class LevelStepper(Stepper):
    """Each step minimises, to second order, what the retained rows lose plus the rows' distance.

    With H of the retained rows, ∇m_i of the marked rows' margins and r_i their distances from
    the level, δ minimises ½δᵀHδ + (pull/2m)·Σ(r_i − ∇m_i·δ)². It is an influence step
    H⁻¹Σ w_i∇L_i with a dose w_i of every row's own, where Eq. 11 has one for all. λ of Eq. 10
    for the marked rows gives the direction along which the retained rows make up for it, and
    the minimiser is sought among steps that use as much of it as leaves C unchanged to first
    order. The share of δ that is taken is the one that measures nearest to the level of those
    that keep the budget.
    """

    def __init__(
        self, method: PUMA, trained: Trained, deletion_set: DeletionSet, *, progress: bool
    ) -> None:
        if not resolve_solver(method.solver).solves_sums:
            able = ", ".join(name for name, kind in SOLVERS.items() if kind.solves_sums)
            raise SettingsError(
                f"solver {method.solver!r} cannot take the marked rows to a level each; choose one "
                f"of {able}, or set reference_models to 0"
            )
        super().__init__(method, trained, deletion_set)
        self.unseen = trained.dataset.test.without(deletion_set.test_rows)
        if len(self.unseen) == 0:
            raise DeletionError(
                "every test row belongs to the people to be removed: no unseen rows are left to "
                "compare with; set reference_models to 0, or test on other people"
            )
        self.goal = reference_margins(
            trained.predictor,
            trained.initial,
            self.retained,
            self.watched,
            method.training,
            models=method.reference_models,
            fraction=method.reference_fraction,
            epochs=max(1, round(method.reference_epochs * method.training.epochs)),
            seed=method.seed,
            progress=progress,
        )
        self._start = self._distance = self.distance(self.model)

    def distance(self, model: nn.Module) -> float:
        """Mean absolute distance of the rows' margins from their level, in logits."""
        return float(self._missing(model).abs().mean())

    def move(self, *, first: bool) -> dict[str, float]:
        flat = FlatModel(self.model)
        still = _Offer(self.distance(self.model), 0.0, flat.vector, {})
        offers = [still, *self._offers(flat)]
        # Of equals the first: to stay, or the larger share.
        best = min(offers, key=lambda offer: offer.distance)
        if best is still and first:
            # They stand at their level already, or the budget forbids going there.
            told = textbook_step(self, min(TEXTBOOK, self.method.max_dose))
        else:
            self.model = flat.module(best.vector)
            told = offers[-1].told | best.told
            told |= {
                "dose": best.share,
                "drift": self.drift(flat, best.vector),
                "removed_loss": self.removed_loss(self.model),
            }
        before, self._distance = self._distance, self.distance(self.model)
        self.finished = (
            best is still
            or self._distance <= self.method.level_tolerance
            or (best.share == 1 and self._distance > (1 - LEAST_GAIN) * before)
        )
        return told | {"distance": self._distance}

    def outcome(self) -> dict[str, float]:
        unseen = margins(self.model, self.unseen)
        level = 1 - float(ranks_among(self.goal, unseen).mean())
        reached = 1 - float(ranks_among(margins(self.model, self.watched), unseen).mean())
        above = -float(self._missing(self.model).mean())
        return {
            "level_reached": reached,
            "level_reference": level,
            "level_distance_before": self._start,
            "level_distance": self._distance,
            "forgetting_incomplete": float(above > self.method.level_tolerance),
        }

    def _missing(self, model: nn.Module) -> Tensor:
        return self.goal - margins(model, self.watched)

    def _offers(self, flat: FlatModel) -> Iterator[_Offer]:
        """Shares of every way; what the budget forbids counts as no nearer than anything."""
        for way, told in self._ways(flat):
            for share in SHARES:
                vector = flat.vector + share * way
                distance = torch.inf
                if self.affordable(flat, vector):
                    distance = self.distance(flat.module(vector))
                yield _Offer(distance, share, vector, told)

    def _ways(self, flat: FlatModel) -> Iterator[tuple[Tensor, dict[str, float]]]:
        """(p,) all the way to the level as far as the model of second order can tell, and how
        it was solved: with λ, or without, or one of each.
        """
        curvature = self.curvature(flat)
        pull = MarginGaussNewton(flat, self.watched)
        missing = PULL * pull.pulled(self._missing(self.model).clamp(-REACH, REACH))
        solver = self._solver_of_sums(curvature)
        for reweighted in self.reweighted:
            kept, solutions = self._preserving(flat, curvature) if reweighted else (Free(), [])
            solved = solver.solve(Joint(curvature, pull, kept, PULL), kept.transposed(missing))
            solutions.append(solved)
            told = {
                "reweighted": float(isinstance(kept, Preserving)),
                "iterations": float(sum(each.iterations for each in solutions)),
                "residual": max(each.residual for each in solutions),
            }
            yield kept.bounded(solved.value), told

    def _preserving(self, flat: FlatModel, curvature: Shifted) -> tuple[Free, list[Solution]]:
        gradient = self.criterion.gradient(flat)
        preserved = self.solver().solve(curvature, gradient)
        weights = compensation(self, flat, preserved)
        retained = weighted_gradient(flat, self.train, weights) / len(self.train)
        made_up = self.solver().solve(curvature, retained)
        if float(gradient @ made_up.value) == 0:  # no λ, or none that acts on C
            return Free(), [preserved, made_up]
        largest = self.method.max_weight / float(weights.abs().max())
        return Preserving(gradient, made_up.value, largest), [preserved, made_up]

    def _solver_of_sums(self, curvature: Shifted) -> Solver:
        """The method's solver, or conjugate gradients with its inverse of the curvature."""
        solver = self.solver()
        if not isinstance(solver, Preconditioner):
            return solver
        return ConjugateGradients(
            tolerance=self.method.tolerance,
            max_iterations=self.method.max_iterations,
            preconditioner=_InverseOf(solver, curvature),
        )


@dataclass(frozen=True)
class _Offer:
    """Where ``vector`` (p,) would end, and how it came about."""

    distance: float
    share: float
    vector: Tensor
    told: dict[str, float]


@dataclass(frozen=True)
class _InverseOf:
    """A preconditioner: the inverse of the curvature alone."""

    solver: Preconditioner
    curvature: Shifted

    def inverse(self, operator: LinearOperator) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        return self.solver.inverse(self.curvature)
