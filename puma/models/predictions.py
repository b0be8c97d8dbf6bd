"""A model's predictions for examples, in one batched pass that leaves the model as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from puma.data.base import Examples
from puma.errors import DataError, ModelError, require_type


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


@torch.no_grad()
def require_fit(model: nn.Module, examples: Examples) -> None:
    """Raise unless ``model`` gives every class of ``examples`` a finite logit.

    Two rows are tried. The model and the global random state are left as they were.

    Raises:
        DataError: The features have another dtype than the model.
        ModelError: ``model`` is no module, cannot take the rows, or has other outputs.
    """
    require_type(model, nn.Module, "the model", ModelError, "pass one, as build_model makes")
    few = examples.features[:2]
    require_dtype(model, few)
    with evaluating(model), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        output = outputs(model, few)
    top = int(examples.labels.max()) if len(examples) else 0
    require_logits(output, top)
    if not output.isfinite().all():
        raise ModelError(
            "the model's logits are NaN or infinite; its training diverged: train it again with a "
            "lower learning rate"
        )


def require_dtype(model: nn.Module, features: Tensor) -> None:
    """Raise DataError unless the ``features`` are of a dtype of the model's trainable weights."""
    kinds = {each.dtype for each in model.parameters() if each.requires_grad}
    if kinds and features.dtype not in kinds:
        raise DataError(
            f"features are {features.dtype} but the model is "
            f"{', '.join(sorted(map(str, kinds)))}; convert one of them"
        )


def outputs(model: nn.Module, features: Tensor) -> Tensor:
    """Whatever ``model`` makes of (B, ...) ``features``. Raises ModelError where that fails."""
    try:
        found: Tensor = model(features)
    except Exception as error:  # a module may raise anything
        raise ModelError(
            f"the model cannot take rows of shape {tuple(features.shape[1:])} "
            f"({type(error).__name__}); build it for them, as build_model does"
        ) from error
    return found


def require_logits(output: object, top: int) -> None:
    """Raise ModelError unless ``output`` is (B, classes) logits that include class ``top``."""
    if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] <= top:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ModelError(
            f"the model must return logits of shape (batch, classes) for classes 0 to {top}, "
            f"got {got}; give its last layer one output per class"
        )


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
