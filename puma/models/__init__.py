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
from puma.settings import ModelSettings, TaskName

Builder = Callable[[tuple[int, ...], int, ModelSettings], nn.Module]


def _densenet(shape: tuple[int, ...], classes: int, settings: ModelSettings) -> nn.Module:
    from puma.models.densenet import densenet  # torchvision takes seconds to import

    return densenet(shape, classes, settings)


# A new architecture is one file here and one row of this table, from the shape of one example,
# the number of outputs and the settings to a model. It ignores the settings that it does not
# have; sizes of its own are fields of ModelSettings in puma/settings/models.py.
MODELS: dict[str, Builder] = {
    "linear": lambda shape, classes, _: fully_connected(shape, classes, hidden=()),
    "mlp": lambda shape, classes, settings: fully_connected(shape, classes, settings.hidden),
    "densenet": _densenet,
}


def new_model(
    settings: ModelSettings,
    shape: Sequence[int],
    outputs: int,
    *,
    seed: int,
    task: TaskName = "classification",
) -> nn.Module:
    """Build a freshly initialised model; the same seed gives the same weights.

    The global random state is left as it was. With ``settings.members`` it is an
    :class:`Ensemble` of that many, all alike. A ``settings.name`` with a colon imports and runs
    the user's own code: see :func:`puma.models.custom.custom_model`.

    Args:
        settings: The name of the architecture and its sizes.
        shape: Of one example, without the batch.
        outputs: How many: one per class, or one for two classes or a regression.
        seed: Of the initial weights.
        task: What an ensemble's votes are about; a single model is the same for all.

    Raises:
        ModelError: The name is unknown, or the model does not fit ``shape``.
    """
    build = _builder(settings.name)
    require_seed(seed, ModelError)
    if not shape or min(shape) < 1 or outputs < 1:
        raise ModelError(
            f"a model needs examples of at least one number and one class, got shape "
            f"{tuple(shape)} and {outputs} classes"
        )
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        model = build(tuple(shape), outputs, settings)
    if settings.members is None:
        return model
    members = [copy.deepcopy(model) for _ in range(settings.members)]
    return Ensemble(members, vote=settings.vote, task=task)


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
    """Build a :func:`new_model` for the examples and the task of ``dataset``.

    Raises:
        ModelError: As :func:`new_model`; or it is of the user's own, and does not map rows of
            ``dataset`` to outputs (see :func:`puma.models.custom.require_contract`).
    """
    features, task = dataset.train.features, dataset.task
    model = new_model(settings, features.shape[1:], task.outputs, seed=seed, task=task.name)
    if ":" in settings.name:
        require_contract(settings.name, model, features, task.outputs)
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
