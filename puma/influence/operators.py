"""Curvature as linear operators: a solver sees one matrix, the batches stay in here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.func import grad, jvp, vjp

from puma.data.base import Examples
from puma.errors import SettingsError, SolverError
from puma.influence.flat import FlatModel, batches, require_deterministic, require_examples

Product = Callable[[Tensor], Tensor]


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
        _check(flat, examples, batch_size, "the Hessian")
        self.size, self.dtype = flat.size, flat.dtype
        self.flat, self.examples = flat, examples
        self._batch_size = batch_size

    def __matmul__(self, vector: Tensor) -> Tensor:
        _require_shape(vector, self.size)
        return self._sum(self.examples, vector) / len(self.examples)

    def over(self, rows: Tensor) -> LinearOperator:
        return _Restricted(self.flat, self.examples.subset(rows), self._sum)

    def _sum(self, examples: Examples, vector: Tensor) -> Tensor:
        total = torch.zeros_like(vector)
        for features, labels in batches(self.flat, examples, self._batch_size):

            def loss(point: Tensor, features: Tensor = features, labels: Tensor = labels) -> Tensor:
                return self.flat.losses(point, features, labels).sum()

            with torch.no_grad():
                total += jvp(grad(loss), (self.flat.vector,), (vector,))[1]
        return total


class GaussNewton:
    """Generalised Gauss-Newton matrix of the mean cross-entropy at ``flat.vector``.

    G = (1/n) Σ_i J_iᵀ (diag(p_i) − p_i p_iᵀ) J_i, with J_i the Jacobian of the logits and p_i
    the predicted probabilities. It stands for the Hessian of Eq. 9: it is positive
    semi-definite, equal to it for a model that is linear in θ, and free of the negative
    curvature that a ReLU network's Hessian has. Unit: nats per squared parameter unit.

    ``cache_bytes``: how much memory may hold linearised batches; each product is then two
    backward passes over stored activations instead of two forward and one backward. What
    exceeds it is recomputed in every product; 0 recomputes all. Filled by the first product.

    Raises DataError for no examples, SettingsError for a bad batch size or cache, ModelError
    for a model that is random in eval mode.
    """

    def __init__(
        self,
        flat: FlatModel,
        examples: Examples,
        *,
        batch_size: int | None = None,
        cache_bytes: int = 2**28,
    ) -> None:
        _check(flat, examples, batch_size, "the Gauss-Newton matrix")
        if cache_bytes < 0:
            raise SettingsError(f"cache_bytes must be >= 0 (0 keeps nothing), got {cache_bytes}")
        self.size, self.dtype = flat.size, flat.dtype
        self.flat, self.examples = flat, examples
        self._batch_size, self._cache_bytes = batch_size, cache_bytes

    def __matmul__(self, vector: Tensor) -> Tensor:
        _require_shape(vector, self.size)
        total = torch.zeros_like(vector)
        for product in self._products:
            total += product(vector)
        return total / len(self.examples)

    def over(self, rows: Tensor) -> LinearOperator:
        return _Restricted(self.flat, self.examples.subset(rows), self._sum)

    @cached_property
    def _products(self) -> list[Product]:
        parts = [features for features, _ in batches(self.flat, self.examples, self._batch_size)]
        kept = 0
        if self._cache_bytes:
            kept = self._cache_bytes // _linearised_bytes(self.flat, parts[0])
        return [
            _linearised(self.flat, part) if i < kept else partial(_recomputed, self.flat, part)
            for i, part in enumerate(parts)
        ]

    def _sum(self, examples: Examples, vector: Tensor) -> Tensor:
        total = torch.zeros_like(vector)
        for features, _ in batches(self.flat, examples, self._batch_size):
            total += _recomputed(self.flat, features, vector)
        return total


@dataclass(frozen=True)
class _Restricted:
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


def _recomputed(flat: FlatModel, features: Tensor, vector: Tensor) -> Tensor:
    """(p,) Σ over the batch of Jᵀ (diag(p) − ppᵀ) J vector, from scratch."""

    def logits(point: Tensor) -> Tensor:
        return flat.logits(point, features)

    with torch.no_grad():
        output, tangent = jvp(logits, (flat.vector,), (vector,))[:2]
        pull = vjp(logits, flat.vector)[1]
        return pull(_output_curvature(output.softmax(1), tangent))[0]


def _linearised(flat: FlatModel, features: Tensor) -> Product:
    """The same product from stored activations.

    Jᵀu is linear in u, so its own transpose is J: differentiating it once more gives forward
    products out of reverse mode. torch.func.linearize would do too, but its tracing costs more
    than a whole solve.
    """
    with torch.enable_grad():
        point = flat.vector.requires_grad_()
        output = flat.logits(point, features)
        dual = torch.zeros_like(output, requires_grad=True)
        (pulled,) = torch.autograd.grad(output, point, dual, create_graph=True)
    probabilities = output.detach().softmax(1)

    def product(vector: Tensor) -> Tensor:
        (tangent,) = torch.autograd.grad(pulled, dual, vector, retain_graph=True)
        curved = _output_curvature(probabilities, tangent)
        return torch.autograd.grad(output, point, curved, retain_graph=True)[0]

    return product


def _linearised_bytes(flat: FlatModel, features: Tensor) -> int:
    """What :func:`_linearised` keeps alive for this batch, counted on a trial run."""
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes  # one tensor may be saved by several operations
        return tensor.detach()

    with saved_tensors_hooks(count, lambda tensor: tensor):
        _linearised(flat, features)
    return max(1, sum(kept.values()))


def _output_curvature(probabilities: Tensor, tangent: Tensor) -> Tensor:
    """(B, classes) (diag(p) − ppᵀ) tangent: the Hessian of cross-entropy in the logits."""
    weighted = probabilities * tangent
    return weighted - probabilities * weighted.sum(1, keepdim=True)


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


def _check(flat: FlatModel, examples: Examples, batch_size: int | None, purpose: str) -> None:
    require_examples(examples, purpose)
    batches(flat, examples, batch_size)
    require_deterministic(flat, examples)


def _require_shape(vector: Tensor, size: int) -> None:
    if vector.shape != (size,):
        raise SolverError(
            f"the operator multiplies vectors of shape ({size},), got {tuple(vector.shape)}"
        )
