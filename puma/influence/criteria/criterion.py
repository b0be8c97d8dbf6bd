"""What every criterion is: the performance C of Eq. 2 as a value and a gradient."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from puma.influence.flat_model import FlatModel


class Criterion(Protocol):
    """A differentiable function of the parameters; lower is better."""

    def value(self, flat: FlatModel, vector: Tensor) -> float:
        """C at ``vector`` (p,)."""
        ...

    def gradient(self, flat: FlatModel) -> Tensor:
        """(p,) ∇C at ``flat.vector``."""
        ...
