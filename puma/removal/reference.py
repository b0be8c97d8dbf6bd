"""Where rows stand in a model that never saw them: the level at which forgetting should stop.

Rows that no model was trained on are no measure of it when their look-alikes were trained on,
and zero is none either: a retrained model often finds a whole removed group HARDER than unseen
rows. The level is therefore estimated by small models of the retained rows alone. They have
another scale of losses than the full model, so what is compared are ranks among unseen rows.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from puma import predictions
from puma.data.base import Examples
from puma.settings import TrainingSettings
from puma.training import train


def loss_ranks(model: nn.Module, examples: Examples, unseen: Examples) -> Tensor:
    """(n,) share of the ``unseen`` losses below each example's loss, ties counted half.

    0: easier than every unseen row, as a memorised one is; 1: harder than all of them. One
    minus the mean is the AUC of the loss attack on ``examples`` against ``unseen``.
    """
    own = predictions.losses(model, examples).double()
    others = predictions.losses(model, unseen).double().sort().values
    below = torch.searchsorted(others, own) + torch.searchsorted(others, own, right=True)
    return below.double() / (2 * len(others))


def reference_ranks(
    initial: nn.Module,
    retained: Examples,
    marked: Examples,
    unseen: Examples,
    training: TrainingSettings,
    *,
    models: int,
    fraction: float,
    epochs: int,
    seed: int,
    progress: bool = True,
) -> Tensor:
    """(m,) expected :func:`loss_ranks` of the ``marked`` rows in a model that never saw them.

    The mean over ``models`` reference models, each trained from ``initial`` for ``epochs`` on
    a seeded random ``fraction`` of the ``retained`` rows. Together they cost about
    models·fraction·epochs/training.epochs of one retraining.
    """
    generator = torch.Generator().manual_seed(seed)
    settings = training.model_copy(update={"epochs": epochs})
    total = torch.zeros(len(marked), dtype=torch.float64)
    for number in range(models):
        rows = torch.randperm(len(retained), generator=generator)
        rows = rows[: max(1, round(fraction * len(retained)))]
        model = copy.deepcopy(initial)
        train(
            model,
            retained.subset(rows),
            settings,
            seed=int(torch.randint(2**31, (), generator=generator)),
            label=f"reference {number + 1}/{models}",
            progress=progress,
        )
        total += loss_ranks(model, marked, unseen)
    return total / models
