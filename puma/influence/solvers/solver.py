"""What every solver takes and returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from puma.errors import SolverError
from puma.influence.operators import LinearOperator
from puma.influence.sharding import agreed
from puma.models.device import with_double


@dataclass(frozen=True)
class Solution:
    """``value`` (p,) solves A·value = b up to ``residual`` = ‖A·value − b‖ / ‖b‖.

    Attributes:
        value: (p,) the solution.
        converged: Whether the solver met its own tolerance.
        iterations: The solver's steps; 0 for a direct solver.
        residual: Measured on ``value`` itself, never carried along by a recursion.
        residual_of: "operator" where A is the operator that was asked for. "approximation" where
            the solver put a cheaper matrix in its place and measured on that one only: small then
            means that the cheap matrix was inverted well, not that it was a good one.
        rows: Of the factor of :class:`.dual.Dual`; 0 where it does not solve by one.
    """

    value: Tensor
    converged: bool
    iterations: int
    residual: float
    residual_of: str = "operator"
    rows: int = 0


class Solver(Protocol):
    """A linear solver for symmetric positive definite operators: its settings, and ``solve``.

    A solver that needs more than products unwraps the operator: ``Shifted`` holds the damping,
    and what it shifts may be a mean over examples of a model (``OverExamples``).

    Attributes:
        solves_sums: Whether PUMA's steps to target margins may use this solver. Their operator is
            the damped curvature plus other terms. The solver must either take it as any symmetric
            positive definite matrix, or have an ``inverse`` of the curvature alone, with which
            conjugate gradients are preconditioned.
    """

    solves_sums: ClassVar[bool]

    def solve(self, operator: LinearOperator, rhs: Tensor) -> Solution:
        """Solve ``operator`` x = ``rhs`` (p,). Raises SolverError when it cannot."""
        ...


@runtime_checkable
class Preconditioner(Protocol):
    """Something that inverts an operator roughly, and cheaply for many vectors."""

    def inverse(self, operator: LinearOperator) -> Callable[[Tensor], Tensor]:
        """Return a symmetric positive definite map (p,) -> (p,) near the operator's inverse."""
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


def zero_solution(rhs: Tensor) -> Solution:
    """Return the solution for a right-hand side of zeros."""
    return Solution(torch.zeros_like(rhs), converged=True, iterations=0, residual=0.0)


def relative_residual(operator: LinearOperator, rhs: Tensor, value: Tensor) -> float:
    """‖A·value − b‖ / ‖b‖ by one product; ``rhs`` is not zero."""
    return norm(operator @ value - rhs) / norm(rhs)


def norm(vector: Tensor) -> float:
    """Compute the Euclidean length in double precision: rank 0's, as it ends iterations."""
    return agreed(float(torch.linalg.vector_norm(with_double(vector), dtype=torch.float64)))


def not_converged(message: str, *, required: bool, stacklevel: int) -> None:
    """Report an iteration that did not converge: an error if ``required``, else a warning.

    ``stacklevel`` is that of warnings.warn, counted from the caller.
    """
    if required:
        raise SolverError(message)
    warnings.warn(message, stacklevel=stacklevel + 1)
