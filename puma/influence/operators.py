"""Curvature as linear operators: a solver sees one matrix, the batches stay in here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import grad, jvp

from puma.data.base import Examples
from puma.errors import SettingsError, SolverError
from puma.influence.flat_model import FlatModel, batches, require_deterministic, require_examples


class LinearOperator(Protocol):
    """A symmetric p x p matrix, known only by its products."""

    @property
    def size(self) -> int:
        """p"""
        ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __matmul__(self, vector: Tensor) -> Tensor:
        """(p,) the matrix times ``vector`` (p,)."""
        ...


@runtime_checkable
class OverExamples(Protocol):
    """An operator that is a mean over examples.

    A solver that needs more than products (batches, layers) finds here what it is made of.
    """

    flat: FlatModel
    examples: Examples

    def over(self, rows: Tensor) -> LinearOperator:
        """The same mean over the examples at ``rows`` (long indices) only."""
        ...


class Hessian:
    """Hessian ∇²J of the mean cross-entropy J at ``flat.vector``, by exact products (Eq. 9).

    Forward over reverse mode: each product costs about four gradients. It is indefinite for most
    networks, so solve it with damping above minus its lowest eigenvalue, or prefer
    :class:`GaussNewton`. Unit: nats per squared parameter unit.

    Raises DataError for no examples, SettingsError for a bad batch size, ModelError for a model
    that is random in eval mode.
    """

    def __init__(
        self, flat: FlatModel, examples: Examples, *, batch_size: int | None = None
    ) -> None:
        check_operator(flat, examples, batch_size, "the Hessian")
        self.size, self.dtype = flat.size, flat.dtype
        self.flat, self.examples = flat, examples
        self._batch_size = batch_size

    def __matmul__(self, vector: Tensor) -> Tensor:
        require_shape(vector, self.size)
        return self._sum(self.examples, vector) / len(self.examples)

    def over(self, rows: Tensor) -> LinearOperator:
        return Restricted(self.flat, self.examples.subset(rows), self._sum)

    def _sum(self, examples: Examples, vector: Tensor) -> Tensor:
        total = torch.zeros_like(vector)
        for features, labels in batches(self.flat, examples, self._batch_size):

            def loss(point: Tensor, features: Tensor = features, labels: Tensor = labels) -> Tensor:
                return self.flat.losses(point, features, labels).sum()

            with torch.no_grad():
                total += jvp(grad(loss), (self.flat.vector,), (vector,))[1]
        return total


@dataclass(frozen=True)
class Restricted:
    """A mean over some of an operator's examples."""

    flat: FlatModel
    examples: Examples
    sum: Callable[[Examples, Tensor], Tensor]

    @property
    def size(self) -> int:
        return self.flat.size

    @property
    def dtype(self) -> torch.dtype:
        return self.flat.dtype

    def __matmul__(self, vector: Tensor) -> Tensor:
        return self.sum(self.examples, vector) / len(self.examples)


@dataclass(frozen=True)
class Shifted:
    """``operator`` + ``shift``·I: damping, or the curvature of weight decay.

    Raises SettingsError unless ``shift`` is finite and >= 0.
    """

    operator: LinearOperator
    shift: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.shift) and self.shift >= 0):
            raise SettingsError(f"damping must be finite and >= 0, got {self.shift}")

    @property
    def size(self) -> int:
        return self.operator.size

    @property
    def dtype(self) -> torch.dtype:
        return self.operator.dtype

    def __matmul__(self, vector: Tensor) -> Tensor:
        return self.operator @ vector + self.shift * vector


def unshifted(operator: LinearOperator) -> tuple[LinearOperator, float]:
    """(what ``operator`` shifts, by how much in all); the operator itself and 0 if it does not."""
    shift = 0.0
    while isinstance(operator, Shifted):
        shift += operator.shift
        operator = operator.operator
    return operator, shift


def device_of(operator: LinearOperator) -> torch.device:
    """Where vectors for ``operator`` live; the CPU unless it is made of a model."""
    flat = getattr(unshifted(operator)[0], "flat", None)
    return flat.device if isinstance(flat, FlatModel) else torch.device("cpu")


def check_operator(
    flat: FlatModel, examples: Examples, batch_size: int | None, purpose: str
) -> None:
    require_examples(examples, purpose)
    batches(flat, examples, batch_size)
    require_deterministic(flat, examples)


def require_shape(vector: Tensor, size: int) -> None:
    if vector.shape != (size,):
        raise SolverError(
            f"the operator multiplies vectors of shape ({size},), got {tuple(vector.shape)}"
        )
