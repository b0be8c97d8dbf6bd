"""The second-order model of a step that moves some margins and leaves the criterion alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.influence import LinearOperator


class Free:
    """Q = I: no re-weighting, every step is its own."""

    def __call__(self, vector: Tensor) -> Tensor:
        """(p,) Qx."""
        return vector

    def transposed(self, vector: Tensor) -> Tensor:
        """(p,) Qᵀx."""
        return vector

    def bounded(self, vector: Tensor) -> Tensor:
        """(p,) Qx as far as the bounds on λ allow."""
        return vector


@dataclass(frozen=True)
class Preserving(Free):
    """Qx = x − u·(∇C·x)/(∇C·u): u takes back what x does to C, to first order.

    gradient: ∇C (p,). made_up: u (p,), the retained rows' part of Eq. 11, of which ∇C·u must
    not be 0. largest: the multiple of u at which a λ meets its bound.
    """

    gradient: Tensor
    made_up: Tensor
    largest: float

    def __call__(self, vector: Tensor) -> Tensor:
        return vector - self._share(vector) * self.made_up

    def transposed(self, vector: Tensor) -> Tensor:
        share = float(self.made_up @ vector) / float(self.gradient @ self.made_up)
        return vector - share * self.gradient

    def bounded(self, vector: Tensor) -> Tensor:
        share = max(-self.largest, min(self.largest, self._share(vector)))
        return vector - share * self.made_up

    def _share(self, vector: Tensor) -> float:
        return float(self.gradient @ vector) / float(self.gradient @ self.made_up)


@dataclass(frozen=True)
class Joint:
    """H + pull·QᵀMQ: H ``curvature``, M that of the marked rows' ``margins``, Q ``kept``."""

    curvature: LinearOperator
    margins: LinearOperator
    kept: Free
    pull: float

    @property
    def size(self) -> int:
        return self.curvature.size

    @property
    def dtype(self) -> torch.dtype:
        return self.curvature.dtype

    def __matmul__(self, vector: Tensor) -> Tensor:
        """(p,) the matrix times ``vector`` (p,)."""
        pulled = self.kept.transposed(self.margins @ self.kept(vector))
        return self.curvature @ vector + self.pull * pulled
