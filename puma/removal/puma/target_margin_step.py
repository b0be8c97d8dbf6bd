"""Steps that take every marked row to its own target margin, and C nowhere."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from puma.errors import DeletionError, SettingsError
from puma.influence import (
    SOLVERS,
    ConjugateGradients,
    LinearOperator,
    MarginGaussNewton,
    Preconditioner,
    Shifted,
    Solution,
    Solver,
    resolve_solver,
    sampled,
)
from puma.influence.sharding import agreed, from_first
from puma.references.short_training import train_short
from puma.removal.puma.criterion_projection import (
    CriteriaProjection,
    NoProjection,
    StepOperator,
)
from puma.removal.puma.first_order_step import (
    FIRST_ORDER,
    PromisedScores,
    first_order_step,
    how_solved,
)
from puma.removal.puma.stepper import Stepper
from puma.removal.puma.target_margins import target_margins
from puma.removal.results import Trained
from puma.requests.deletion_set import DeletionSet
from puma.settings import PumaSettings, TrainingSettings

PULL = 0.1  # nats per squared logit; .1, .3 and 1 end in the same place
REACH = 10.0  # logits: a row that is further from its target pulls no harder
SHARES = tuple(2.0**-k for k in range(8))  # of the whole step, tried in turn
LEAST_GAIN = 0.05  # of the distance by a whole step, for another to be worth its price


class TargetMarginStepper(Stepper):
    """Each step minimises, to second order, what the retained rows lose plus the rows' distance.

    With H of the retained rows, ∇m_i of the marked rows' margins and r_i their distances from
    their targets, δ minimises ½δᵀHδ + (pull/2m)·Σ(r_i − ∇m_i·δ)². It is an influence step
    H⁻¹Σ w_i∇L_i with a weight w_i of every row's own, where Eq. 11 has one for all. λ of Eq. 10
    for the marked rows gives the direction along which the retained rows make up for it, one for
    each criterion that is kept, and the minimiser is sought among steps that use as much of these
    as leaves every criterion unchanged to first order. Of the shares of δ that keep the budgets,
    the one that measures nearest to the targets is taken.

    Raises:
        SettingsError: The solver cannot take rows to a target each, or there is no pool.
        DeletionError: No test row is left to compare with.
    """

    def __init__(
        self,
        settings: PumaSettings,
        trained: Trained,
        deletion_set: DeletionSet,
        *,
        training: TrainingSettings,
        seed: int,
        progress: bool,
    ) -> None:
        if not resolve_solver(settings.solver).solves_sums:
            able = ", ".join(name for name, kind in SOLVERS.items() if kind.solves_sums)
            raise SettingsError(
                f"solver {settings.solver!r} cannot take the marked rows to a target margin each; "
                f"choose one of {able}, or set reference_models to 0"
            )
        super().__init__(settings, trained, deletion_set, training=training, seed=seed)
        self.unseen = trained.dataset.test.without(deletion_set.test_rows)
        if len(self.unseen) == 0:
            raise DeletionError(
                "every test row belongs to the people to be removed: no unseen rows are left to "
                "compare with; set reference_models to 0, or test on other people"
            )
        if settings.criterion_sample is not None:
            self.unseen = sampled(self.unseen, settings.criterion_sample, seed=seed + 1)
        self.targets, self.target_error = from_first(
            lambda: self._targets(trained, deletion_set, progress=progress)
        )
        self._start = self._distance = self._distance_at(self.flat.vector)

    def _targets(
        self, trained: Trained, deletion_set: DeletionSet, *, progress: bool
    ) -> tuple[Tensor, float | None]:
        """(m,) target margins of the rows, and their expected error where it is known."""
        settings, training = self.settings, self.training
        if settings.reference_models == "pool":
            return self._targets_from_pool(trained, deletion_set, progress=progress)
        found = target_margins(
            trained.predictor,
            trained.initial,
            self.retain_set,
            self.forget_sample,
            training,
            models=settings.reference_models,
            fraction=settings.reference_fraction,
            epochs=max(1, round(settings.reference_epochs * training.epochs)),
            seed=self.seed,
            progress=progress,
        )
        return found, None

    def _targets_from_pool(
        self, trained: Trained, deletion_set: DeletionSet, *, progress: bool
    ) -> tuple[Tensor, float | None]:
        if trained.pool is None:
            raise SettingsError(
                "PUMA takes its target margins from a pool, and this model came with none; train "
                "one with puma.audit.train_pool and pass dataclasses.replace(trained, pool=pool), "
                "or set reference_models to 1, which trains one model for this request"
            )
        trained.pool.require(trained.dataset)
        rows = deletion_set.rows.numpy()
        # Small models that train in lockstep, from weights that the pool keeps on the CPU.
        train_short(
            trained.pool,
            trained.dataset.to("cpu"),
            lambda: copy.deepcopy(trained.initial).cpu(),
            rows,
            self.training,
            progress=progress,
        )
        found = trained.pool.predict(rows, half="removal")
        return torch.from_numpy(found.margins[self.forget_rows.numpy()]), found.error

    def _distance_at(self, vector: Tensor) -> float:
        """Mean absolute distance of the rows' margins from their targets, in logits."""
        return _mean_size(self._missing(vector))

    def move(self, *, first: bool) -> dict[str, float]:
        """Take the best share of the step; the first step takes a first-order one if none helps."""
        start = self.flat.vector
        missing = self._missing(start)
        step, numbers = self._whole_step(missing)
        stay = _Candidate(_mean_size(missing), 0.0, start)
        best, drifts = self._best(stay, step)
        if best is stay and first:
            # They are at their targets already, or the budget forbids going there.
            numbers = first_order_step(self, min(FIRST_ORDER, self.settings.max_dose))
            reached = self._distance_at(self.flat.vector)
        else:
            self.go_to(best.vector)
            numbers |= {
                "dose": best.share,
                **self.shown(drifts),
                "removed_loss": self.removed_loss(),
            }
            reached = best.distance
        before, self._distance = self._distance, reached
        if reached <= self.settings.level_tolerance:
            self.bound_by = ()
        aim = min(self.settings.level_aim, self.settings.level_tolerance)
        self.finished = (
            best is stay
            or self._distance <= aim
            or (best.share == 1 and self._distance > (1 - LEAST_GAIN) * before)
        )
        return numbers | {"distance": self._distance}

    def outcome(self) -> dict[str, float]:
        """Return how near the rows came to their targets, in logits and as AUCs."""
        unseen = self.margins(self.flat.vector, self.unseen)
        reached = self.margins(self.flat.vector, self.forget_sample)
        unseen, reached, targets = map(
            self.likelihood.scores, (unseen, reached, self.targets.to(reached))
        )
        above = float((reached - targets).mean())
        error = {} if self.target_error is None else {"level_error": self.target_error}
        return error | {
            "level_reached": _auc(reached, unseen),
            "level_reference": _auc(targets, unseen),
            "level_distance_before": self._start,
            "level_distance": self._distance,
            "level_missed": float(above > self.settings.level_tolerance),
        }

    def _missing(self, vector: Tensor) -> Tensor:
        return self.targets - self.margins(vector, self.forget_sample)

    def _candidate(self, start: Tensor, step: Tensor, share: float) -> _Candidate:
        """Where a ``share`` of the step ends; numbers that are not finite are infinitely far."""
        vector = start + share * step
        distance = self._distance_at(vector)
        return _Candidate(distance if math.isfinite(distance) else math.inf, share, vector)

    def _best(self, stay: _Candidate, step: Tensor) -> tuple[_Candidate, tuple[float, ...]]:
        """The nearest share of the step that keeps the budgets, or to stay, and its drifts.

        From the whole step down, until one is farther than one that is allowed: those that are
        shorter still are farther, too.
        """
        best, drifts = stay, None
        refused: list[tuple[float, tuple[str, ...]]] = []
        for share in SHARES:
            candidate = self._candidate(stay.vector, step, share)
            if candidate.distance >= best.distance:
                if best is not stay:
                    break
                continue
            found = self.drifts(candidate.vector)
            if broken := self.broken(found):
                refused.append((candidate.distance, broken))
            else:
                best, drifts = candidate, found
        nearer = [each for each in refused if each[0] < best.distance]
        if nearer:
            self.bound_by = max(nearer)[1]
        return best, self.drifts(best.vector) if drifts is None else drifts

    def _whole_step(self, missing: Tensor) -> tuple[Tensor, dict[str, float]]:
        """(p,) the step to the targets, by the model of second order, and how it was solved."""
        margins = MarginGaussNewton(self.flat, self.forget_sample)
        projection, solutions, promised = NoProjection(), list[Solution](), None
        if self.reweighted:
            projection, solutions, promised = self._projection()
        operator = StepOperator(self.curvature(), margins, projection, PULL)
        if isinstance(self.solver, Preconditioner):  # for networks with expensive passes
            operator = operator.with_rows()
        wanted = projection.transposed(PULL * margins.pulled(missing.clamp(-REACH, REACH)))
        solved = self._solver_of_sums().solve(operator, wanted)
        reweighted = float(isinstance(projection, CriteriaProjection))
        numbers = {"reweighted": reweighted, **how_solved([*solutions, solved])}
        if promised is not None:
            used = projection.weights_of(solved.value, len(self.train))
            self.row_weights = promised.with_weights(used)
        return projection.bounded(solved.value), numbers

    def _projection(self) -> tuple[NoProjection, list[Solution], PromisedScores]:
        """Find what the retained rows can do to each criterion alone."""
        gradients = self.gradients()
        solutions = [self.solver.solve(self.curvature(), gradient) for gradient in gradients]
        promised = PromisedScores.of(self, solutions)
        kept, weights, compensations = [], [], []
        for number, target in enumerate(promised.targets.diag()):
            weight = promised.weights(target)
            retained = self.summed_gradient(weight) / len(self.train)
            compensation = self.solver.solve(self.curvature(), retained)
            solutions.append(compensation)
            if float(gradients[number] @ compensation.value) != 0:  # else no λ that acts on C
                kept.append(number)
                weights.append(weight)
                compensations.append(compensation.value)
        if not kept:
            return NoProjection(), solutions, promised
        projection = CriteriaProjection(
            torch.stack([gradients[number] for number in kept]),
            torch.stack(compensations),
            torch.stack(weights),
            self.settings.max_weight,
        )
        return projection, solutions, promised

    def _solver_of_sums(self) -> Solver:
        """The method's solver, or conjugate gradients with its inverse of the curvature."""
        if not isinstance(self.solver, Preconditioner):
            return self.solver
        return ConjugateGradients(
            tolerance=self.settings.tolerance,
            max_iterations=self.settings.max_iterations,
            preconditioner=_InverseOf(self.solver, self.curvature()),
        )


@dataclass(frozen=True)
class _Candidate:
    """Where a share of the step ends: ``vector`` (p,), and the rows' distance there."""

    distance: float
    share: float
    vector: Tensor


@dataclass(frozen=True)
class _InverseOf:
    """A preconditioner: the inverse of the curvature alone."""

    solver: Preconditioner
    curvature: Shifted

    def inverse(self, operator: LinearOperator) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        return self.solver.inverse(self.curvature)


def _mean_size(values: Tensor) -> float:
    return agreed(float(values.abs().mean()))


def _auc(margins: Tensor, unseen: Tensor) -> float:
    """:func:`puma.metrics.auc` but for its last bit, which the stored metrics keep."""
    others = unseen.sort().values
    below = torch.searchsorted(others, margins) + torch.searchsorted(others, margins, right=True)
    return 1 - float((1 - below.double() / (2 * len(others))).mean())
