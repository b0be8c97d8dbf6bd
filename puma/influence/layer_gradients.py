"""Per-example gradients from one backward pass, by the layers' own rules.

A layer's parameter gradient for example i is a product of what went into the layer and of the
gradient of what came out, both for example i only. So one pass that records the two gives the
gradients of a whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, unfold

from puma.errors import ModelError
from puma.influence.flat_model import FlatModel, pulled_back


class NoRuleError(ModelError):
    """The rules of the layers do not give this model's per-example gradients."""


Rule = Callable[[Any, Tensor, Tensor], dict[str, Tensor]]
FEW_CHANNELS = 8  # fewer make products too thin to be taken one place of the kernel at a time


def linear_rule(layer: nn.Linear, into: Tensor, out: Tensor) -> dict[str, Tensor]:  # noqa: ARG001
    """``into`` (B, ..., inputs), ``out`` (B, ..., outputs)."""
    if into.ndim == 2:
        return {"weight": out[:, :, None] * into[:, None, :], "bias": out}
    into, out = into.flatten(1, -2), out.flatten(1, -2)
    return {"weight": out.transpose(1, 2) @ into, "bias": out.sum(1)}


def convolution_rule(layer: nn.Conv2d, into: Tensor, out: Tensor) -> dict[str, Tensor]:
    """``into`` (B, channels, height, width), ``out`` the same of the output."""
    count, channels = len(into), into.shape[1] // layer.groups
    out = out.flatten(2)
    grouped = out.unflatten(1, (layer.groups, -1))
    if layer.kernel_size == (1, 1) or channels < FEW_CHANNELS:
        patches = _patches(layer, into).unflatten(1, (layer.groups, -1))
        return {"weight": grouped @ patches.transpose(2, 3), "bias": out.sum(2)}
    # One place of the kernel after the other: all at once take as many copies of the images as
    # the kernel has places, which leave the cache.
    weight = out.new_empty(count, layer.groups, grouped.shape[2], channels, *layer.kernel_size)
    for row, column, seen in _seen_by_place(layer, into):
        seen = seen.reshape(count, layer.groups, channels, -1)
        weight[..., row, column] = grouped @ seen.transpose(2, 3)
    return {"weight": weight, "bias": out.sum(2)}


