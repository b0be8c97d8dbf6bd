"""LiSSA (Agarwal et al., 2017), the paper's solver, in the form of Koh and Liang (2017)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from puma.errors import SettingsError, SolverError, require_seed
from puma.influence.operators import (
    LinearOperator,
    OverExamples,
    Shifted,
    device_of,
    unshifted,
)
from puma.influence.solvers.solver import (
    Solution,
    check_rhs,
    norm,
    not_converged,
    relative_residual,
    zero_solution,
)
from puma.models.device import exact


@dataclass(frozen=True)
class LiSSA:
    """The recursion cur ← b + cur − A·cur/scale, whose limit over scale is A⁻¹b.

    The operator brings its own damping; Koh and Liang's further d is not used, so that LiSSA
    solves the same system as the other solvers.

    Attributes:
        steps: The length of the recursion. About scale/(smallest eigenvalue) steps are needed.
        scale: Must be above the largest eigenvalue of every batch. Too small diverges, too large
            is slow. None takes 1.5 times the largest eigenvalue found on 8 batches.
        batch_size: Each step uses a batch of the operator's examples, in reshuffled passes. None,
            or an operator that is no mean over examples, uses the whole operator.
        seed: Of the batches; the global random state is not used.
        tolerance: The relative residual up to which the answer counts as converged. It is
            measured at the end by one product of the WHOLE operator.
        require_convergence: Raise SolverError where that is missed; otherwise warn.

    Raises:
        SettingsError: A setting cannot be used.
    """

    solves_sums: ClassVar[bool] = False

    steps: int = 1000
    scale: float | None = None
    batch_size: int | None = 32
    seed: int = 0
    tolerance: float = 0.1
    require_convergence: bool = True

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise SettingsError(f"{name} must be >= 1, got {count}")
        require_seed(self.seed, SettingsError)
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale > 0):
            raise SettingsError(f"scale must be finite and > 0, got {self.scale}")
        if not 0 < self.tolerance < 1:
            raise SettingsError(f"tolerance must be between 0 and 1, got {self.tolerance}")

    def solve(self, operator: LinearOperator, rhs: Tensor) -> Solution:
        """Solve ``operator`` x = ``rhs`` (p,) from x = b/scale.

        Raises:
            SolverError: ``rhs`` is not finite, the recursion diverges, or it misses the tolerance.
        """
        check_rhs(operator, rhs)
        length = norm(rhs)
        if length == 0:
            return zero_solution(rhs)
        unit = (exact(rhs) / length).to(rhs)
        scale = self._scale(operator)
        generator = torch.Generator().manual_seed(self.seed)
        value = self._recursion(operator, unit, scale, generator) / scale
        residual = relative_residual(operator, unit, value)
        converged = residual <= self.tolerance
        if not converged:
            self._report(residual, scale)
        value = (exact(value) * length).to(rhs)
        return Solution(value, converged, self.steps, residual)

    def _recursion(
        self, operator: LinearOperator, rhs: Tensor, scale: float, generator: torch.Generator
    ) -> Tensor:
        current = rhs
        parts = self._parts(operator, generator)
        for step, part in zip(range(1, self.steps + 1), parts, strict=False):
            current = rhs + current - (part @ current) / scale
            # As long as no batch stretches any direction, step t adds at most ‖b‖ to the norm.
            if not norm(current) <= 10 * (step + 1):
                raise SolverError(
                    f"LiSSA diverged in step {step} at scale {scale:.3g}: a batch has a larger "
                    "eigenvalue, or the operator is not positive definite; raise scale in the "
                    "first case and raise damping in the second"
                )
        return current

    def _parts(
        self, operator: LinearOperator, generator: torch.Generator
    ) -> Iterator[LinearOperator]:
        """The operator as seen by each step, without end."""
        base, shift = unshifted(operator)
        n = len(base.examples) if isinstance(base, OverExamples) else 0
        if not isinstance(base, OverExamples) or not self.batch_size or self.batch_size >= n:
            while True:
                yield operator
        device = base.examples.labels.device
        while True:
            # A smaller last batch would weigh too much: its rows wait for the next pass.
            for rows in torch.randperm(n, generator=generator).split(self.batch_size):
                if len(rows) == self.batch_size:
                    yield Shifted(base.over(rows.to(device)), shift)

    def _scale(self, operator: LinearOperator) -> float:
        if self.scale is not None:
            return self.scale
        generator = torch.Generator().manual_seed(self.seed)
        parts = self._parts(operator, generator)
        first = next(parts)
        looked_at = [first] if first is operator else [first, *(next(parts) for _ in range(7))]
        top = max(top_eigenvalue(part, products=8, seed=self.seed) for part in looked_at)
        if not top > 0:
            raise SolverError(
                f"the operator is not positive definite: its largest eigenvalue is {top:.3g}; "
                "raise damping"
            )
        return 1.5 * top

    def _report(self, residual: float, scale: float) -> None:
        message = (
            f"LiSSA did not converge: relative residual {residual:.3g} after {self.steps} steps, "
            f"tolerance {self.tolerance:.3g}, scale {scale:.3g}; raise damping or steps (slow "
            "directions) or batch_size (noise), or loosen tolerance"
        )
        not_converged(message, required=self.require_convergence, stacklevel=3)


def top_eigenvalue(operator: LinearOperator, *, products: int = 12, seed: int = 0) -> float:
    """Estimate the largest eigenvalue by Lanczos' method with full reorthogonalisation.

    The estimate is a lower bound, usually within 1 % after a dozen products.

    Args:
        operator: Any symmetric matrix.
        products: How many operator products at most; fewer where the estimate has settled.
        seed: Of the random start; the global random state is not used.

    Raises:
        SettingsError: A bad seed.
        SolverError: A product is not finite.
    """
    require_seed(seed, SettingsError)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(operator.size, generator=generator, dtype=torch.float64)
    vector = (start / start.norm()).to(operator.dtype).to(device_of(operator))
    basis: list[Tensor] = []
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(products, operator.size)):
        basis.append(vector)
        image = operator @ vector
        diagonal.append(_dot(vector, image))
        _require_finite(diagonal[-1])
        known = torch.stack(basis, 1)
        for _twice in range(2):  # once leaves round-off of the size of the top eigenvalue
            image = image - known @ (known.T @ image)
        length = math.sqrt(_dot(image, image))
        values, vectors = _tridiagonal(diagonal, beside)
        settled = length * abs(float(vectors[-1, -1])) <= 1e-4 * abs(float(values[-1]))
        if settled or length == 0:
            break
        beside.append(length)
        vector = image / length
    return float(values[-1])


def _tridiagonal(diagonal: list[float], beside: list[float]) -> tuple[Tensor, Tensor]:
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if beside:
        matrix += torch.diag(torch.tensor(beside, dtype=torch.float64), 1)
        matrix += torch.diag(torch.tensor(beside, dtype=torch.float64), -1)
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


def _dot(left: Tensor, right: Tensor) -> float:
    return float(exact(left) @ exact(right))


def _require_finite(number: float) -> None:
    if not math.isfinite(number):
        raise SolverError(
            "the operator returned a product that is not finite; check the model's parameters "
            "and the features"
        )
