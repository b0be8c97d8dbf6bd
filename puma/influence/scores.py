"""How much each training example contributes to the criterion: psi of Eq. 9."""

from __future__ import annotations

from torch import Tensor, nn

from puma.data.base import Dataset, Examples
from puma.influence.criteria import Criterion, MeanLoss
from puma.influence.derivatives import directional_derivatives
from puma.influence.flat import FlatModel
from puma.influence.operators import GaussNewton, Shifted
from puma.influence.solvers import Solver, resolve_solver


def influence_scores(
    model: nn.Module,
    dataset: Dataset | Examples,
    *,
    criterion: Criterion | None = None,
    solver: str | Solver | None = None,
    damping: float = 0.1,
) -> Tensor:
    """(n,) ψ_i = hᵀ∇L_i with h = H⁻¹∇C, for every training example, in their order (Eq. 9).

    H is the Gauss-Newton matrix of the mean training loss plus ``damping``·I. The criterion
    defaults to the mean training loss.

    Sign: up-weighting example i by ε/n changes C by −(ε/n)·ψ_i to first order (Eq. 8), and
    leaving it out by +ψ_i/n; the most negative ψ belong to the most harmful examples.
    Unit: that of C times nats per unit of curvature, so ψ/n has the unit of C.

    Beware of a criterion that IS the training objective: at its optimum ∇C = 0 and ψ is noise.
    Judge by held-out examples then: ``MeanLoss(dataset.test)``.

    ``model`` is left untouched. Raises DataError for no examples, SettingsError for a damping
    below 0 or an unknown solver, SolverError when the solve fails.
    """
    examples = dataset.train if isinstance(dataset, Dataset) else dataset
    flat = FlatModel(model)
    curvature = Shifted(GaussNewton(flat, examples), damping)
    criterion = MeanLoss(examples) if criterion is None else criterion
    inverse = resolve_solver(solver).solve(curvature, criterion.gradient(flat)).value
    return directional_derivatives(flat, examples, inverse)
