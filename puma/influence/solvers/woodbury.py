"""The direct solve through few rows: (AᵀA + δI)⁻¹ by the N x N kernel AAᵀ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from puma.errors import SettingsError, SolverError
from puma.influence.gauss_newton import GaussNewton
from puma.influence.gauss_newton_rows import GaussNewtonRows, check_rows
from puma.influence.operators import LinearOperator, Shifted, unshifted
from puma.influence.solvers.solver import (
    Solution,
    check_rhs,
    norm,
    relative_residual,
    zero_solution,
)


@dataclass(frozen=True)
class Woodbury:
    """(AᵀA + δI)⁻¹b = (b − Aᵀ(AAᵀ + δI)⁻¹Ab)/δ, with AᵀA in place of the Gauss-Newton matrix.

    Solves ``Shifted(GaussNewton(...), δ)`` with rows of its own (rows, eigenvectors, seed,
    batch_size, max_bytes are those of :class:`GaussNewtonRows`), or
    ``Shifted(GaussNewtonRows(...), δ)`` with the rows of that. The rows and AAᵀ are computed
    once for each GaussNewton object and live as long as it and this solver; another right-hand
    side then takes a moment, and another δ one factorisation of N x N.

    Exact when all rows are taken. Otherwise an approximation, better per second than any other
    here on convolutional networks; also a preconditioner for conjugate gradients.

    true_residual: measure ``residual`` on the operator, at the price of one of its products,
    rather than on AᵀA + δI. None does so when that is about as cheap as the rows were (exact, or
    no more examples than rows). ``Solution.residual_of`` says which it was.

    Raises SettingsError for settings that cannot be.
    """

    solves_sums: ClassVar[bool] = True

    rows: int | None = 1024
    eigenvectors: str = "sampled"
    seed: int = 0
    batch_size: int | None = None
    max_bytes: int = 2**30
    true_residual: bool | None = None
    _known: WeakKeyDictionary[GaussNewton, GaussNewtonRows] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_rows(self.rows, self.eigenvectors, self.max_bytes)
        if self.batch_size is not None and self.batch_size < 1:
            raise SettingsError(f"batch_size must be >= 1, got {self.batch_size}")

    def solve(self, operator: LinearOperator, rhs: Tensor) -> Solution:
        """Solve ``operator`` x = ``rhs`` (p,).

        Raises SolverError for an operator that is not a damped Gauss-Newton matrix, for one
        without damping, a right-hand side that is not finite, and rows beyond ``max_bytes``;
        ModelError for a model with other layers than Linear, Conv2d and BatchNorm.
        """
        check_rhs(operator, rhs)
        matrix, shift = self._matrix(operator)
        if norm(rhs) == 0:
            return zero_solution(rhs)
        apply, reduced = _inverse(matrix, shift), Shifted(matrix, shift)
        value = apply(rhs)
        residual = relative_residual(reduced, rhs, value)
        # b − Aᵀ(...) cancels where damping is small; one step of refinement wins that back.
        refined = value + apply(rhs - reduced @ value)
        again = relative_residual(reduced, rhs, refined)
        if again < residual:
            value, residual = refined, again
        on = "approximation"
        base, _ = unshifted(operator)
        if base is matrix:
            on = "operator"
        elif self._measures(matrix):
            residual, on = relative_residual(operator, rhs, value), "operator"
        return Solution(value, converged=True, iterations=0, residual=residual, residual_of=on)

    def inverse(self, operator: LinearOperator) -> Callable[[Tensor], Tensor]:
        """x -> (AᵀA + δI)⁻¹x, for use as a preconditioner. Raises what ``solve`` does."""
        return _inverse(*self._matrix(operator))

    def _matrix(self, operator: LinearOperator) -> tuple[GaussNewtonRows, float]:
        base, shift = unshifted(operator)
        if not isinstance(base, GaussNewton | GaussNewtonRows):
            raise SolverError(
                f"woodbury needs the rows of a Gauss-Newton matrix, got {type(base).__name__}; "
                "pass Shifted(GaussNewton(...), damping) or use solver 'cg'"
            )
        if shift == 0:
            raise SolverError(
                "the operator is not positive definite: few rows leave most directions without "
                "curvature; raise damping above 0"
            )
        if isinstance(base, GaussNewtonRows):
            return base, shift
        if base not in self._known:
            self._known[base] = GaussNewtonRows(
                base.flat,
                base.examples,
                rows=self.rows,
                eigenvectors=self.eigenvectors,
                seed=self.seed,
                batch_size=self.batch_size,
                max_bytes=self.max_bytes,
            )
        return self._known[base], shift

    def _measures(self, matrix: GaussNewtonRows) -> bool:
        if self.true_residual is not None:
            return self.true_residual
        return matrix.exact or len(matrix.examples) <= len(matrix.factor)


def _inverse(matrix: GaussNewtonRows, shift: float) -> Callable[[Tensor], Tensor]:
    rows = matrix.factor
    damped = matrix.kernel + shift * torch.eye(len(rows), dtype=torch.float64, device=rows.device)
    factor, info = torch.linalg.cholesky_ex(damped)
    if int(info) != 0 or not torch.isfinite(factor).all():
        raise SolverError(
            "the operator is not positive definite to working precision: its rows are not finite, "
            f"or damping {shift:.3g} drowns in their round-off; check the model or raise damping"
        )

    def apply(vector: Tensor) -> Tensor:
        inner = torch.cholesky_solve((rows @ vector).double()[:, None], factor)[:, 0]
        return (vector - rows.T @ inner.to(vector.dtype)) / shift

    return apply
