"""What the steps of one PUMA removal share: its data, its curvature, its budget, its repair."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from puma.influence import (
    ConjugateGradients,
    FlatModel,
    GaussNewton,
    GaussNewtonRows,
    LinearOperator,
    MeanLoss,
    Shifted,
    Solver,
    resolve_solver,
    sampled,
)
from puma.models import predictions
from puma.removal.base import Trained
from puma.removal.puma.line_search import largest_dose
from puma.requests.deletion_set import DeletionSet

if TYPE_CHECKING:
    from puma.removal.puma.method import PUMA


class Stepper(ABC):
    """One removal under way: the data it needs, and the model so far."""

    def __init__(self, method: PUMA, trained: Trained, deletion_set: DeletionSet) -> None:
        self.method = method
        self.model: nn.Module = trained.predictor
        self.train = trained.dataset.train
        self.marked = torch.zeros(len(self.train), dtype=torch.bool)
        self.marked[deletion_set.rows] = True
        self.removed = self.train.subset(self.marked)
        self.retained = self.train.subset(~self.marked)
        measured, self.watched = self.retained, self.removed
        if method.criterion_sample is not None:
            measured = sampled(measured, method.criterion_sample, seed=method.seed + 1)
            self.watched = sampled(self.watched, method.criterion_sample, seed=method.seed + 1)
        self.criterion = MeanLoss(measured)
        flat = FlatModel(self.model)
        self._origin = flat.vector
        self._before = self.criterion.value(flat, flat.vector)
        self.finished = False

    def step(self, *, first: bool) -> dict[str, float]:
        """Repair, move on, and tell what was done; a dose of 0 says that nothing was."""
        repaired = 0.0 if first or not self.method.repair else self.repair()
        return self.move(first=first) | {"repaired": repaired}

    @abstractmethod
    def move(self, *, first: bool) -> dict[str, float]:
        """The step itself; sets ``finished`` where another one is pointless."""

    def outcome(self) -> Mapping[str, float]:
        """What the removal's diagnostics say of where it ended."""
        return {}

    def unchanged(self) -> bool:
        """Whether the weights are still the original's, to the last bit."""
        return torch.equal(FlatModel(self.model).vector, self._origin)

    def drift(self, flat: FlatModel, vector: Tensor) -> float:
        """C at ``vector`` minus C of the original, in nats."""
        return self.criterion.value(flat, vector) - self._before

    def affordable(self, flat: FlatModel, vector: Tensor) -> bool:
        """Whether |drift| keeps the budget (Eq. 2)."""
        return abs(self.drift(flat, vector)) <= self.method.budget  # False also for NaN

    @property
    def reweighted(self) -> tuple[bool, ...]:
        """Of the steps to choose from, which use λ."""
        return {"both": (True, False), "always": (True,), "never": (False,)}[
            self.method.reweighting
        ]

    def removed_loss(self, model: nn.Module) -> float:
        """Mean cross-entropy of the removed rows, or of the sample of them, in nats."""
        return predictions.losses(model, self.watched).mean().item()

    def repair(self) -> float:
        """Win budget back: a Newton step on C alone; returns by how much C fell (nats).

        The removed rows have no part in it. It is what Eq. 11 does without marked rows and
        with one λ for every retained row. The largest share of it that lowers C and keeps the
        budget is taken; where the earlier steps did not raise C, none is.
        """
        flat = FlatModel(self.model)
        start = self.criterion.value(flat, flat.vector)
        if start <= self._before:
            return 0.0
        solved = self.solver().solve(self.curvature(flat), self.criterion.gradient(flat))

        def value(share: float) -> float:
            return self.criterion.value(flat, flat.vector - share * solved.value)

        def allowed(share: float) -> bool:
            reached = value(share)
            return reached < start and abs(reached - self._before) <= self.method.budget

        share = largest_dose(allowed, max_dose=1.0, precision=0.1).dose
        self.model = flat.module(flat.vector - share * solved.value)
        return start - value(share)

    def solver(self) -> Solver:
        if self.method.solver == "cg":
            return ConjugateGradients(
                tolerance=self.method.tolerance, max_iterations=self.method.max_iterations
            )
        return resolve_solver(self.method.solver)

    def curvature(self, flat: FlatModel) -> Shifted:
        """H of the retained rows, with damping and the training's weight decay."""
        method, examples = self.method, self.retained
        if method.curvature_sample is not None:
            examples = sampled(examples, method.curvature_sample, seed=method.seed)
        matrix: LinearOperator
        if method.solver == "woodbury":
            matrix = GaussNewtonRows(flat, examples, rows=method.rows, seed=method.seed)
        else:
            matrix = GaussNewton(flat, examples)
        return Shifted(matrix, method.damping + method.training.weight_decay)