def normalisation_rule(
    layer: nn.modules.batchnorm._BatchNorm, into: Tensor, out: Tensor
) -> dict[str, Tensor]:
    """``into`` and ``out`` (B, channels, ...); the running statistics are constants."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    shape = (1, -1) + (1,) * (into.ndim - 2)
    scale = (layer.running_var + layer.eps).rsqrt()
    weight = out * (into - layer.running_mean.view(shape))
    places = tuple(range(2, into.ndim))
    if places:
        weight, out = weight.sum(places), out.sum(places)
    return {"weight": weight * scale, "bias": out}


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear_rule,
    nn.Conv2d: convolution_rule,
    nn.BatchNorm1d: normalisation_rule,
    nn.BatchNorm2d: normalisation_rule,
}


def trainable_layers(
    model: nn.Module, kinds: tuple[type[nn.Module], ...] = tuple(RULES)
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """(layers with trainable parameters of their own by name, those that are not of ``kinds``).

    The second maps a layer's name to its type; a subclass counts as its parent as long as it
    keeps the parent's ``forward`` and parameters.
    """
    known, others = {}, {}
    for name, layer in model.named_modules():
        own = {key for key, p in layer._parameters.items() if p is not None and p.requires_grad}
        if not own:
            continue
        kind = next((kind for kind in kinds if isinstance(layer, kind)), None)
        if kind and type(layer).forward is kind.forward and own <= {"weight", "bias"}:
            known[name] = layer
        else:
            others[name] = type(layer).__name__
    return known, others


def require_layers(
    model: nn.Module,
    solver: str,
    kinds: tuple[type[nn.Module], ...] = tuple(RULES),
) -> dict[str, nn.Module]:
    """The trainable layers by name. Raises NoRuleError that names those of other ``kinds``."""
    layers, others = trainable_layers(model, kinds)
    if others:
        listed = ", ".join(f"{kind} {name!r}" for name, kind in others.items())
        known = ", ".join(kind.__name__ for kind in kinds)
        raise NoRuleError(
            f"{solver} knows the layers {known}, but the trainable parameters of {listed} belong "
            "to others; freeze these or use solver 'cg'"
        )
    return layers


class LayerSignals:
    """What goes into every trainable layer, and the gradient of what comes out, example by example.

    flat: the model, taken at ``flat.vector``. solver: who asks, for errors. Raises NoRuleError
    for a trainable layer without a rule.

    Attributes:
        layers: The trainable layers by name.
        homes: For each layer, the names of its trainable parameters in the model.
    """

    def __init__(self, flat: FlatModel, solver: str) -> None:
        self._flat, model = flat, flat.network
        self.layers = require_layers(model, solver)
        names = {id(p): name for name, p in model.named_parameters()}
        self.homes = {
            name: {
                key: names[id(parameter)]
                for key, parameter in layer._parameters.items()
                if parameter is not None and parameter.requires_grad
            }
            for name, layer in self.layers.items()
        }

    def of(self, features: Tensor, seeds: Tensor) -> list[tuple[str, Tensor, Tensor]]:
        """Return (layer, what went in, J_iᵀ seeds_i by what came out), once per use of a layer.

        Both are (B, ...), as ``features``; ``seeds`` is (B, classes). Raises NoRuleError when
        a layer does not see one entry per example.
        """
        taps: list[Tensor] = []
        found: list[tuple[str, Tensor, Tensor]] = []
        with torch.enable_grad(), self._recording(len(features), taps, found):
            output = self._flat.logits(self._flat.vector, features)
            if taps:  # else nothing that trains takes part in the output
                pulled_back(output, taps, seeds, allow_unused=True)
        return found

    @contextmanager
    def _recording(
        self, count: int, taps: list[Tensor], found: list[tuple[str, Tensor, Tensor]]
    ) -> Iterator[None]:
        def record(name: str, inputs: Any, output: Tensor) -> Tensor:
            (into,) = inputs
            if into.shape[0] != count:
                raise NoRuleError(
                    f"layer {name!r} got {into.shape[0]} entries for a batch of {count} "
                    "examples; per-example rows need one each, so use solver 'cg'"
                )
            into = into.detach()
            if not output.requires_grad:
                # The first layers: something to differentiate by. Not the output itself, which
                # an in-place activation may overwrite.
                taps.append(torch.zeros_like(output, requires_grad=True))
                output = output + taps[-1]

            def keep(gradient: Tensor) -> None:
                found.append((name, into, gradient))

            output.register_hook(keep)
            return output

        handles = [
            layer.register_forward_hook(
                lambda _, inputs, output, name=name: record(name, inputs, output)
            )
            for name, layer in self.layers.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class LayerRows:
    """Per-example gradients of a model's trainable parameters, side by side.

    flat: the model, taken at ``flat.vector``. Raises NoRuleError for a trainable layer without a
    rule.
    """

    def __init__(self, flat: FlatModel) -> None:
        self._signals = LayerSignals(flat, "woodbury")
        # One tensor may be a parameter of several layers: it has one place, and they add up.
        self._slices = flat.slices

    def fill(self, rows: Tensor, features: Tensor, seeds: Tensor) -> None:
        """Write J_iᵀ seeds_i into ``rows`` (B, p), which holds zeros; ``seeds`` is (B, classes).

        Raises ModelError when a layer does not see one entry per example.
        """
        with torch.no_grad():
            for name, into, out in self._signals.of(features, seeds):
                parts = layer_gradients(self._signals.layers[name], into, out)
                for key, parameter in self._signals.homes[name].items():
                    rows[:, self._slices[parameter]] += parts[key].flatten(1)


def require_layer_gradients(
    flat: FlatModel, combined: Callable[[Tensor], Tensor], features: Tensor, seeds: Tensor
) -> None:
    """Compare a random combination of per-example gradients with plain differentiation.

    The layers' rules miss a parameter that is also used elsewhere, and mix examples up in a layer
    whose first dimension is another one.

    Args:
        flat: The model, taken at ``flat.vector``.
        combined: From weights (B,) to (p,), the weighted sum of the rows J_iᵀ seeds_i.
        features: (B, ...) the example of each row.
        seeds: (B, classes) what was pulled back through its logits.

    Raises:
        NoRuleError: They differ.
    """
    generator = torch.Generator().manual_seed(1)
    signs = torch.rand(len(seeds), generator=generator).to(seeds)
    point = flat.vector.requires_grad_()
    with torch.enable_grad():
        total = (signs @ (flat.logits(point, features) * seeds)).sum()
    (expected,) = torch.autograd.grad(total, point)
    wrong = combined(signs) - expected
    if wrong.norm() > torch.finfo(flat.dtype).eps ** 0.5 * 10 * expected.norm():
        name = max(flat.slices.items(), key=lambda item: float(wrong[item[1]].norm()))[0]
        raise NoRuleError(
            f"the per-example gradients of {name!r} are not what its layer gives; it is used "
            "outside of that layer, or the layer's first dimension is not the example: use "
            "solver 'cg'"
        )


def layer_gradients(layer: nn.Module, into: Tensor, out: Tensor) -> dict[str, Tensor]:
    """(B, ...) gradients of the layer's "weight" and "bias", by its rule."""
    return next(rule for kind, rule in RULES.items() if isinstance(layer, kind))(layer, into, out)


def _patches(layer: nn.Conv2d, into: Tensor) -> Tensor:
    """(B, channels·kernel, places) what each output place sees."""
    if layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.padding == (0, 0):
        return into.flatten(2)
    return unfold(_padded(layer, into), layer.kernel_size, layer.dilation, 0, layer.stride)


def _seen_by_place(layer: nn.Conv2d, into: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """For each (row, column) of the kernel (B, channels, height, width), seen by the outputs."""
    padded = _padded(layer, into)
    starts = [
        [number * step for number in range(size)]
        for size, step in zip(layer.kernel_size, layer.dilation, strict=True)
    ]
    height, width = (
        size - places[-1] for size, places in zip(padded.shape[2:], starts, strict=True)
    )
    for row, top in enumerate(starts[0]):
        for column, left in enumerate(starts[1]):
            window = padded[:, :, top : top + height, left : left + width]
            yield row, column, window[:, :, :: layer.stride[0], :: layer.stride[1]]


def _padded(layer: nn.Conv2d, into: Tensor) -> Tensor:
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return pad(into, layer._reversed_padding_repeated_twice, mode=mode)
