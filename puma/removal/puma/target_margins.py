"""Where rows stand in a model that never saw them: the level at which forgetting should stop.

Rows that no model was trained on are no measure of it when their look-alikes were trained on,
and zero is none either: a retrained model often finds a whole removed group HARDER than unseen
rows. The level is therefore estimated, row by row, by small models of the retained rows alone.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from puma.data.base import Examples
from puma.errors import SolverError
from puma.models import predictions
from puma.models.training import train
from puma.settings import TrainingSettings


def margins(model: nn.Module, examples: Examples) -> Tensor:
    """(n,) float64 logit margins of the labels; see :func:`puma.models.predictions.margins`."""
    logits = predictions.logits(model, examples.features).double()
    return predictions.margins(logits, examples.labels)


def ranks_among(values: Tensor, unseen: Tensor) -> Tensor:
    """(n,) share of the ``unseen`` margins above each of ``values``, ties counted half.

    0: surer than of every unseen row, as of a memorised one; 1: less sure than of any. One
    minus the mean is the AUC of the loss attack on those rows against the unseen ones.
    """
    others = unseen.sort().values
    below = torch.searchsorted(others, values) + torch.searchsorted(others, values, right=True)
    return 1 - below.double() / (2 * len(others))


def reference_margins(
    predictor: nn.Module,
    initial: nn.Module,
    retained: Examples,
    marked: Examples,
    training: TrainingSettings,
    *,
    models: int,
    fraction: float,
    epochs: int,
    seed: int,
    progress: bool = True,
) -> Tensor:
    """(m,) expected margins of the ``marked`` rows, were ``predictor`` trained without them.

    The mean over ``models`` reference models, each trained from ``initial`` for ``epochs`` on
    a seeded random ``fraction`` of the ``retained`` rows. Together they cost about
    models·fraction·epochs/training.epochs of one retraining. They were trained less than
    ``predictor`` and are less sure of everything, so each one's margins are scaled by the ratio
    of the two models' median absolute margins of the ``retained`` rows.

    Raises SolverError when a reference model says the same of every class, which leaves no scale.
    """
    generator = torch.Generator().manual_seed(seed)
    settings = training.model_copy(update={"epochs": epochs})
    sureness = margins(predictor, retained).abs().median()
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
        scale = margins(model, retained).abs().median()
        if scale == 0:
            raise SolverError(
                "a reference model cannot tell the classes of most retained rows at all, so that "
                "its margins have no scale; raise puma.reference_epochs"
            )
        total += margins(model, marked) * sureness / scale
    return total / models
