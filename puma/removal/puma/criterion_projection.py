"""The second-order model of a step that moves some margins and leaves the criterion alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.influence import LinearOperator


class NoProjection:
    """Q = I: without re-weighting, a step is taken as it is."""

    def __call__(self, vector: Tensor) -> Tensor:
        """(p,) Qx."""
        return vector

    def transposed(self, vector: Tensor) -> Tensor:
        """(p,) Qᵀx."""
        return vector

    def bounded(self, vector: Tensor) -> Tensor:
        """(p,) Qx, as far as the bounds on λ allow."""
        return vector


@dataclass(frozen=True)
class CriterionProjection(NoProjection):
    """Qx = x − u·(∇C·x)/(∇C·u): u takes back what the step x does to C, to first order.

    Attributes:
        gradient: ∇C (p,).
        compensation: u (p,), the retained rows' part of Eq. 11; ∇C·u must not be 0.
        largest: The multiple of u at which a λ meets its bound.
    """

    gradient: Tensor
    compensation: Tensor
    largest: float

    def __call__(self, vector: Tensor) -> Tensor:
        """(p,) Qx."""
        return vector - self._share(vector) * self.compensation

    def transposed(self, vector: Tensor) -> Tensor:
        """(p,) Qᵀx."""
        along = float(self.gradient @ self.compensation)
        share = float(self.compensation @ vector) / along
        return vector - share * self.gradient

    def bounded(self, vector: Tensor) -> Tensor:
        """(p,) Qx, as far as the bounds on λ allow."""
        share = max(-self.largest, min(self.largest, self._share(vector)))
        return vector - share * self.compensation

    def _share(self, vector: Tensor) -> float:
        return float(self.gradient @ vector) / float(self.gradient @ self.compensation)


@dataclass(frozen=True)
class StepOperator:
    """H + pull·QᵀMQ, the matrix of the linear system that a target margin step solves.

    Attributes:
        curvature: H of the retained rows.
        margins: M, the marked rows' mean of ∇m∇mᵀ.
        projection: Q.
        pull: Weight of the margins, nats per squared logit.
    """

    curvature: LinearOperator
    margins: LinearOperator
    projection: NoProjection
    pull: float

    @property
    def size(self) -> int:
        """Number p of rows and columns."""
        return self.curvature.size

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors that it is multiplied by."""
        return self.curvature.dtype

    def __matmul__(self, vector: Tensor) -> Tensor:
        """(p,) the matrix times ``vector`` (p,)."""
        pulled = self.projection.transposed(self.margins @ self.projection(vector))
        return self.curvature @ vector + self.pull * pulled
