"""A model as a function of one flat parameter vector, cut off from the model it came from."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from puma.data.base import Examples
from puma.errors import DataError, ModelError, SettingsError, require_type

BATCH_SIZE = 1024
# Activations of a large batch of images leave the cache and page-fault: 3 times slower at 1024.
CONVOLUTIONAL_BATCH_SIZE = 32


class FlatModel:
    """The map θ -> logits and per-example losses, dropout off and batch statistics frozen.

    The vector holds every parameter that requires a gradient, in the order of
    ``model.named_parameters()``. A tied weight appears once, a frozen one not at all. All work is
    done on a private copy, so the model's mode, buffers, gradients and flags cannot change.

    Raises:
        ModelError: The model has no trainable parameters, parameters of several dtypes, or a
            BatchNorm without running statistics, which makes examples depend on each other.
    """

    def __init__(self, model: nn.Module) -> None:
        require_type(model, nn.Module, "the model", ModelError, "pass one, as build_model makes")
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
        for name, module in self._model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
                raise ModelError(
                    f"{type(module).__name__} {name!r} keeps no running statistics, so one "
                    "example's loss depends on its batch; train it with track_running_stats=True"
                )
        self._convolutional = any(
            isinstance(module, nn.modules.conv._ConvNd) for module in self._model.modules()
        )
        self._shapes = {name: parameter.shape for name, parameter in trainable.items()}
        # Every place that holds a trainable tensor, once: functional_call's own search for ties
        # meets a layer that is registered twice two times, and then fails to restore it.
        owner = {id(parameter): name for name, parameter in trainable.items()}
        self._holders = {
            f"{prefix}.{key}" if prefix else key: owner[id(parameter)]
            for prefix, module in self._model.named_modules()
            for key, parameter in module._parameters.items()
            if id(parameter) in owner
        }
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
        """The dtype of the trainable parameters."""
        return self._vector.dtype

    @property
    def device(self) -> torch.device:
        """Where the trainable parameters live."""
        return self._vector.device

    @property
    def batch_size(self) -> int:
        """The batch size that passes over data use when none is asked for."""
        return CONVOLUTIONAL_BATCH_SIZE if self._convolutional else BATCH_SIZE

    @property
    def slices(self) -> dict[str, slice]:
        """Where each trainable parameter lies in the vector, by its name in the model."""
        stops = accumulate(shape.numel() for shape in self._shapes.values())
        return {
            name: slice(stop - shape.numel(), stop)
            for stop, (name, shape) in zip(stops, self._shapes.items(), strict=True)
        }

    def logits(self, vector: Tensor, features: Tensor) -> Tensor:
        """(B, classes) unnormalised log-probabilities at ``vector`` (p,).

        Pure: works under every ``torch.func`` transform.

        Raises:
            ModelError: The output has another shape.
        """
        values = self._parameters(vector)
        tensors = {holder: values[name] for holder, name in self._holders.items()}
        output = functional_call(self._model, tensors, (features,), tie_weights=False)
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
        """Copy the model in eval mode, with its trainable parameters from ``vector`` (p,)."""
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
    flat: FlatModel,
    examples: Examples,
    batch_size: int | None = None,
    *,
    rows: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the (features, labels) of ``examples`` in order; the last batch may be smaller.

    One batch is copied at a time.

    Args:
        flat: The model; it decides the default batch size and the dtype.
        examples: The data.
        batch_size: None takes the model's own, which is smaller for convolutional networks.
        rows: (m,) long indices of the examples that are wanted; None takes all.

    Raises:
        SettingsError: ``batch_size`` is below one.
        DataError: The features have another dtype than the parameters.
    """
    batch_size = flat.batch_size if batch_size is None else batch_size
    if batch_size < 1:
        raise SettingsError(f"batch_size must be >= 1, got {batch_size}")
    if examples.features.dtype != flat.dtype:
        raise DataError(
            f"features are {examples.features.dtype} but the model is {flat.dtype}; "
            "convert one of them"
        )
    if rows is not None:
        return (
            (examples.features[chosen], examples.labels[chosen])
            for chosen in rows.split(batch_size)
            if len(chosen)
        )
    if len(examples) == 0:  # split() would yield one empty batch, which convolutions refuse
        return iter(())
    return zip(examples.features.split(batch_size), examples.labels.split(batch_size), strict=True)


def require_deterministic(flat: FlatModel, examples: Examples) -> None:
    """Raise ModelError when two passes over the same examples give different logits.

    Eval mode silences nn.Dropout, but not ``functional.dropout(x)`` in a ``forward``. The global
    random state is left as it was.
    """
    few = examples.features[:8]
    devices = range(torch.cuda.device_count()) if few.is_cuda else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        first, second = (flat.logits(flat.vector, few) for _ in range(2))
    if not torch.equal(first, second):
        raise ModelError(
            "the model is random in eval mode: two passes over the same examples differ by up to "
            f"{float((first - second).abs().max()):.3g}; give functional.dropout its "
            "training=self.training"
        )


def require_examples(examples: Examples, purpose: str) -> None:
    """Raise DataError when there are none."""
    if len(examples) == 0:
        raise DataError(f"{purpose} needs at least one example, got 0")
