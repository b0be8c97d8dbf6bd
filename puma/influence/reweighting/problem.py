"""Eq. 10 for one criterion or several: what is minimised, and how far weights are from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Problem:
    """Minimise ‖Ψλ − target‖² + l1·‖λ‖₁ + l2·‖λ‖² over λ (n,) within ``bounds`` (Eq. 10).

    The caller checks what is said of the attributes.

    Attributes:
        scores: Ψ (K, n), one row per criterion, in double precision and finite.
        target: (K,) the sums to compensate for, finite.
        l1: >= 0.
        l2: >= 0.
        bounds: Of every λ_j; they contain 0.
    """

    scores: Tensor
    target: Tensor
    l1: float
    l2: float
    bounds: Bounds

    @property
    def size(self) -> int:
        """The number n of examples."""
        return self.scores.shape[1]

    @property
    def zero_is_optimal(self) -> bool:
        """Whether λ = 0 is a minimiser: no example that may move brings more than it costs."""
        gain = self.scores.T @ self.target
        return not bool((2 * self._movable(gain) > self.l1).any())

    def rescaled(self) -> Problem:
        """The same λ in units of the largest score: its squares neither overflow nor vanish."""
        unit = float(self.scores.abs().max()) if self.size else 0.0
        if unit == 0:
            return self
        return replace(
            self,
            scores=self.scores / unit,
            target=self.target / unit,
            l1=self.l1 / unit / unit,
            l2=self.l2 / unit / unit,
        )

    def objective(self, weights: Tensor) -> float:
        """The value of Eq. 10 at ``weights`` (n,)."""
        gap = self.scores @ weights - self.target
        penalties = self.l1 * weights.abs().sum() + self.l2 * (weights @ weights)
        return float(gap @ gap + penalties)

    @property
    def slope_at_zero(self) -> float:
        """2·‖target‖·max_j ‖Ψ_j‖ over the columns: no λ_j lowers the data term faster at λ = 0."""
        if self.size == 0:
            return 0.0
        slope = 2 * float(self.target.norm() * self.scores.norm(dim=0).max())
        # Squares of a norm may vanish.
        return slope or 2 * float(self.target.abs().max() * self.scores.abs().max())

    def violation(self, weights: Tensor) -> float:
        """Largest violation of the optimality (KKT) conditions; 0 if and only if a minimiser."""
        if self.size == 0:
            return 0.0
        lower, upper = self.bounds
        downhill, cost = self._downhill(weights), torch.full_like(weights, self.l1)
        # One-sided derivatives: no descent may be left to a side that the bounds allow.
        up = downhill - torch.where(weights >= 0, cost, -cost)
        down = torch.where(weights > 0, cost, -cost) - downhill
        descent = torch.maximum(up * (weights < upper), down * (weights > lower))
        return float(descent.max().clamp(min=0))  # NaN stays NaN, and certifies nothing

    def residual(self, weights: Tensor) -> float:
        """``violation`` relative to ``slope_at_zero``."""
        scale = self.slope_at_zero
        return self.violation(weights) / scale if scale > 0 else 0.0

    def proximal_step(self, weights: Tensor) -> Tensor:
        """One proximal gradient step: never uphill, and weights near 0 or a bound snap to it."""
        curvature = 2 * float(torch.linalg.matrix_norm(self.scores @ self.scores.T, 2) + self.l2)
        moved = weights + self._downhill(weights) / curvature
        shrunk = torch.nn.functional.softshrink(moved, self.l1 / curvature)
        return shrunk.clamp(*self.bounds)

    def _downhill(self, weights: Tensor) -> Tensor:
        """(n,) minus the gradient of the smooth part."""
        gap = self.target - self.scores @ weights
        return 2 * (self.scores.T @ gap - self.l2 * weights)

    def _movable(self, gain: Tensor) -> Tensor:
        """|gain|, or 0 where the bounds forbid the side to which it points."""
        lower, upper = self.bounds
        return torch.where(gain > 0, gain * (upper > 0), -gain * (lower < 0))


class Reweighter(Protocol):
    """A way to solve Eq. 10: its settings, and ``weights``."""

    def weights(self, problem: Problem) -> Tensor:
        """(n,) the minimiser. Raises SolverError when it cannot be found."""
        ...
