"""LiSSA (Agarwal et al., 2017), the paper's solver, in the form of Koh and Liang (2017)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from puma.errors import SettingsError, SolverError
from puma.influence.damping import top_eigenvalue
from puma.influence.operators import LinearOperator, OverExamples, Shifted, unshifted
from puma.influence.solvers.solver import (
    Solution,
    check_rhs,
    norm,
    not_converged,
    relative_residual,
    zero_solution,
)


@dataclass(frozen=True)
class LiSSA:
    """cur ← b + (1 − d)·cur − A·cur/scale, whose limit over scale is (A + d·scale·I)⁻¹b.

    EFFECTIVE DAMPING: what is inverted is the operator plus ``damping``·scale. ``damping`` is
    Koh and Liang's d; it is 0 here, so that LiSSA solves the same system as the others, because
    the operator brings its own damping. ``effective_damping`` gives the sum of both.

    scale: above the largest eigenvalue of every batch; too small diverges, too large is slow:
    about scale/(smallest eigenvalue) steps are needed. None estimates it: 1.5 times the largest
    eigenvalue found on 8 batches, the operator's shift included.
    batch_size: a step uses a batch of the operator's examples, in reshuffled passes; None, or an
    operator that is no mean over examples, uses the whole operator. steps: of one recursion.
    repeats: so many recursions are averaged against the batches' noise. seed: of the batches.
    tolerance: the relative residual, measured with one product of the WHOLE operator (including
    d·scale) at the end, up to which the answer counts as converged. Failing that is a
    SolverError, or a warning with ``require_convergence=False``.

    Raises SettingsError for settings that cannot be.
    """

    solves_sums: ClassVar[bool] = False

    steps: int = 1000
    scale: float | None = None
    damping: float = 0.0
    batch_size: int | None = 32
    repeats: int = 1
    seed: int = 0
    tolerance: float = 0.1
    require_convergence: bool = True

    def __post_init__(self) -> None:
        for name in ("steps", "repeats", "batch_size"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise SettingsError(f"{name} must be >= 1, got {count}")
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale > 0):
            raise SettingsError(f"scale must be finite and > 0, got {self.scale}")
        if not 0 <= self.damping < 1:
            raise SettingsError(f"damping must be at least 0 and below 1, got {self.damping}")
        if not 0 < self.tolerance < 1:
            raise SettingsError(f"tolerance must be between 0 and 1, got {self.tolerance}")

    def effective_damping(self, operator: LinearOperator) -> float:
        """What is added in all to every eigenvalue of the matrix inside ``operator``."""
        shift = unshifted(operator)[1]
        return shift + self.damping * self._scale(operator) if self.damping else shift

    def solve(self, operator: LinearOperator, rhs: Tensor) -> Solution:
        """Solve (``operator`` + d·scale·I) x = ``rhs`` (p,).

        Raises SolverError for a right-hand side that is not finite, for divergence, and for
        missing convergence.
        """
        check_rhs(operator, rhs)
        length = norm(rhs)
        if length == 0:
            return zero_solution(rhs)
        unit = (rhs.double() / length).to(rhs.dtype)
        scale = self._scale(operator)
        generator = torch.Generator().manual_seed(self.seed)
        total = torch.zeros_like(unit)
        for _ in range(self.repeats):
            total += self._recursion(operator, unit, scale, generator) / scale
        value = total / self.repeats
        solved = Shifted(operator, self.damping * scale) if self.damping else operator
        residual = relative_residual(solved, unit, value)
        converged = residual <= self.tolerance
        if not converged:
            self._report(residual, scale)
        value = (value.double() * length).to(rhs.dtype)
        return Solution(value, converged, self.steps * self.repeats, residual)

    def _recursion(
        self, operator: LinearOperator, rhs: Tensor, scale: float, generator: torch.Generator
    ) -> Tensor:
        current = rhs
        parts = self._parts(operator, generator)
        for step, part in zip(range(1, self.steps + 1), parts, strict=False):
            current = rhs + (1 - self.damping) * current - (part @ current) / scale
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
            "directions), batch_size or repeats (noise), or loosen tolerance"
        )
        not_converged(message, required=self.require_convergence, stacklevel=3)
