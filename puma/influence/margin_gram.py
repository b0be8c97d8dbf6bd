"""The Gram matrix of the margins' gradients: the empirical neural tangent kernel of the margin."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import jvp

from puma.data.base import Examples
from puma.influence.flat_model import FlatModel, batches, require_consistent, require_examples
from puma.influence.layer_gradients import LayerSignals, layer_gradients, trainable_layers
from puma.models.predictions import margins

DIRECTIONS = 512  # random ones, for networks with layers that have no rule
TOLERANCE = 1e-3  # relative, of the check in the model's own precision


def margin_gram(model: nn.Module, examples: Examples, *, seed: int = 0) -> Tensor:
    """Compute K_ij = ∇m_i·∇m_j of the examples' margins, by the trainable parameters of ``model``.

    Layer by layer, without a gradient of any single example where the layer is linear: what goes
    into it, a, and what its output's gradient is, b, give (a_i·a_j + 1)(b_i·b_j). Convolutions and
    normalisations contribute the product of their own gradients. A network with trainable
    parameters elsewhere, or used in several places, is projected: K is estimated from the
    derivatives along random directions, without bias and with a relative standard error of about
    √(2/512) on the diagonal.

    Args:
        model: In eval mode here, whatever it is in; not changed.
        examples: The n rows.
        seed: Of the random directions; the global random state is not used.

    Returns:
        (n, n) float64, symmetric and positive semi-definite; squared logits per squared
        parameter unit.

    Raises:
        DataError: There are no examples, or their dtype is not the model's.
        ModelError: The model is random in eval mode.
    """
    flat = FlatModel(model)
    require_examples(examples, "the kernel of the margins")
    require_consistent(flat, examples)
    if not trainable_layers(model)[1]:
        gram = _layer_wise(flat, examples)
        if gram is not None and _agrees(flat, examples, gram):
            return gram
    return _projected(flat, examples, seed)


def _layer_wise(flat: FlatModel, examples: Examples) -> Tensor | None:
    """K; None if a layer is used more than once."""
    signals = LayerSignals(flat.module(flat.vector), "the kernel of the margins")
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for features, labels in batches(flat, examples):
        with torch.no_grad():
            logits = flat.logits(flat.vector, features)
        leaf = logits.requires_grad_()
        with torch.enable_grad():
            (seeds,) = torch.autograd.grad(margins(leaf, labels).sum(), leaf)
        for name, into, out in signals.of(features, seeds):
            seen.setdefault(name, []).append((into, out))
    gram = torch.zeros(len(examples), len(examples), dtype=torch.float64, device=flat.device)
    for name, parts in seen.items():
        layer, wanted = signals.layers[name].double(), signals.homes[name]
        into, out = (torch.cat(side).double() for side in zip(*parts, strict=True))
        if len(into) != len(examples):  # the layer is used more than once
            return None
        if isinstance(layer, nn.Linear) and into.ndim == 2:
            inputs = into @ into.T if "weight" in wanted else torch.zeros_like(gram)
            gram += (inputs + float("bias" in wanted)) * (out @ out.T)
        else:
            for key, rows in layer_gradients(layer, into, out).items():
                if key in wanted:
                    gram += rows.flatten(1) @ rows.flatten(1).T
    return gram


def _agrees(flat: FlatModel, examples: Examples, gram: Tensor) -> bool:
    """Whether sᵀKs is ‖Σ s_i∇m_i‖² by plain differentiation, for random s."""
    generator = torch.Generator().manual_seed(1)
    signs = torch.randn(len(examples), generator=generator).to(flat.vector)
    point = flat.vector.requires_grad_()
    total = torch.zeros_like(flat.vector)
    start = 0
    for features, labels in batches(flat, examples):
        part = signs[start : start + len(labels)]
        with torch.enable_grad():
            value = (part * margins(flat.logits(point, features), labels)).sum()
        total += torch.autograd.grad(value, point)[0]
        start += len(labels)
    expected = float(total.double().square().sum())
    return abs(float(signs.double() @ gram @ signs.double()) - expected) <= TOLERANCE * expected


def _projected(flat: FlatModel, examples: Examples, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.empty(len(examples), DIRECTIONS, dtype=torch.float64, device=flat.device)
    for number in range(DIRECTIONS):
        direction = torch.randn(flat.size, generator=generator).to(flat.vector)
        start = 0
        for features, labels in batches(flat, examples):

            def value(vector: Tensor, x: Tensor = features, y: Tensor = labels) -> Tensor:
                return margins(flat.logits(vector, x), y)

            with torch.no_grad():
                derivative = jvp(value, (flat.vector,), (direction,))[1]
            found[start : start + len(labels), number] = derivative.double()
            start += len(labels)
    return found @ found.T / DIRECTIONS
