"""What the steps of one PUMA removal share: its data, its curvature, its budget, its repair."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from puma.data.base import Examples
from puma.influence import (
    ConjugateGradients,
    Dual,
    FlatModel,
    GaussNewton,
    GaussNewtonRows,
    LinearOperator,
    MeanLoss,
    Shifted,
    Solver,
    resolve_solver,
    sampled,
    sampled_rows,
    weighted_gradient,
)
from puma.influence.flat_model import batches
from puma.influence.sharding import agreed, gathered, share
from puma.models.device import exact
from puma.models.tasks import likelihood_of
from puma.removal.puma.line_search import largest_step_size
from puma.removal.puma.promises import promises, retained_data
from puma.removal.results import RowWeights, Trained
from puma.requests.deletion_set import DeletionSet
from puma.settings import PumaSettings, TrainingSettings


class Stepper(ABC):
    """One removal under way: the data it needs, and the model so far.

    Attributes:
        settings: PUMA's.
        training: How the original was trained.
        seed: Of every sample that is drawn.
        flat: The model after the steps so far.
        likelihood: Of the rows' task.
        train: All training rows. marked: (n,) mask of those to remove.
        retain_set: The rows that stay.
        forget_sample: The rows to remove that the steps look at, all or a sample; forget_rows:
            their places among the training rows.
        promises: What is kept, each within its budget; the first is the mean loss of the retained
            rows or of a sample.
        bound_by: The promises that kept a step from going further, the last time that one was kept;
            none where none was, or where the rows are at their targets.
        solver: Of linear systems with the curvature.
        finished: Whether another step is pointless.
        row_weights: ψ and λ of the last step, or None where it used neither.
    """

    def __init__(
        self,
        settings: PumaSettings,
        trained: Trained,
        deletion_set: DeletionSet,
        *,
        training: TrainingSettings,
        seed: int,
    ) -> None:
        self.settings, self.training, self.seed = settings, training, seed
        self.flat = FlatModel(trained.predictor)
        self.train = trained.dataset.train
        self.likelihood = likelihood_of(self.train.task)
        self.marked = torch.zeros(len(self.train), dtype=torch.bool)
        self.marked[deletion_set.rows] = True
        retained = retained_data(trained, deletion_set)
        self.retain_set = retained.train
        self.forget_rows = deletion_set.rows
        if (rows := settings.criterion_sample) is not None:
            drawn = sampled_rows(len(self.forget_rows), rows, seed=seed + 1)
            self.forget_rows = self.forget_rows[drawn]
        self.forget_sample = self.train.subset(self.forget_rows)
        self.promises = promises(
            settings.promises,
            retained,
            self.flat,
            weight_decay=training.weight_decay,
            sample=settings.criterion_sample,
            seed=seed + 1,
        )
        self.bound_by: tuple[str, ...] = ()
        self.solver = self._solver()
        self._curvature: Shifted | None = None
        self._origin = self.flat.vector
        self.finished = False
        self.row_weights: RowWeights | None = None

    def step(self, *, first: bool) -> dict[str, float]:
        """Repair, take a step, and return its numbers; a ``dose`` of 0 means that none was taken.

        Args:
            first: Whether it is the first step of the removal, before which nothing is to repair.
        """
        repaired = 0.0 if first or not self.settings.repair else self._repair()
        return self.move(first=first) | {"repaired": repaired}

    @abstractmethod
    def move(self, *, first: bool) -> dict[str, float]:
        """Take the step itself, set ``finished`` after the last one, and return its numbers."""

    def outcome(self) -> Mapping[str, float]:
        """Return the diagnostics of where the removal ended."""
        return {}

    def unchanged(self) -> bool:
        """Return whether the weights are still the original's, to the last bit."""
        return torch.equal(self.flat.vector, self._origin)

    def go_to(self, vector: Tensor, *, near: bool = False) -> None:
        """Take the model to other parameters (p,); ``near`` keeps the curvature of those before."""
        self.flat = self.flat.at(agreed(vector))
        if not near:
            self._curvature = None

    def drifts(self, vector: Tensor) -> tuple[float, ...]:
        """Measure each promised criterion at ``vector``, minus that of the original."""
        return tuple(each.drift(self.flat, vector) for each in self.promises)

    def broken(self, drifts: tuple[float, ...]) -> tuple[str, ...]:
        """Return the titles of the promises that do not allow their drift (Eq. 2)."""
        pairs = zip(self.promises, drifts, strict=True)
        return tuple(promise.title for promise, drift in pairs if not promise.keeps(drift))

    def shown(self, drifts: tuple[float, ...]) -> dict[str, float]:
        """Return the drifts by name; that of the retained rows' mean loss is ``drift``."""
        others = zip(self.promises[1:], drifts[1:], strict=True)
        return {"drift": drifts[0], **{f"drift_{each.title}": drift for each, drift in others}}

    def gradients(self) -> Tensor:
        """(K, p) of the promised criteria."""
        return torch.stack([each.criterion.gradient(self.flat) for each in self.promises])

    def summed_gradient(self, weights: Tensor) -> Tensor:
        """(p,) Σ_i weights_i ∇L_i over all training rows, but for those that are negligible."""
        return weighted_gradient(
            self.flat, self.train, weights, negligible=self.settings.negligible
        )

    @torch.no_grad()
    def margins(self, vector: Tensor, examples: Examples) -> Tensor:
        """(m,) float64 margins of the ``examples`` at ``vector``, on the CPU."""
        parts = [exact(vector.new_empty(0))]
        for features, labels in batches(self.flat, examples, part=share(len(examples))):
            outputs = exact(self.flat.logits(vector, features))
            parts.append(self.likelihood.margins(outputs, labels.to(outputs.device)))
        return gathered(torch.cat(parts), len(examples)).cpu()

    @property
    def reweighted(self) -> bool:
        """Whether λ (Eq. 10) is used."""
        return self.settings.reweighting == "always"

    def removed_loss(self) -> float:
        """Mean loss of the rows to remove, or of the sample of them, in nats."""
        return MeanLoss(self.forget_sample).value(self.flat, self.flat.vector)

    def curvature(self) -> Shifted:
        """H of the retained rows, with damping and the training's weight decay.

        One object until the model moves: solvers keep what they find out about it.
        """
        if self._curvature is None:
            settings, examples = self.settings, self.retain_set
            if settings.curvature_sample is not None:
                examples = sampled(examples, settings.curvature_sample, seed=self.seed)
            matrix: LinearOperator
            if settings.solver == "woodbury":
                matrix = GaussNewtonRows(self.flat, examples, rows=settings.rows, seed=self.seed)
            else:
                matrix = GaussNewton(self.flat, examples)
            self._curvature = Shifted(matrix, settings.damping + self.training.weight_decay)
        return self._curvature

    def _repair(self) -> float:
        """Win budget back: a Newton step on the retained rows' mean loss C alone.

        The removed rows have no part in it. It is what Eq. 11 does without marked rows and
        with one λ for every retained row. The largest share of it that lowers C and keeps every
        budget is taken; where the earlier steps did not raise C, none is.

        Returns:
            By how much C fell, in nats.
        """
        vector, retained = self.flat.vector, self.promises[0]
        start = retained.drift(self.flat, vector)
        if start <= 0:
            return 0.0
        solved = self.solver.solve(self.curvature(), retained.criterion.gradient(self.flat))

        def allowed(share: float) -> bool:
            drifts = self.drifts(vector - share * solved.value)
            return drifts[0] < start and not self.broken(drifts)

        share = largest_step_size(allowed, limit=1.0, precision=0.1).value
        self.go_to(vector - share * solved.value, near=True)
        return start - retained.drift(self.flat, self.flat.vector)

    def _solver(self) -> Solver:
        """The solver of linear systems with the curvature alone."""
        if self.settings.solver in ("cg", "dual"):
            kind = ConjugateGradients if self.settings.solver == "cg" else Dual
            return kind(
                tolerance=self.settings.tolerance, max_iterations=self.settings.max_iterations
            )
        return resolve_solver(self.settings.solver)
