"""Short trainings without a request: what a retraining would begin to do."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from puma.data.base import Dataset
from puma.models.batched import train_many
from puma.models.predictions import margins_of
from puma.references.pool import Pool
from puma.references.population import Array
from puma.settings import TrainingSettings

EPOCHS = 0.1  # of the training's, in batches twice as large: a twentieth of its steps
COPIES = 4  # from other weights each; they are trained in lockstep


def starts_of(models: Sequence[nn.Module]) -> Array:
    """(copies, p) the initial weights of ``models``, side by side."""
    found: Array = (
        torch.stack([parameters_to_vector(m.parameters()) for m in models]).detach().numpy()
    )
    return found


def short_margins(
    dataset: Dataset,
    initial: nn.Module,
    starts: Array,
    requests: Sequence[NDArray[np.int64]],
    training: TrainingSettings,
    *,
    progress: bool = True,
) -> Array:
    """Train shortly without each of the ``requests``, always from the same starts.

    Args:
        dataset: The data.
        initial: The architecture; it is not changed.
        starts: (copies, p) initial weights.
        requests: Of each the training rows to leave out.
        training: The original's settings.
        progress: Whether to show a bar.

    Returns:
        (requests, N) margins of all rows, in logits, the mean over the starts.
    """
    short = training.model_copy(
        update={
            "epochs": max(1, round(EPOCHS * training.epochs)),
            "batch_size": 2 * training.batch_size,
            "learning_rate": 4 * training.learning_rate,
        }
    )
    kept = [
        torch.from_numpy(np.setdiff1d(np.arange(len(dataset.train)), rows)) for rows in requests
    ]
    models = [_at(initial, start) for _ in requests for start in torch.from_numpy(starts)]
    train_many(
        models,
        dataset.train,
        [each for each in kept for _ in starts],
        short,
        seeds=[seed for _ in requests for seed in range(len(starts))],
        label="short trainings",
        progress=progress,
    )
    rows = dataset.rows
    found = torch.stack([margins_of(model, rows) for model in models])
    mean: Array = found.unflatten(0, (len(requests), len(starts))).mean(1).numpy()
    return mean


def train_short(
    pool: Pool,
    dataset: Dataset,
    initial: nn.Module,
    rows: NDArray[np.int64],
    training: TrainingSettings,
    *,
    progress: bool = True,
) -> None:
    """Give ``pool`` the short trainings of a request where it takes any and has none."""
    key = rows.tobytes()
    if pool.needs_short(rows) and key not in pool.short_margins:
        pool.short_margins[key] = short_margins(
            dataset, initial, pool.starts, [rows], training, progress=progress
        )[0]


def _at(initial: nn.Module, weights: Tensor) -> nn.Module:
    model = copy.deepcopy(initial)
    vector_to_parameters(weights, model.parameters())
    return model
