"""Curvature as linear operators: a solver sees one matrix, the batches stay in here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.func import jvp, vjp

from puma.data.base import Examples
from puma.errors import SettingsError, SolverError
from puma.influence.flat import BATCH_SIZE, FlatModel, batches, require_examples

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


class GaussNewton:
    """Generalised Gauss-Newton matrix of the mean cross-entropy at ``flat.vector``.

    G = (1/n) Σ_i J_iᵀ (diag(p_i) − p_i p_iᵀ) J_i, with J_i the Jacobian of the logits and p_i
    the predicted probabilities. It stands for the Hessian of Eq. 9: it is positive
    semi-definite, equal to it for a model that is linear in θ, and free of the negative
    curvature that a ReLU network's Hessian has.

    ``cache_bytes``: how much memory may hold linearised batches; each product is then two
    backward passes over stored activations instead of two forward and one backward. What
    exceeds it is recomputed in every product; 0 recomputes all.

    Raises DataError for no examples, SettingsError for a bad batch size or cache.
    """

    def __init__(
        self,
        flat: FlatModel,
        examples: Examples,
        *,
        batch_size: int = BATCH_SIZE,
        cache_bytes: int = 2**28,
    ) -> None:
        require_examples(examples, "the Gauss-Newton matrix")
        if cache_bytes < 0:
            raise SettingsError(f"cache_bytes must be >= 0 (0 keeps nothing), got {cache_bytes}")
        self.size = flat.size
        self.dtype = flat.dtype
        self._n = len(examples)
        parts = [features for features, _ in batches(flat, examples, batch_size)]
        kept = cache_bytes // _linearised_bytes(flat, parts[0]) if cache_bytes else 0
        self._products: list[Product] = [
            _linearised(flat, features) if i < kept else partial(_recomputed, flat, features)
            for i, features in enumerate(parts)
        ]

    def __matmul__(self, vector: Tensor) -> Tensor:
        _require_shape(vector, self.size)
        total = torch.zeros_like(vector)
        for product in self._products:
            total += product(vector)
        return total / self._n


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


def _require_shape(vector: Tensor, size: int) -> None:
    if vector.shape != (size,):
        raise SolverError(
            f"the operator multiplies vectors of shape ({size},), got {tuple(vector.shape)}"
        )
