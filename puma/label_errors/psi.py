"""PUMA's own ranking: how much each row contributes to the criterion, through H⁻¹."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from puma.data.base import Dataset
from puma.influence import (
    Curvature,
    FlatModel,
    Solver,
    influence_scores,
    resolve_solver,
)
from puma.influence.criteria import CRITERIA, require_criterion
from puma.label_errors.ranker import as_suspicion
from puma.label_errors.weak_signal import signal_strength, warn_if_weak


@dataclass(frozen=True)
class Psi:
    """−ψ_i = −∇CᵀH⁻¹∇L_i (Eq. 8 and 9): the rows that harm the criterion C most come first.

    Up-weighting row i by ε/n changes C by −(ε/n)·ψ_i, so the most NEGATIVE ψ raise C. One solve
    and one forward pass serve all rows. The paper's Algorithm 2 takes C from the training rows;
    at the optimum of the training objective ∇C = 0 and ψ is noise, so held-out rows are the
    default here.

    Attributes:
        criterion: A name in :data:`puma.influence.CRITERIA`. With "validation_loss" the labels of
            the validation rows must be right. Where there are none, those of ``dataset.test`` take
            their place, and test accuracy measured after a repair by this
            ranking is too good; pass a Dataset whose ``test`` is a validation split to avoid that.
        damping: Added to every eigenvalue of H, in nats per squared parameter unit. It stands for
            the curvature of weight decay, too.
        curvature: A name in :data:`puma.influence.CURVATURES`: H is that of the mean loss.
        weight_decay: What the model was trained with; only "training_loss" uses it.
        solver: A name in :data:`puma.influence.SOLVERS`, a solver, or None for conjugate
            gradients.
        check: Measure the signal strength and issue a WeakSignalWarning where ψ is noise. It
            takes 9 more solves: turn it off to time the method.

    Raises:
        SettingsError: A setting cannot be used.
    """

    name: ClassVar[str] = "psi"

    criterion: str = "validation_loss"
    damping: float = 0.1
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

        Raises:
            SolverError: A solve fails.
            PumaError: What :func:`puma.influence.influence_scores` raises.
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
