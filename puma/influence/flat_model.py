"""A model as a function of one flat parameter vector, cut off from the model it came from."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import functional_call, jvp

from puma.data.base import Examples
from puma.data.task import Task
from puma.errors import DataError, ModelError, SettingsError, require_type
from puma.influence.derivative_support import (
    differentiable_kernels,
    require_finite,
    require_supported,
)
from puma.models.device import require_one_device
from puma.models.layer_names import entered_layers
from puma.models.tasks import Likelihood, likelihood_of, losses

BATCH_SIZE = 4096  # below it, small networks wait for Python more than they compute
# Activations of a large batch of images leave the cache and page-fault: 3 times slower at 1024.
CONVOLUTIONAL_BATCH_SIZE = 32
ALL = slice(None)
FEW = 8  # examples that a model is tried on


class FlatModel:
    """The map θ -> outputs and per-example losses, dropout off and batch statistics frozen.

    The vector holds every parameter that requires a gradient, in the order of
    ``model.named_parameters()``. A tied weight appears once, a frozen one not at all. All work is
    done on a private copy, so the model's mode, buffers, gradients and flags cannot change.

    Attributes:
        layer_wise: Whether the layers' rules were seen to give its per-example gradients.

    Raises:
        ModelError: The model has no trainable parameters, parameters of several dtypes or that
            are not finite, or a layer that cannot be differentiated as influence needs.
    """

    def __init__(self, model: nn.Module) -> None:
        require_type(model, nn.Module, "the model", ModelError, "pass one, as build_model makes")
        require_supported(model)
        require_finite(model)
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
        others = {*self._model.parameters(), *self._model.buffers()} - {*trainable.values()}
        kinds = {(parameter.dtype, parameter.device) for parameter in trainable.values()}
        kinds |= {(next(iter(kinds))[0], other.device) for other in others}
        if len(kinds) > 1:
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ModelError(
                f"trainable parameters must share one dtype, and all one device, got {found}; "
                "convert the model first"
            )
        self._classes: int | None = None
        self._consistent = self.layer_wise = False
        self._recurrent = any(isinstance(module, nn.RNNBase) for module in self._model.modules())
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
    def network(self) -> nn.Module:
        """The private copy, in eval mode and at the parameters of the original; to be read only."""
        return self._model

    @property
    def vector(self) -> Tensor:
        """(p,) the parameters as they were when this object was built; a new tensor each time."""
        return self._vector.clone()

    def at(self, vector: Tensor) -> FlatModel:
        """The same model at other parameters (p,); what was checked of the model still holds."""
        other = copy.copy(self)
        other._vector = vector.detach().to(self._vector).clone()
        return other

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
        """(B, K) outputs at ``vector`` (p,): the logits of K classes, or what else the task has.

        Pure: works under every ``torch.func`` transform.

        Raises:
            ModelError: The output has another shape.
        """
        values = self._parameters(vector)
        tensors = {holder: values[name] for holder, name in self._holders.items()}
        with differentiable_kernels(recurrent=self._recurrent):
            output = functional_call(self._model, tensors, (features,), tie_weights=False)
        if not isinstance(output, Tensor) or output.ndim != 2:
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ModelError(
                f"the model must return logits of shape (batch, classes), got {got}; "
                "wrap it so that it does"
            )
        return output

    def losses(self, vector: Tensor, features: Tensor, labels: Tensor, task: Task) -> Tensor:
        """(B,) the task's loss of each example at ``vector`` (p,), with class weights, in nats."""
        return losses(task, self.logits(vector, features), labels)

    @torch.no_grad()
    def classes(self, features: Tensor) -> int:
        """Count the outputs for an example, by one pass over the first of ``features``."""
        if self._classes is None:
            devices = range(torch.cuda.device_count()) if features.is_cuda else []
            with torch.random.fork_rng(devices=devices):
                self._classes = self.logits(self._vector, features[:1]).shape[1]
        return self._classes

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
    part: slice = ALL,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the (features, labels) of ``examples`` in order; the last batch may be smaller.

    One batch is copied at a time.

    Args:
        flat: The model; it decides the default batch size and the dtype.
        examples: The data.
        batch_size: None takes the model's own, which is smaller for convolutional networks.
        rows: (m,) long indices of the examples that are wanted; None takes all.
        part: Which examples, or which of ``rows``; see :func:`puma.influence.sharding.share`.

    Raises:
        SettingsError: ``batch_size`` is below one.
        DataError: The features have another dtype than the parameters, or a label has no output.
    """
    batch_size = flat.batch_size if batch_size is None else batch_size
    if batch_size < 1:
        raise SettingsError(f"batch_size must be >= 1, got {batch_size}")
    if examples.features.dtype != flat.dtype:
        raise DataError(
            f"features are {examples.features.dtype} but the model is {flat.dtype}; "
            "convert one of them"
        )
    require_one_device([flat.vector], examples.features)
    labels = examples.labels if rows is None else examples.labels[rows]
    if len(labels):
        likelihood, count = likelihood_of(examples.task), flat.classes(examples.features)
        if not likelihood.fits(flat.vector.new_empty(1, count), labels):
            raise DataError(
                f"the model has {count} {'output' if count == 1 else 'outputs'} per example, and "
                f"these labels{_up_to(labels, likelihood)} need {likelihood.wanted}"
            )
    if rows is not None:
        return (
            (examples.features[chosen], examples.labels[chosen])
            for chosen in rows[part].split(batch_size)
            if len(chosen)
        )
    features, labels = examples.features[part], examples.labels[part]
    if len(labels) == 0:  # split() would yield one empty batch, which convolutions refuse
        return iter(())
    return zip(features.split(batch_size), labels.split(batch_size), strict=True)


def pulled_back(
    output: Tensor,
    inputs: Tensor | Sequence[Tensor],
    dual: Tensor,
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor, ...]:
    """Compute Jᵀ dual, with J the Jacobian of ``output`` by each of ``inputs``.

    As torch.autograd.grad, which imports PyTorch's symbolic shapes, a third of a second, where it
    is given ``dual`` itself; torch.func.vjp imports its compiler, two seconds.

    Args:
        output: Computed from ``inputs`` while gradients were recorded.
        inputs: One tensor or several.
        dual: As many numbers as ``output`` has.
        retain_graph: These three are torch.autograd.grad's.
        create_graph: The result can be differentiated in turn.
        allow_unused: None for an input that ``output`` does not depend on.
    """
    with torch.enable_grad():
        product = output.flatten().dot(dual.flatten())
    return torch.autograd.grad(
        product,
        inputs,
        retain_graph=retain_graph,
        create_graph=create_graph,
        allow_unused=allow_unused,
    )


def _up_to(labels: Tensor, likelihood: Likelihood) -> str:
    return f", up to {int(labels.max())}," if likelihood.has_classes else ""


def require_consistent(flat: FlatModel, examples: Examples) -> None:
    """Raise ModelError unless logits and derivatives of the first examples can be relied upon.

    The logits must be finite, the same in two passes (eval mode silences nn.Dropout, but not
    ``functional.dropout(x)`` in a ``forward``), and the same for an example alone as in a batch.
    Forward and reverse mode must give the same derivatives. The global random state is left as
    it was. A second call with the same ``flat`` does nothing.
    """
    if flat._consistent:
        return
    few = examples.features[:FEW]
    devices = range(torch.cuda.device_count()) if few.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        with torch.no_grad():
            first, second = (flat.logits(flat.vector, few) for _ in range(2))
            if not first.isfinite().all():
                raise ModelError(
                    f"the logits of {int((~first.isfinite()).any(1).sum())} of {len(few)} examples "
                    "are NaN or infinite, though the weights are finite; check the model's buffers "
                    "and the features"
                )
            if not torch.equal(first, second):
                raise ModelError(
                    "the model is random in eval mode: two passes over the same examples differ "
                    f"by up to {float((first - second).abs().max()):.3g}; give functional.dropout "
                    "its training=self.training"
                )
            alone = [flat.logits(flat.vector, row) for row in (few[:1], few[-1:])]
        ends = (first[:1], first[-1:])
        if any(
            one.shape != batched.shape or _apart(one, batched)
            for one, batched in zip(alone, ends, strict=True)
        ):
            raise ModelError(
                "an example's logits depend on the other examples of its batch; make the first "
                "dimension the example in every layer (batch_first=True for recurrent layers and "
                "attention), and take no statistics over the batch"
            )
        _require_equal_modes(flat, few)
    flat._consistent = True


def _require_equal_modes(flat: FlatModel, features: Tensor) -> None:
    """Jv by forward mode, by reverse mode twice, and u·Jv = v·Jᵀu for a fixed v and u."""
    with entered_layers(flat.network) as entered:
        _compare_modes(flat, features, entered)


def _compare_modes(flat: FlatModel, features: Tensor, entered: list[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    along = torch.randn(flat.size, generator=generator).to(flat.vector)
    try:
        with torch.no_grad():
            forward = jvp(lambda point: flat.logits(point, features), (flat.vector,), (along,))[1]
        with torch.enable_grad():
            point = flat.vector.requires_grad_()
            output = flat.logits(point, features)
            if not output.requires_grad:  # nothing that trains takes part in the output
                return
            dual = torch.randn(output.shape, generator=generator).to(output).requires_grad_()
            (pulled,) = pulled_back(output, point, dual, create_graph=True)
            (twice,) = pulled_back(pulled, dual, along)
        # As torch.func has it, which gradient checkpointing does not bear.
        with disable_saved_tensors_hooks("gradient checkpointing"), torch.enable_grad():
            flat.logits(point, features)
    except (RuntimeError, NotImplementedError) as error:
        where = entered[-1] if entered else "this model"
        raise ModelError(
            f"PyTorch cannot differentiate {where} forwards and twice, as influence needs "
            f"({str(error).splitlines()[0][:200]}); replace the operation that this names, and "
            "take out gradient checkpointing; or remove by another method, such as retrain"
        ) from error
    if _apart(forward, twice):
        raise ModelError(
            "forward and reverse mode give different derivatives of the logits by "
            f"{float((forward - twice).abs().max()):.3g}; take detach(), custom gradients and "
            "torch.jit out of the model's forward"
        )


def _apart(first: Tensor, second: Tensor) -> bool:
    """Whether they differ by more than round-off."""
    scale = float(second.abs().max()) if second.numel() else 0.0
    return bool((first - second).abs().max() > 10 * torch.finfo(first.dtype).eps ** 0.5 * scale)


def require_examples(examples: Examples, purpose: str) -> None:
    """Raise DataError when there are none."""
    if len(examples) == 0:
        raise DataError(f"{purpose} needs at least one example, got 0")
