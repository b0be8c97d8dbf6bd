"""Models by name, their training, their weights and their predictions.

Every room that trains or applies a model imports from here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from puma.data.base import Dataset
from puma.errors import ModelError, require_seed
from puma.models.custom import custom_model, require_contract
from puma.models.ensemble import Ensemble
from puma.models.fully_connected import fully_connected, mlp
from puma.models.weights import load_weights, save_weights, state_digest, weights_digest
from puma.settings import ModelSettings

Builder = Callable[[tuple[int, ...], int, ModelSettings], nn.Module]


def _densenet(shape: tuple[int, ...], classes: int, settings: ModelSettings) -> nn.Module:
    from puma.models.densenet import densenet  # torchvision takes seconds to import

    return densenet(shape, classes, settings)


# A new architecture is one file here and one row of this table, from the shape of one example,
# the number of classes and the settings to a model. It ignores the settings that it does not
# have; sizes of its own are fields of ModelSettings in puma/settings.py.
MODELS: dict[str, Builder] = {
    "linear": lambda shape, classes, _: fully_connected(shape, classes, hidden=()),
    "mlp": lambda shape, classes, settings: fully_connected(shape, classes, settings.hidden),
    "densenet": _densenet,
}


def new_model(
    settings: ModelSettings, shape: Sequence[int], classes: int, *, seed: int
) -> nn.Module:
    """Build a freshly initialised model; the same seed gives the same weights.

    The global random state is left as it was. With ``settings.members`` it is an
    :class:`Ensemble` of that many, all alike. A ``settings.name`` with a colon imports and runs
    the user's own code: see :func:`puma.models.custom.custom_model`.

    Args:
        settings: The name of the architecture and its sizes.
        shape: Of one example, without the batch.
        classes: How many.
        seed: Of the initial weights.

    Raises:
        ModelError: The name is unknown, or the model does not fit ``shape``.
    """
    build = _builder(settings.name)
    require_seed(seed, ModelError)
    if not shape or min(shape) < 1 or classes < 1:
        raise ModelError(
            f"a model needs examples of at least one number and one class, got shape "
            f"{tuple(shape)} and {classes} classes"
        )
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        model = build(tuple(shape), classes, settings)
    if settings.members is None:
        return model
    return Ensemble([copy.deepcopy(model) for _ in range(settings.members)], vote=settings.vote)


def _builder(name: str) -> Builder:
    if ":" in name:
        return lambda shape, classes, settings: custom_model(name, shape, classes, settings.kwargs)
    try:
        return MODELS[name]
    except KeyError:
        raise ModelError(
            f"unknown model {name!r}; choose one of {', '.join(sorted(MODELS))}, or name your "
            'own as "package.module:Class"'
        ) from None


def build_model(settings: ModelSettings, dataset: Dataset, *, seed: int) -> nn.Module:
    """Build a :func:`new_model` for the examples and classes of ``dataset``.

    Raises:
        ModelError: As :func:`new_model`; or it is of the user's own, and does not map rows of
            ``dataset`` to logits (see :func:`puma.models.custom.require_contract`).
    """
    features, classes = dataset.train.features, len(dataset.classes)
    model = new_model(settings, features.shape[1:], classes, seed=seed)
    if ":" in settings.name:
        require_contract(settings.name, model, features, classes)
    return model


__all__ = [
    "MODELS",
    "Ensemble",
    "build_model",
    "load_weights",
    "mlp",
    "new_model",
    "save_weights",
    "state_digest",
    "weights_digest",
]
