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
from puma.models.device import exact


@dataclass(frozen=True)
class Woodbury:
    """(AᵀA + δI)⁻¹b = (b − Aᵀ(AAᵀ + δI)⁻¹Ab)/δ, with AᵀA in place of the Gauss-Newton matrix.

    Solves ``Shifted(GaussNewton(...), δ)`` with rows A of its own, or
    ``Shifted(GaussNewtonRows(...), δ)`` with the rows of that. The rows and AAᵀ are computed once
    for each GaussNewton object and live as long as it and this solver. Another right-hand side
    then takes a moment, and another δ one factorisation of N x N.

    Exact when all rows are taken. Otherwise an approximation, better per second than any other
    here on convolutional networks. Also a preconditioner for conjugate gradients.

    The residual is measured on the operator where one of its products is about as cheap as the
    rows were (all rows, or no more examples than rows); otherwise on AᵀA + δI.
    ``Solution.residual_of`` says which.

    Attributes:
        rows: N, how many rows are drawn; None takes all.
        seed: Of the draws; the global random state is not used.
        batch_size: Of the passes; None takes the model's own.
        max_bytes: The memory for A and AAᵀ.

    Raises:
        SettingsError: A setting cannot be used.
    """

    solves_sums: ClassVar[bool] = True

    rows: int | None = 1024
    seed: int = 0
    batch_size: int | None = None
    max_bytes: int = 2**30
    _known: WeakKeyDictionary[GaussNewton, GaussNewtonRows] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_rows(self.rows, self.seed, self.max_bytes)
        if self.batch_size is not None and self.batch_size < 1:
            raise SettingsError(f"batch_size must be >= 1, got {self.batch_size}")

    def solve(self, operator: LinearOperator, rhs: Tensor) -> Solution:
        """Solve ``operator`` x = ``rhs`` (p,).

        Raises:
            SolverError: The operator is not a damped Gauss-Newton matrix or has no damping,
                ``rhs`` is not finite, or the rows are beyond ``max_bytes``.
            ModelError: A trainable layer is not Linear, Conv2d or BatchNorm.
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
        elif matrix.exact or len(matrix.examples) <= len(matrix.factor):  # about as cheap as these
            residual, on = relative_residual(operator, rhs, value), "operator"
        return Solution(value, converged=True, iterations=0, residual=residual, residual_of=on)

    def inverse(self, operator: LinearOperator) -> Callable[[Tensor], Tensor]:
        """Return the map x -> (AᵀA + δI)⁻¹x, a preconditioner. Raises what ``solve`` raises."""
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
                seed=self.seed,
                batch_size=self.batch_size,
                max_bytes=self.max_bytes,
            )
        return self._known[base], shift


def _inverse(matrix: GaussNewtonRows, shift: float) -> Callable[[Tensor], Tensor]:
    rows = matrix.factor
    damped = matrix.kernel + shift * torch.eye(len(rows)).to(matrix.kernel)
    factor, info = torch.linalg.cholesky_ex(damped)
    if int(info) != 0 or not torch.isfinite(factor).all():
        raise SolverError(
            "the operator is not positive definite to working precision: its rows are not finite, "
            f"or damping {shift:.3g} drowns in their round-off; check the model or raise damping"
        )

    def apply(vector: Tensor) -> Tensor:
        inner = torch.cholesky_solve(exact(rows @ vector)[:, None], factor)[:, 0]
        return (vector - rows.T @ inner.to(vector)) / shift

    return apply
