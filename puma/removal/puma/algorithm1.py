"""Algorithm 1 as the paper prints it, with its one typo corrected, for comparison."""

from __future__ import annotations

import torch

from puma.influence import (
    Curvature,
    FlatModel,
    LiSSA,
    MeanLoss,
    directional_derivatives,
    reweight,
    weighted_gradient,
)
from puma.influence.reweighting import SLSQP
from puma.removal.base import RemovalMethod
from puma.removal.results import Patch, RowWeights, Trained
from puma.requests.deletion_set import DeletionSet
from puma.settings import PumaPaperSettings


class PaperPUMA(PumaPaperSettings, RemovalMethod):
    """PUMA with a fixed rate η on sums, LiSSA, and SLSQP on a sample (Algorithm 1, Eqs. 8-11).

    C and the Hessian are means over ALL training rows; λ belongs to D_up, a random sample of
    the retained rows. θ_mod = θ + η·H⁻¹(Σ_marked ∇L − Σ_up λ∇L): a dose of η·n in the words of
    :class:`puma.PUMA`. Nothing is measured on the way, so nothing bounds the change of C.

    The last loop of Algorithm 1 runs over the marked rows; here over D_up, as Eq. 11 does. What
    the paper does not state is a setting. Both solvers run a fixed number of steps, as in the
    paper: where they have not converged by then, this is a warning. ``remove`` raises SolverError
    when LiSSA diverges.

    Attributes:
        eta: η, 0.01 to 0.1 in the paper.
        damping: Added to every eigenvalue of the curvature.
        curvature: "hessian" as printed; "gauss_newton" has no negative curvature for LiSSA to
            diverge on.
        steps: Of LiSSA.
        batch_size: Rows of each of these steps.
        tolerance: Relative residual above which LiSSA warns.
        up_sample: Largest size of D_up; the diagnostic ``up_sampled_rows`` is the size it had.
        reweighter: A name of :data:`puma.influence.REWEIGHTERS`; "slsqp" as printed.
        l1: Penalty on |λ|.
        l2: Penalty on λ².
        max_weight: Bound on every |λ|.
    """

    method = "puma_paper"

    def _patch(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Patch:  # noqa: ARG002
        train = trained.dataset.train
        flat = FlatModel(trained.predictor)
        damping = self.damping + self.training.weight_decay
        operator = Curvature(kind=self.curvature, damping=damping).operator(flat, train)
        solver = LiSSA(
            steps=self.steps,
            batch_size=self.batch_size,
            seed=self.seed,
            tolerance=self.tolerance,
            require_convergence=False,  # the paper runs a fixed number of steps
        )
        preserved = solver.solve(operator, MeanLoss(train).gradient(flat))
        scores = directional_derivatives(flat, train, preserved.value)

        up = self._up(len(train), deletion_set)
        weights = torch.zeros_like(scores)
        weights[deletion_set.rows] = 1.0
        printed = self.reweighter == "slsqp"
        weights[up] = -reweight(
            scores[up],
            scores[deletion_set.rows].sum().item(),
            l1=self.l1,
            l2=self.l2,
            bounds=(-self.max_weight, self.max_weight),
            # The paper takes SLSQP's weights as they are when its iterations run out.
            solver=SLSQP(require_convergence=False) if printed else self.reweighter,
        )
        compensating = -weights
        compensating[deletion_set.rows] = 0.0
        step = solver.solve(operator, weighted_gradient(flat, train, weights))
        return Patch(
            flat.module(flat.vector + self.eta * step.value),
            outcomes={"dose": self.eta * len(train), "solver": "lissa"},
            diagnostics={
                "up_sampled_rows": float(len(up)),
                "solver_iterations": float(preserved.iterations + step.iterations),
                "solver_residual": max(preserved.residual, step.residual),
                "reweighted_rows": float((weights[up] != 0).sum()),
            },
            row_weights=RowWeights(scores.cpu(), compensating.cpu()),
        )

    def _up(self, n: int, deletion_set: DeletionSet) -> torch.Tensor:
        """The rows of D_up: a seeded sample of the retained ones."""
        retained = torch.ones(n, dtype=torch.bool)
        retained[deletion_set.rows] = False
        rows = retained.nonzero().flatten()
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))
        return rows[order[: self.up_sample]].sort().values
