"""A model's predictions for examples, in one batched pass that leaves the model as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from puma.data.base import Examples


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Put ``model`` in eval mode, and restore every submodule's own mode, also on an exception."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes.items():
            module.training = mode


@torch.no_grad()
def logits(model: nn.Module, features: Tensor, *, batch_size: int | None = None) -> Tensor:
    """(n, classes) unnormalised log-probabilities, dropout off, batch statistics frozen.

    Args:
        model: Maps (B, ...) features to (B, classes) logits.
        features: (n, ...) of the examples.
        batch_size: None is 4096 rows of numbers, or 64 images, whose activations would otherwise
            spend more time in memory than in arithmetic.
    """
    batch_size = batch_size or (64 if features.ndim > 2 else 4096)
    with evaluating(model):
        return torch.cat([model(batch) for batch in features.split(batch_size)])


def losses(model: nn.Module, examples: Examples) -> Tensor:
    """(n,) cross-entropy of every example, in nats."""
    return cross_entropy(logits(model, examples.features), examples.labels, reduction="none")


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """(n,) log(p/(1-p)) of the labelled class's probability p: unbounded, near to normal.

    The statistic of LiRA (Carlini et al., "Membership Inference Attacks From First Principles",
    2022, Section IV-C), computed from the ``logits`` (n, classes) so that p = 1 stays finite.
    It is differentiable, and of the logits' dtype.
    """
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return own[:, 0] - others


def margins_of(model: nn.Module, examples: Examples) -> Tensor:
    """(n,) float64 :func:`margins` of every example's label."""
    return margins(logits(model, examples.features).double(), examples.labels)


def accuracy(model: nn.Module, examples: Examples) -> float:
    """Share of ``examples`` whose most probable class is their label."""
    predicted = logits(model, examples.features).argmax(1)
    return (predicted == examples.labels).double().mean().item()
