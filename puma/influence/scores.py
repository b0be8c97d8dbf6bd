"""How much each training example contributes to the criterion: psi of Eq. 9."""

from __future__ import annotations

from torch import Tensor, nn

from puma.data.base import Dataset, Examples
from puma.errors import DataError, SettingsError, require_type
from puma.influence.criteria import Criterion, MeanLoss
from puma.influence.curvature import Curvature
from puma.influence.derivatives import directional_derivatives
from puma.influence.flat_model import FlatModel
from puma.influence.solvers import Solver, resolve_solver
from puma.models.predictions import require_fit


def influence_scores(
    model: nn.Module,
    dataset: Dataset | Examples,
    *,
    criterion: Criterion | None = None,
    solver: str | Solver | None = None,
    damping: float = 0.1,
    curvature: str = "gauss_newton",
    sample: int | None = None,
    seed: int = 0,
) -> Tensor:
    """(n,) ψ_i = hᵀ∇L_i with h = H⁻¹∇C, for every training example, in their order (Eq. 9).

    Sign: up-weighting example i by ε/n changes C by −(ε/n)·ψ_i to first order (Eq. 8), and
    leaving it out by +ψ_i/n. The most negative ψ belong to the most harmful examples.
    Unit: that of C times nats per unit of curvature, so ψ/n has the unit of C.

    Beware of a criterion that IS the training objective: at its optimum ∇C = 0 and ψ is noise.
    Judge by held-out examples then: ``MeanLoss(dataset.test)``.

    Args:
        model: It is left as it was.
        dataset: The training examples, or a Dataset with them.
        criterion: C; None takes the mean training loss.
        solver: A name in :data:`puma.influence.SOLVERS`, a solver, or None for conjugate
            gradients.
        damping: Added to every eigenvalue of H, in nats per squared parameter unit.
        curvature: H is this curvature of the mean training loss: "gauss_newton",
            "gauss_newton_rows", or the exact "hessian", which needs damping above minus its
            lowest eigenvalue.
        sample: Take the curvature, not the scores, over that many examples; None takes all.
        seed: Of that sample.

    Raises:
        DataError: There are no examples, or their dtype is not the model's.
        ModelError: The model does not fit the examples and their labels.
        SettingsError: A damping below 0, an unknown solver or curvature, or a bad sample.
        SolverError: The solve fails.
    """
    require_type(
        dataset, (Dataset, Examples), "the dataset", DataError, "pass what load_dataset returns"
    )
    if criterion is not None and (
        isinstance(criterion, type) or not callable(getattr(criterion, "gradient", None))
    ):
        raise SettingsError(
            f"criterion must be a value such as MeanLoss(dataset.test), got {criterion!r}"
        )
    examples = dataset.train if isinstance(dataset, Dataset) else dataset
    flat = FlatModel(model)
    settings = Curvature(curvature, damping, sample, seed)
    criterion = MeanLoss(examples) if criterion is None else criterion
    require_fit(model, examples)
    operator = settings.operator(flat, examples)
    inverse = resolve_solver(solver).solve(operator, criterion.gradient(flat)).value
    return directional_derivatives(flat, examples, inverse)
