"""Conjugate gradients (Hestenes and Stiefel, 1952), matrix-free."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from puma.errors import SettingsError, SolverError
from puma.influence.operators import LinearOperator
from puma.influence.solvers.solver import (
    Preconditioner,
    Solution,
    check_rhs,
    norm,
    not_converged,
    zero_solution,
)
from puma.models.device import exact


@dataclass(frozen=True)
class ConjugateGradients:
    """Conjugate gradients: stops when ‖Ax − b‖ <= ``tolerance``·‖b‖.

    Attributes:
        tolerance: On the true relative residual, with or without a preconditioner.
        max_iterations: How many products of the operator at most.
        require_convergence: Raise SolverError where the tolerance is missed. Otherwise warn, and
            return a Solution that says so.
        preconditioner: A rough inverse of the operator, such as ``Woodbury()``;
            fewer iterations then reach the same answer.

    Raises:
        SettingsError: A setting cannot be used.
    """

    solves_sums: ClassVar[bool] = True

    tolerance: float = 1e-4
    max_iterations: int = 1000
    require_convergence: bool = True
    preconditioner: Preconditioner | None = None

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise SettingsError(f"tolerance must be between 0 and 1, got {self.tolerance}")
        if self.max_iterations < 1:
            raise SettingsError(f"max_iterations must be >= 1, got {self.max_iterations}")
        if not isinstance(self.preconditioner, Preconditioner | None):
            raise SettingsError(
                "preconditioner must have an inverse(operator), such as Woodbury(), "
                f"got {type(self.preconditioner).__name__}"
            )

    def solve(self, operator: LinearOperator, rhs: Tensor) -> Solution:
        """Solve ``operator`` x = ``rhs`` (p,) from x = 0.

        Raises:
            SolverError: ``rhs`` is not finite, the curvature along a search direction is <= 0, or
                the iteration does not converge.
        """
        check_rhs(operator, rhs)
        scale = norm(rhs)
        if scale == 0:
            return zero_solution(rhs)
        # A unit right-hand side keeps squared norms clear of float32's underflow.
        unit = (exact(rhs) / scale).to(rhs)
        value, residual, iterations = self._solve_unit(operator, unit)
        converged = residual <= self.tolerance
        if not converged:
            self._report(residual, iterations)
        return Solution((exact(value) * scale).to(rhs), converged, iterations, residual)

    def _solve_unit(self, operator: LinearOperator, rhs: Tensor) -> tuple[Tensor, float, int]:
        """(x, true residual, iterations).

        The recursive residual drifts away from b − Ax in finite precision, so it only says
        when to look: the true one then decides, and becomes the new start if it is too large.
        """
        precondition = self.preconditioner.inverse(operator) if self.preconditioner else _same
        value, remainder = torch.zeros_like(rhs), rhs
        reached, iterations, target = 1.0, 0, self.tolerance
        while iterations < self.max_iterations and reached > self.tolerance:
            left = self.max_iterations - iterations
            step, taken = self._descend(operator, precondition, remainder, target, left)
            iterations, target = iterations + taken, self.tolerance / 2
            candidate = value + step
            remainder = rhs - operator @ candidate
            residual = norm(remainder)
            if iterations < self.max_iterations and residual > 0.5 * reached:
                # A restart that no longer helps has met round-off; keep the better of the two.
                if residual < reached:
                    value, reached = candidate, residual
                break
            value, reached = candidate, residual
        return value, reached, iterations

    def _descend(
        self,
        operator: LinearOperator,
        precondition: Callable[[Tensor], Tensor],
        rhs: Tensor,
        target: float,
        max_iterations: int,
    ) -> tuple[Tensor, int]:
        """Textbook conjugate gradients until the RECURSIVE residual is <= ``target``."""
        value = torch.zeros_like(rhs)
        residual = rhs
        direction, squared = _preconditioned(precondition, residual)
        iterations = 0
        while iterations < max_iterations and norm(residual) > target:
            product = operator @ direction
            curvature = float(direction @ product)
            if math.isnan(curvature) or math.isinf(curvature):
                raise SolverError(
                    f"the operator returned a product that is not finite in iteration "
                    f"{iterations + 1}; check the model's parameters and the features"
                )
            if curvature <= 0:
                raise SolverError(
                    f"the operator is not positive definite: curvature {curvature:.3g} along "
                    f"search direction {iterations + 1}; raise damping"
                )
            length = squared / curvature
            value = value + length * direction
            residual = residual - length * product
            previous = squared
            improved, squared = _preconditioned(precondition, residual)
            direction = improved + (squared / previous) * direction
            iterations += 1
        return value, iterations

    def _report(self, residual: float, iterations: int) -> None:
        used_up = iterations >= self.max_iterations
        why = "max_iterations reached" if used_up else "round-off allows no more"
        message = (
            f"conjugate gradients did not converge: relative residual {residual:.3g} after "
            f"{iterations} iterations, tolerance {self.tolerance:.3g} ({why}); raise damping or "
            "max_iterations, or loosen tolerance"
        )
        not_converged(message, required=self.require_convergence, stacklevel=3)


def _same(vector: Tensor) -> Tensor:
    return vector


def _preconditioned(
    precondition: Callable[[Tensor], Tensor], residual: Tensor
) -> tuple[Tensor, float]:
    """(M⁻¹r, rᵀM⁻¹r), which must not be negative."""
    improved = precondition(residual)
    squared = float(residual @ improved)
    if not squared >= 0:
        raise SolverError(
            f"the preconditioner is not positive definite: {squared:.3g} along a residual; "
            "give it more damping, or none to conjugate gradients"
        )
    return improved, squared
