"""Curvature as linear operators: a solver sees one matrix, the batches stay in here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import grad, jvp

from puma.data.base import Examples
from puma.errors import SettingsError, SolverError
from puma.influence.flat_model import (
    ALL,
    FlatModel,
    batches,
    require_consistent,
    require_examples,
)
from puma.influence.sharding import share, summed


class LinearOperator(Protocol):
    """A symmetric p x p matrix, known only by its products."""

    @property
    def size(self) -> int:
        """p, the number of parameters."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its vectors."""
        ...

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
    """Hessian ∇²J of the task's mean loss J at ``flat.vector``, by exact products (Eq. 9).

    Forward over reverse mode: a product costs about four gradients. It is indefinite for most
    networks, so solve it with damping above minus its lowest eigenvalue, or prefer
    :class:`GaussNewton`. Unit: nats per squared parameter unit.

    Products are our own: curvlinops' take 1.2 (CNN of 8,674 parameters) to 1.6 times (MLP of
    6,274) as long, and have no restriction to some of the examples.

    Raises:
        DataError: There are no examples.
        SettingsError: A bad batch size.
        ModelError: The model is random in eval mode.
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
        n = len(self.examples)
        return summed(self._sum(self.examples, vector, share(n))) / n

    def over(self, rows: Tensor) -> LinearOperator:
        """The mean over the examples at ``rows`` only."""
        return Restricted(self.flat, self.examples.subset(rows), self._sum)

    def _sum(self, examples: Examples, vector: Tensor, part: slice = ALL) -> Tensor:
        total = torch.zeros_like(vector)
        for features, labels in batches(self.flat, examples, self._batch_size, part=part):

            def loss(point: Tensor, features: Tensor = features, labels: Tensor = labels) -> Tensor:
                return self.flat.losses(point, features, labels, examples.task).sum()

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
        """p, the number of parameters."""
        return self.flat.size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its vectors."""
        return self.flat.dtype

    def __matmul__(self, vector: Tensor) -> Tensor:
        return self.sum(self.examples, vector) / len(self.examples)


@dataclass(frozen=True)
class Shifted:
    """``operator`` + ``shift``·I: damping, or the curvature of weight decay.

    Raises:
        SettingsError: ``shift`` is negative or not finite.
    """

    operator: LinearOperator
    shift: float

    def __post_init__(self) -> None:
        require_damping(self.shift)

    @property
    def size(self) -> int:
        """p, the number of parameters."""
        return self.operator.size

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its vectors."""
        return self.operator.dtype

    def __matmul__(self, vector: Tensor) -> Tensor:
        return self.operator @ vector + self.shift * vector


def unshifted(operator: LinearOperator) -> tuple[LinearOperator, float]:
    """Split ``operator`` into what it shifts, and by how much in all (0 if it does not shift)."""
    shift = 0.0
    while isinstance(operator, Shifted):
        shift += operator.shift
        operator = operator.operator
    return operator, shift


def device_of(operator: LinearOperator) -> torch.device:
    """Return where vectors for ``operator`` live: the CPU unless it is made of a model."""
    flat = getattr(unshifted(operator)[0], "flat", None)
    return flat.device if isinstance(flat, FlatModel) else torch.device("cpu")


def require_damping(damping: float) -> None:
    """Raise SettingsError unless ``damping`` is finite and >= 0."""
    if not (isinstance(damping, Real) and math.isfinite(damping) and damping >= 0):
        raise SettingsError(f"damping must be finite and >= 0, got {damping!r}")


def check_operator(
    flat: FlatModel, examples: Examples, batch_size: int | None, purpose: str
) -> None:
    """Raise DataError, SettingsError or ModelError where no operator can be made of these."""
    require_examples(examples, purpose)
    batches(flat, examples, batch_size)
    require_consistent(flat, examples)


def require_shape(vector: Tensor, size: int) -> None:
    """Raise SolverError unless ``vector`` is (size,)."""
    if vector.shape != (size,):
        raise SolverError(
            f"the operator multiplies vectors of shape ({size},), got {tuple(vector.shape)}"
        )
