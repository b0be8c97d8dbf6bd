"""A model's predictions for examples, in one batched pass that leaves the model as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from puma.data.base import Examples
from puma.errors import DataError, ModelError, require_type
from puma.models.device import exact, require_one_device
from puma.models.tasks import likelihood_of, require_classes, require_outputs


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
    """(n, K) outputs, dropout off, batch statistics frozen.

    Args:
        model: Maps (B, ...) features to (B, K) outputs: the logits of K classes, the one logit of
            two, or the number of a regression.
        features: (n, ...) of the examples.
        batch_size: None is 4096 rows of numbers, or 64 images, whose activations would otherwise
            spend more time in memory than in arithmetic.
    """
    batch_size = batch_size or (64 if features.ndim > 2 else 4096)
    with evaluating(model):
        return torch.cat([model(batch) for batch in features.split(batch_size)])


def outputs_of(model: nn.Module, examples: Examples) -> Tensor:
    """:func:`logits` of every example, which fit its label."""
    found = logits(model, examples.features)
    require_outputs(found, examples.task, examples.labels)
    return found


@torch.no_grad()
def require_fit(model: nn.Module, examples: Examples) -> None:
    """Raise unless ``model`` gives finite outputs that the labels of ``examples`` need.

    Two rows are tried. The model and the global random state are left as they were.

    Raises:
        DataError: The features have another dtype than the model.
        ModelError: ``model`` is no module, cannot take the rows, or has other outputs.
    """
    require_type(model, nn.Module, "the model", ModelError, "pass one, as build_model makes")
    few = examples.features[:2]
    require_dtype(model, few)
    require_device(model, few)
    with evaluating(model), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        output = outputs(model, few)
    require_outputs(output, examples.task, examples.labels)
    if not output.isfinite().all():
        raise ModelError(
            "the model's outputs are NaN or infinite; its training diverged: train it again with a "
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


def require_device(model: nn.Module, features: Tensor) -> None:
    """Raise DataError unless all weights and buffers of ``model`` are where the features are."""
    require_one_device([*model.parameters(), *model.buffers()], features)


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


def losses(model: nn.Module, examples: Examples) -> Tensor:
    """(n,) the loss of every example in nats, without class weights."""
    return likelihood_of(examples.task).losses(outputs_of(model, examples), examples.labels)


def margins_of(model: nn.Module, examples: Examples) -> Tensor:
    """(n,) float64 :meth:`puma.models.tasks.Likelihood.margins` of the labels, on the CPU."""
    found = exact(outputs_of(model, examples))
    return likelihood_of(examples.task).margins(found, examples.labels.to(found.device)).cpu()


def predicted(model: nn.Module, examples: Examples) -> Tensor:
    """(n, classes) logits of every class; of a regression the (n, 1) predicted labels."""
    return likelihood_of(examples.task).predictions(outputs_of(model, examples))


def measured(model: nn.Module, examples: Examples) -> dict[str, float]:
    """The task's own metrics of the model, such as accuracy, or R² and mean absolute error."""
    found = predicted(model, examples)
    return likelihood_of(examples.task).measured(found, examples.labels, examples.task)


def test_metrics(model: nn.Module, examples: Examples) -> dict[str, float]:
    """:func:`measured` of the test rows, by the names that versions carry: accuracy; test_r2."""
    likelihood, found = likelihood_of(examples.task), measured(model, examples)
    names = zip(likelihood.metrics, likelihood.test_metrics, strict=True)
    return {name: found[metric] for metric, name in names if metric in found}


def accuracy(model: nn.Module, examples: Examples) -> float:
    """Share of ``examples`` whose most probable class is their label."""
    require_classes(examples, "an accuracy", "measure R² with puma.models.predictions.measured")
    return measured(model, examples)["accuracy"]
