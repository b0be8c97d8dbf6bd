"""The second-order model of a step that moves some margins and leaves the criterion alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.influence import LinearOperator, MarginGaussNewton, RowsInverse
from puma.influence.gradient_rows import GradientRows


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

    def between(self, rows: GradientRows, inverse: RowsInverse) -> Tensor:
        """(m, m) J·QH⁻¹Qᵀ·Jᵀ for rows J (m, p)."""
        return inverse.between(rows)


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
        share = float(self.compensation @ vector) / float(self.gradient @ self.compensation)
        return vector - share * self.gradient

    def bounded(self, vector: Tensor) -> Tensor:
        """(p,) Qx, as far as the bounds on λ allow."""
        share = max(-self.largest, min(self.largest, self._share(vector)))
        return vector - share * self.compensation

    def between(self, rows: GradientRows, inverse: RowsInverse) -> Tensor:
        """(m, m) J·QH⁻¹Qᵀ·Jᵀ for rows J (m, p).

        With h = H⁻¹∇C and s = ∇C·u, QH⁻¹Qᵀ is H⁻¹ − (uhᵀ + huᵀ)/s + (∇C·h)uuᵀ/s².
        """
        preserved = inverse(self.gradient)
        along = float(self.gradient @ self.compensation)
        u = (rows @ self.compensation).double() / along
        crossed = torch.outer(u, (rows @ preserved).double())
        kernel = inverse.between(rows) - crossed - crossed.T
        return kernel + float(self.gradient @ preserved) * torch.outer(u, u)

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
    margins: MarginGaussNewton
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

    def few_rows(self) -> ProjectedRows:
        """Compute R (m, p) of pull·QᵀMQ = RᵀR."""
        return ProjectedRows(self.margins.rows(self.pull), self.projection)


@dataclass(frozen=True)
class ProjectedRows:
    """JQ, with J the marked rows' gradients."""

    rows: GradientRows
    projection: NoProjection

    @property
    def count(self) -> int:
        """The number m of rows."""
        return self.rows.count

    def __matmul__(self, vector: Tensor) -> Tensor:
        """(m,) JQ times ``vector`` (p,)."""
        return self.rows @ self.projection(vector)

    def transposed(self, coefficients: Tensor) -> Tensor:
        """(p,) QᵀJᵀ times ``coefficients`` (m,)."""
        return self.projection.transposed(self.rows.transposed(coefficients))

    def between(self, inverse: RowsInverse) -> Tensor:
        """(m, m) JQ H⁻¹ QᵀJᵀ."""
        return self.projection.between(self.rows, inverse)
