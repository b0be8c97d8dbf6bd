"""The second-order model of a step that moves some margins and leaves the criteria alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from puma.influence import LinearOperator, MarginGaussNewton, RowsInverse
from puma.influence.gradient_rows import GradientRows
from puma.models.device import exact

ROWS_BYTES = 2**28  # that the marked rows' gradients may take
ROUND_OFF = 1e-6  # of products in single precision


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

    def weights_of(self, vector: Tensor, n: int) -> Tensor:
        """(n,) the λ of every training row by which ``bounded`` takes back what x does."""
        return vector.new_zeros(n)

    def between(self, rows: GradientRows, inverse: RowsInverse) -> Tensor:
        """(m, m) J·QH⁻¹Qᵀ·Jᵀ for rows J (m, p)."""
        return inverse.between(rows)


@dataclass(frozen=True)
class CriteriaProjection(NoProjection):
    """Qx = x − Uᵀ(GUᵀ)⁻¹Gx: combinations of u take back what the step x does, to first order.

    Attributes:
        gradients: G (K, p), ∇C of each criterion.
        compensations: U (K, p), for each the retained rows' part of Eq. 11.
        weights: (K, n) what each row of U counts every training row's gradient with: −λ of
            Eq. 10, and 0 of the marked.
        max_weight: Bound on every |λ|.
    """

    gradients: Tensor
    compensations: Tensor
    weights: Tensor
    max_weight: float

    def __call__(self, vector: Tensor) -> Tensor:
        """(p,) Qx."""
        return vector - self._shares(vector).to(vector) @ self.compensations

    def transposed(self, vector: Tensor) -> Tensor:
        """(p,) Qᵀx."""
        shares = self._inverse.T @ _products(self.compensations, vector) / self._own
        return vector - shares.to(vector) @ self.gradients

    def bounded(self, vector: Tensor) -> Tensor:
        """(p,) Qx, as far as the bounds on λ allow."""
        return vector - self._allowed(vector).to(vector) @ self.compensations

    def weights_of(self, vector: Tensor, n: int) -> Tensor:  # noqa: ARG002
        """(n,) the λ of every training row by which ``bounded`` takes back what x does."""
        return self._allowed(vector).to(self.weights.dtype) @ self.weights

    def between(self, rows: GradientRows, inverse: RowsInverse) -> Tensor:
        """(m, m) J·QH⁻¹Qᵀ·Jᵀ for rows J (m, p).

        With P = Uᵀ(GUᵀ)⁻¹ and h = H⁻¹Gᵀ, QH⁻¹Qᵀ is H⁻¹ − Phᵀ − hPᵀ + P(Gh)Pᵀ.
        """
        preserved = [inverse(gradient) for gradient in self.gradients]
        products = torch.stack([exact(rows @ each) for each in self.compensations], 1)
        taken = products @ self._inverse.to(products) / self._own.to(products)
        crossed = taken @ torch.stack([exact(rows @ each) for each in preserved])
        kernel = inverse.between(rows) - crossed - crossed.T
        for first, solved in zip(taken.T, preserved, strict=True):
            for second, gradient in zip(taken.T, self.gradients, strict=True):
                kernel = kernel + float(gradient @ solved) * torch.outer(first, second)
        return kernel

    @cached_property
    def _matrix(self) -> Tensor:
        """(K, K) GUᵀ."""
        return torch.stack([_products(self.gradients, each) for each in self.compensations], 1)

    @property
    def _own(self) -> Tensor:
        """(K,) its diagonal: what each u does to its own criterion."""
        return self._matrix.diagonal()

    @cached_property
    def _inverse(self) -> Tensor:
        """(K, K) of GUᵀ, its rows divided by ``_own``; of repeated criteria, of least squares."""
        inverse: Tensor = torch.linalg.pinv(self._matrix / self._own[:, None], rtol=ROUND_OFF)
        return inverse

    def _allowed(self, vector: Tensor) -> Tensor:
        """(K,) the shares, as far as the bounds on λ allow."""
        shares = self._shares(vector)
        used = float((shares.to(self.weights.dtype) @ self.weights).abs().max())
        return min(1.0, self.max_weight / used) * shares if used > 0 else shares

    def _shares(self, vector: Tensor) -> Tensor:
        """(K,) of each u, to take back what a step x does."""
        return self._inverse @ (_products(self.gradients, vector) / self._own)


def _products(rows: Tensor, vector: Tensor) -> Tensor:
    """(K,) float64 products of K rows with a vector (p,), on the CPU."""
    return torch.stack([each @ vector for each in rows]).cpu().double()


@dataclass(frozen=True)
class StepOperator:
    """H + pull·QᵀMQ, the matrix of the linear system that a target margin step solves.

    Attributes:
        curvature: H of the retained rows.
        margins: M, the marked rows' mean of ∇m∇mᵀ.
        projection: Q.
        pull: Weight of the margins, nats per squared logit.
        rows: R of pull·QᵀMQ = RᵀR, or None; a product by these takes no pass over the marked rows.
    """

    curvature: LinearOperator
    margins: MarginGaussNewton
    projection: NoProjection
    pull: float
    rows: ProjectedRows | None = None

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
        if self.rows is not None:
            return self.curvature @ vector + self.rows.transposed(self.rows @ vector)
        pulled = self.projection.transposed(self.margins @ self.projection(vector))
        return self.curvature @ vector + self.pull * pulled

    def few_rows(self) -> ProjectedRows:
        """Compute R (m, p) of pull·QᵀMQ = RᵀR. Raises NoRuleError where a layer has no rule."""
        return self.rows or ProjectedRows(self.margins.rows(self.pull), self.projection)

    def with_rows(self) -> StepOperator:
        """Compute R and keep it, unless it needs too much memory. Raises what few_rows raises."""
        if 8 * len(self.margins.examples) * self.size > ROWS_BYTES:
            return self
        return replace(self, rows=self.few_rows())


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
