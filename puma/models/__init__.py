"""Models by name. A new architecture is one file and one row of this table."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from puma.data.base import Dataset
from puma.errors import ModelError
from puma.models.custom import custom_model
from puma.models.ensemble import Ensemble
from puma.models.fully_connected import for_shape, mlp
from puma.models.weights import load_weights, save_weights, weights_digest
from puma.settings import ModelSettings

Builder = Callable[[tuple[int, ...], int, ModelSettings], nn.Module]


def _densenet(shape: tuple[int, ...], classes: int, settings: ModelSettings) -> nn.Module:
    from puma.models.densenet import densenet  # torchvision takes seconds to import

    return densenet(
        shape,
        classes,
        blocks=settings.blocks,
        growth=settings.growth,
        bottleneck=settings.bottleneck,
    )


# From the shape of one example, the number of classes and the settings to a model. Settings
# that an architecture does not have are ignored by it.
MODELS: dict[str, Builder] = {
    "linear": lambda shape, classes, _: for_shape(shape, classes, hidden=()),
    "mlp": lambda shape, classes, settings: for_shape(shape, classes, settings.hidden),
    "densenet": _densenet,
}


def new_model(
    settings: ModelSettings, shape: Sequence[int], classes: int, *, seed: int
) -> nn.Module:
    """A freshly initialised model; the same seed gives the same weights.

    ``shape`` is that of one example, without the batch. The global random state is left as it
    was. With ``settings.members`` it is an :class:`Ensemble` of that many, all alike.
    A ``settings.name`` with a colon imports and runs the user's own code: see
    :func:`puma.models.custom.custom_model`.
    Raises ModelError for an unknown name, or a model that does not fit ``shape``.
    """
    build = _builder(settings.name)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        model = build(tuple(shape), classes, settings)
    if settings.members is None:
        return model
    return Ensemble([copy.deepcopy(model) for _ in range(settings.members)], vote=settings.vote)


def _builder(name: str) -> Builder:
    if ":" in name:
        return lambda shape, classes, _: custom_model(name, shape, classes)
    try:
        return MODELS[name]
    except KeyError:
        raise ModelError(
            f"unknown model {name!r}; choose one of {', '.join(sorted(MODELS))}, or name your "
            'own as "package.module:Class"'
        ) from None


def build_model(settings: ModelSettings, dataset: Dataset, *, seed: int) -> nn.Module:
    """:func:`new_model` for the examples and classes of ``dataset``."""
    return new_model(settings, dataset.train.features.shape[1:], len(dataset.classes), seed=seed)


__all__ = [
    "MODELS",
    "Ensemble",
    "build_model",
    "load_weights",
    "mlp",
    "new_model",
    "save_weights",
    "weights_digest",
]
