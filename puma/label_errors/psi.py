"""PUMA's own ranking: how much each row contributes to the criterion, through H⁻¹."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from puma.data.base import Dataset
from puma.influence import (
    Curvature,
    Damping,
    FlatModel,
    Solver,
    influence_scores,
    resolve_solver,
)
from puma.label_errors.base import as_suspicion
from puma.label_errors.criteria import CRITERIA, require_criterion
from puma.label_errors.signal import signal_strength, warn_if_weak


@dataclass(frozen=True)
class Psi:
    """Suspect is what harms C the most: −ψ_i = −∇CᵀH⁻¹∇L_i (Eq. 8 and 9, Algorithm 2).

    Up-weighting row i by ε/n changes C by −(ε/n)·ψ_i: the most NEGATIVE ψ raise C, so they come
    first. One solve and one forward pass for all rows.

    criterion: a name in ``CRITERIA``.

    - "validation_loss": mean loss on ``dataset.test``, whose labels must be clean. Test accuracy
      measured after a repair by this ranking is no longer unbiased; to keep it so, pass a
      Dataset whose ``test`` is a validation split.
    - "unregularised_loss": mean loss on the training rows. Tells something only when training
      had weight decay and has converged.
    - "training_loss": that plus ``weight_decay``/2·‖θ‖², what training minimised. The paper's
      Algorithm 2 takes C from the training rows; at the optimum of J, ∇C = 0 and ψ is noise.
    - "soft_ece": soft calibration error on the training rows (Appendix E).

    weight_decay: what the model was trained with; for "training_loss" only. damping, curvature:
    of H, the curvature of the mean loss; ``damping`` stands for weight decay's curvature too.
    solver: a name, a solver, or None for conjugate gradients.
    check: measure :func:`~puma.label_errors.signal.signal_strength` and issue a WeakSignalWarning
    where ψ is noise. It takes 9 more solves: turn it off to time the method.

    Raises SettingsError for settings that cannot be.
    """

    name: ClassVar[str] = "psi"

    criterion: str = "validation_loss"
    damping: float | Damping = 0.1
    curvature: str = "gauss_newton"
    weight_decay: float = 0.0
    solver: str | Solver | None = None
    check: bool = True

    def __post_init__(self) -> None:
        require_criterion(self.criterion, self.weight_decay)
        Curvature(self.curvature, self.damping)
        resolve_solver(self.solver)

    def suspicion(
        self,
        model: nn.Module,
        dataset: Dataset,
        *,
        progress: bool = False,  # noqa: ARG002
    ) -> Tensor:
        """(n,) −ψ, in C's unit times nats per unit of curvature.

        Raises SolverError when a solve fails, and what ``influence_scores`` does.
        """
        if self.check:
            warn_if_weak(self._strength(model, dataset), self.criterion, self.name)
        psi = influence_scores(
            model,
            dataset,
            criterion=CRITERIA[self.criterion](dataset, self.weight_decay),
            solver=self.solver,
            damping=self.damping,
            curvature=self.curvature,
        )
        return as_suspicion(-psi, self.name)

    def _strength(self, model: nn.Module, dataset: Dataset) -> float:
        flat, solver = FlatModel(model), resolve_solver(self.solver)
        operator = Curvature(self.curvature, self.damping).operator(flat, dataset.train)
        return signal_strength(
            flat,
            dataset,
            self.criterion,
            weight_decay=self.weight_decay,
            invert=lambda vector: solver.solve(operator, vector).value,
        )
