"""What every solver takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from puma.errors import SolverError
from puma.influence.operators import LinearOperator


@dataclass(frozen=True)
class Solution:
    """``value`` (p,) solves A·value = b up to ``residual`` = ‖A·value − b‖ / ‖b‖.

    The residual is measured on ``value`` itself, never carried along by a recursion.
    ``iterations`` counts a solver's steps, 0 for a direct one.
    """

    value: Tensor
    converged: bool
    iterations: int
    residual: float


class Solver(Protocol):
    """A linear solver for symmetric positive definite operators: its settings, and ``solve``."""

    def solve(self, operator: LinearOperator, rhs: Tensor) -> Solution:
        """Solve ``operator`` x = ``rhs`` (p,). Raises SolverError when it cannot."""
        ...


def check_rhs(operator: LinearOperator, rhs: Tensor) -> None:
    """Raise SolverError unless ``rhs`` is a finite vector that ``operator`` can be solved for."""
    if rhs.shape != (operator.size,) or rhs.dtype != operator.dtype:
        raise SolverError(
            f"the right-hand side must be ({operator.size},) of {operator.dtype}, got "
            f"{tuple(rhs.shape)} of {rhs.dtype}"
        )
    if not torch.isfinite(rhs).all():
        raise SolverError(
            f"the right-hand side has {int((~torch.isfinite(rhs)).sum())} entries that are NaN or "
            "infinite; check the model's losses and gradients"
        )


def norm(vector: Tensor) -> float:
    """Euclidean length, accumulated in double precision."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
