"""A model as a function of one flat parameter vector, cut off from the model it came from."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from puma.data.base import Examples
from puma.errors import DataError, ModelError, SettingsError

BATCH_SIZE = 1024


class FlatModel:
    """θ -> logits and per-example losses, dropout off and batch statistics frozen.

    The vector holds every parameter that requires a gradient, in the order of
    ``model.named_parameters()``; a tied weight appears once, a frozen one not at all. All work
    is done on a private copy, so the model's mode, buffers, gradients and flags cannot change.

    Raises ModelError for a model without trainable parameters, or with several dtypes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = copy.deepcopy(model).eval()
        trainable = {
            name: parameter
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        }
        if not trainable:
            raise ModelError(
                "the model has no parameter with requires_grad=True; unfreeze those to be edited"
            )
        kinds = {(parameter.dtype, parameter.device) for parameter in trainable.values()}
        if len(kinds) > 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ModelError(
                f"trainable parameters must share one dtype and device, got {found}; "
                "convert the model first"
            )
        self._shapes = {name: parameter.shape for name, parameter in trainable.items()}
        self._vector = torch.cat([parameter.detach().flatten() for parameter in trainable.values()])

    @property
    def vector(self) -> Tensor:
        """(p,) the parameters as they were when this object was built; a new tensor each time."""
        return self._vector.clone()

    @property
    def size(self) -> int:
        """p, the number of trainable parameters."""
        return self._vector.numel()

    @property
    def dtype(self) -> torch.dtype:
        return self._vector.dtype

    def logits(self, vector: Tensor, features: Tensor) -> Tensor:
        """(B, classes) unnormalised log-probabilities at ``vector`` (p,).

        Pure: works under every ``torch.func`` transform. Raises ModelError for another shape.
        """
        output = functional_call(self._model, self._parameters(vector), (features,))
        if not isinstance(output, Tensor) or output.ndim != 2:
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ModelError(
                f"the model must return logits of shape (batch, classes), got {got}; "
                "wrap it so that it does"
            )
        return output

    def losses(self, vector: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        """(B,) cross-entropy of each example at ``vector`` (p,), in nats."""
        return cross_entropy(self.logits(vector, features), labels, reduction="none")

    def module(self, vector: Tensor) -> nn.Module:
        """A new module in eval mode: the original with its trainable parameters from ``vector``."""
        edited = copy.deepcopy(self._model)
        parameters = dict(edited.named_parameters())
        with torch.no_grad():
            for name, value in self._parameters(vector).items():
                parameters[name].copy_(value)
        return edited

    def _parameters(self, vector: Tensor) -> dict[str, Tensor]:
        if vector.shape != (self.size,):
            raise ModelError(
                f"expected a parameter vector of shape ({self.size},), got {tuple(vector.shape)}"
            )
        pieces = vector.split([shape.numel() for shape in self._shapes.values()])
        return {
            name: piece.view(shape)
            for piece, (name, shape) in zip(pieces, self._shapes.items(), strict=True)
        }


def batches(
    flat: FlatModel, examples: Examples, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """(features, labels) of ``examples``, in order; the last batch may be smaller.

    Raises SettingsError for a batch size below one, DataError for features of another dtype
    than the parameters.
    """
    if batch_size < 1:
        raise SettingsError(f"batch_size must be >= 1, got {batch_size}")
    if examples.features.dtype != flat.dtype:
        raise DataError(
            f"features are {examples.features.dtype} but the model is {flat.dtype}; "
            "convert one of them"
        )
    if len(examples) == 0:  # split() would yield one empty batch, which convolutions refuse
        return iter(())
    return zip(examples.features.split(batch_size), examples.labels.split(batch_size), strict=True)


def require_examples(examples: Examples, purpose: str) -> None:
    """Raise DataError when there are none."""
    if len(examples) == 0:
        raise DataError(f"{purpose} needs at least one example, got 0")
