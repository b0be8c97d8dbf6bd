"""Models by name. A new architecture is one file and one row of this table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from puma.data.base import Dataset
from puma.errors import ModelError
from puma.models.fully_connected import mlp
from puma.models.weights import load_weights, save_weights, weights_digest
from puma.settings import ModelSettings

Builder = Callable[[tuple[int, ...], int, ModelSettings], nn.Module]

# From the shape of one example, the number of classes and the settings to a model. Settings
# that an architecture does not have are ignored by it.
MODELS: dict[str, Builder] = {
    "mlp": lambda shape, classes, settings: mlp(math.prod(shape), classes, settings.hidden),
}


def new_model(
    settings: ModelSettings, shape: Sequence[int], classes: int, *, seed: int
) -> nn.Module:
    """A freshly initialised model; the same seed gives the same weights.

    ``shape`` is that of one example, without the batch. The global random state is left as it
    was. Raises ModelError for an unknown name.
    """
    try:
        build = MODELS[settings.name]
    except KeyError:
        raise ModelError(
            f"unknown model {settings.name!r}; choose one of {', '.join(sorted(MODELS))}"
        ) from None
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        return build(tuple(shape), classes, settings)


def build_model(settings: ModelSettings, dataset: Dataset, *, seed: int) -> nn.Module:
    """:func:`new_model` for the examples and classes of ``dataset``."""
    return new_model(settings, dataset.train.features.shape[1:], len(dataset.classes), seed=seed)


__all__ = [
    "MODELS",
    "build_model",
    "load_weights",
    "mlp",
    "new_model",
    "save_weights",
    "weights_digest",
]
