"""Where the marked rows would be in a model that never saw them: where forgetting should stop.

Rows that no model was trained on are no measure of it when their look-alikes were trained on,
and zero is none either: a retrained model often finds a whole removed group HARDER than unseen
rows. The margins are therefore estimated, row by row, by small models of the retained rows alone.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from puma.data.base import Examples
from puma.errors import SolverError
from puma.models.predictions import margins_of
from puma.models.tasks import likelihood_of
from puma.models.training import train
from puma.settings import TrainingSettings


def target_margins(
    predictor: nn.Module,
    initial: nn.Module,
    retain_set: Examples,
    forget_set: Examples,
    training: TrainingSettings,
    *,
    models: int,
    fraction: float,
    epochs: int,
    seed: int,
    progress: bool = True,
) -> Tensor:
    """Estimate the margins of the ``forget_set``, were ``predictor`` trained without it.

    They are the mean over reference models. These were trained less than ``predictor`` and are
    less sure of everything, so each one's margins are scaled by the ratio of the two models'
    median absolute margins of the ``retain_set``. The errors of a regression are not scaled: what
    a model has not seen it does not predict better for longer training. Together they cost about
    models·fraction·epochs/training.epochs of one retraining.

    Args:
        predictor: The model that has seen all rows.
        initial: Where each reference model starts.
        retain_set: The rows that stay.
        forget_set: The m rows whose margins are wanted.
        training: The optimiser's settings.
        models: Number of reference models.
        fraction: Share of the ``retain_set`` that each is trained on, drawn with ``seed``.
        epochs: Of each of them.
        seed: Of the draws and the trainings.
        progress: Whether to show progress bars.

    Returns:
        (m,) float64 margins.

    Raises:
        SolverError: A reference model gives most retained rows margins of 0: there is no scale.
    """
    generator = torch.Generator().manual_seed(seed)
    settings = training.model_copy(update={"epochs": epochs})
    scaled = likelihood_of(retain_set.task).has_classes
    usual = margins_of(predictor, retain_set).abs().median()
    total = torch.zeros(len(forget_set), dtype=torch.float64)
    for number in range(models):
        rows = torch.randperm(len(retain_set), generator=generator)
        rows = rows[: max(1, round(fraction * len(retain_set)))]
        model = copy.deepcopy(initial)
        train(
            model,
            retain_set.subset(rows),
            settings,
            seed=int(torch.randint(2**31, (), generator=generator)),
            label=f"reference {number + 1}/{models}",
            progress=progress,
        )
        scale = margins_of(model, retain_set).abs().median() if scaled else usual
        if scale == 0:
            raise SolverError(
                "a reference model gives most retained rows a margin of 0, so that its margins "
                "have no scale; raise puma.reference_epochs"
            )
        total += margins_of(model, forget_set) * usual / scale
    return total / models
