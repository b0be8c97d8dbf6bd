"""PUMA: one re-weighted influence step that forgets the marked rows and keeps the criterion."""

from __future__ import annotations

import torch
from torch import Tensor

from puma.deletion import DeletionSet
from puma.influence import (
    ConjugateGradients,
    FlatModel,
    GaussNewton,
    MeanLoss,
    Shifted,
    directional_derivatives,
    reweight,
    weighted_gradient,
)
from puma.removal.base import Patch, RemovalMethod, Trained
from puma.removal.dose import largest_dose
from puma.settings import PumaSettings


class PUMA(PumaSettings, RemovalMethod):
    """Performance Unchanged Model Augmentation (Algorithm 1), with a measured dose.

    The criterion C is the mean cross-entropy of the retained rows. The curvature H is the
    Gauss-Newton matrix of the retained rows plus ``damping`` and the training's weight decay:
    the true Hessian of a ReLU network is indefinite, and the retained rows are the objective
    that the new model should minimise.

    1. h = H⁻¹∇C, and ψ_i = hᵀ∇L_i for every training row in one forward-mode pass (Eq. 9).
    2. λ re-weights the retained rows so that Σλψ over them offsets Σψ over the marked (Eq. 10).
    3. θ(τ) = θ + (τ/n)·H⁻¹(Σ_marked ∇L − Σ_retained λ∇L) (Eq. 11). τ = 1 is the textbook
       first-order removal; the paper's η on sums is τ/n.
    4. τ: the largest dose up to ``max_dose`` with |C(θ(τ)) − C(θ)| ≤ ``budget`` (Eq. 2), by
       line search on the measured C.

    Algorithm 1's last loop runs over the marked rows while λ belongs to the up-weighted ones;
    only the latter agrees with Eq. 11 and is what is computed here.

    damping: added to every eigenvalue of the curvature; larger is stabler and more local.
    budget: largest allowed change of C, in nats.
    l1, l2: penalties on λ. max_weight: bound on every |λ|.
    tolerance, max_iterations: of the conjugate gradients, relative residual.
    """

    method = "puma"

    def _patch(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Patch:  # noqa: ARG002
        train = trained.dataset.train
        n = len(train)
        marked = torch.zeros(n, dtype=torch.bool)
        marked[deletion_set.rows] = True
        retained = train.subset(~marked)

        flat = FlatModel(trained.predictor)
        origin = flat.vector
        criterion = MeanLoss(retained)
        curvature = Shifted(GaussNewton(flat, retained), self.damping + self.training.weight_decay)
        solver = ConjugateGradients(tolerance=self.tolerance, max_iterations=self.max_iterations)

        preserved = solver.solve(curvature, criterion.gradient(flat))
        scores = directional_derivatives(flat, train, preserved.value)
        weights = self._weights(scores, marked)
        step = solver.solve(curvature, weighted_gradient(flat, train, weights))
        direction = step.value / n

        before = criterion.value(flat, origin)
        found = largest_dose(
            lambda dose: criterion.value(flat, origin + dose * direction) - before,
            budget=self.budget,
            max_dose=self.max_dose,
        )
        return Patch(
            flat.module(origin + found.dose * direction),
            parameters={
                "dose": found.dose,
                "damping": self.damping,
                "budget": self.budget,
                "solver": "cg",
            },
            diagnostics={
                "dose_capped": float(found.capped),
                "solver_iterations": float(preserved.iterations + step.iterations),
                "solver_residual": max(preserved.residual, step.residual),
                "reweighted_rows": float((weights[~marked] != 0).sum()),
            },
        )

    def _weights(self, scores: Tensor, marked: Tensor) -> Tensor:
        """(n,) weight of every row's gradient in Eq. 11: 1 on the marked, −λ on the others."""
        weights = torch.ones_like(scores)
        weights[~marked] = -reweight(
            scores[~marked],
            scores[marked].sum().item(),
            l1=self.l1,
            l2=self.l2,
            bounds=(-self.max_weight, self.max_weight),
        )
        return weights
