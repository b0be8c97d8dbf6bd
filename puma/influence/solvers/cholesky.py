"""The direct solve for small models: write the matrix down and factorise it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from puma.errors import SettingsError, SolverError
from puma.influence.operators import LinearOperator
from puma.influence.solvers.solver import Solution, check_rhs, norm
from puma.models.device import exact


@dataclass(frozen=True)
class Dense:
    """Cholesky factorisation of the operator, written down in double precision.

    Attributes:
        max_size: More parameters are refused: p products and p² numbers are needed.

    Raises:
        SettingsError: ``max_size`` is below one.
    """

    solves_sums: ClassVar[bool] = True

    max_size: int = 5000

    def __post_init__(self) -> None:
        if self.max_size < 1:
            raise SettingsError(f"max_size must be >= 1, got {self.max_size}")

    def solve(self, operator: LinearOperator, rhs: Tensor) -> Solution:
        """Solve ``operator`` x = ``rhs`` (p,) exactly, up to round-off.

        Raises:
            SolverError: There are more than ``max_size`` parameters, ``rhs`` is not finite, or the
                operator is not positive definite.
        """
        check_rhs(operator, rhs)
        if operator.size > self.max_size:
            raise SolverError(
                f"the dense solver would write down a {operator.size} x {operator.size} matrix, "
                f"its limit is {self.max_size}; use solver 'cg' or raise max_size"
            )
        matrix = exact(materialise(operator, device=rhs.device))
        factor, info = torch.linalg.cholesky_ex((matrix + matrix.T) / 2)
        if int(info) != 0 or not torch.isfinite(factor).all():
            raise SolverError(
                f"the operator is not positive definite: its leading minor of order {int(info)} "
                "fails; raise damping"
            )
        value = torch.cholesky_solve(exact(rhs)[:, None], factor)[:, 0].to(rhs)
        length = norm(rhs)
        residual = norm(operator @ value - rhs) / length if length else 0.0
        return Solution(value, converged=True, iterations=0, residual=residual)


def materialise(operator: LinearOperator, *, device: torch.device | None = None) -> Tensor:
    """Write down the (p, p) matrix of ``operator``, one product per column."""
    matrix = torch.empty(operator.size, operator.size, dtype=operator.dtype, device=device)
    unit = torch.zeros(operator.size, dtype=operator.dtype, device=device)
    for column in range(operator.size):
        unit[column] = 1
        matrix[:, column] = operator @ unit
        unit[column] = 0
    return matrix
