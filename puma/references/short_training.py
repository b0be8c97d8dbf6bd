"""Short trainings without a request: what a retraining would begin to do."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

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
COPIES = 4  # from other weights each, of a network that trains in lockstep; else one


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
    wanted: NDArray[np.int64] | None = None,
    progress: bool = True,
) -> Array:
    """Train shortly without each of the ``requests``, always from the same starts.

    A loop of the user's own gets fewer epochs, and its other settings as they are.

    Args:
        dataset: The data.
        initial: The architecture; it is not changed.
        starts: (copies, p) initial weights.
        requests: Of each the training rows to leave out.
        training: The original's settings.
        wanted: (m,) the rows whose margins are needed, training rows first; all N if None.
        progress: Whether to show a bar.

    Returns:
        (requests, m) their margins, in logits, the mean over the starts.
    """
    epochs = EPOCHS * training.epochs
    short = training.model_copy(update={"epochs": max(1, round(epochs))})
    if training.loop is None:
        faster = {
            "batch_size": 2 * training.batch_size,
            "learning_rate": 4 * training.learning_rate,
        }
        short = short.model_copy(update=faster)
    whole = epochs >= 1 or training.loop is not None
    kept = [
        torch.from_numpy(np.setdiff1d(np.arange(len(dataset.train)), rows)) for rows in requests
    ]
    models = [_at(initial, start) for _ in requests for start in torch.from_numpy(starts)]
    own = [each for each in kept for _ in starts]
    # All at once; but a part of an epoch is another number of steps for each request.
    together = len(models) if whole else len(starts)
    for first in range(0, len(models), together):
        chosen = slice(first, first + together)
        train_many(
            models[chosen],
            dataset.train,
            own[chosen],
            short,
            seeds=list(range(len(starts))) * (together // len(starts)),
            steps=None if whole else math.ceil(epochs * len(own[first]) / short.batch_size),
            label="short trainings",
            progress=progress,
        )
    rows = dataset.rows if wanted is None else dataset.rows.subset(torch.from_numpy(wanted))
    found = torch.stack([margins_of(model, rows) for model in models])
    mean: Array = found.unflatten(0, (len(requests), len(starts))).mean(1).numpy()
    return mean


def train_short(
    pool: Pool,
    dataset: Dataset,
    make_initial: Callable[[], nn.Module],
    rows: NDArray[np.int64],
    training: TrainingSettings,
    *,
    progress: bool = True,
) -> None:
    """Give ``pool`` the short trainings of a request where it takes any and has none.

    They predict the request's rows and the test rows. The others are not predicted by them.
    ``make_initial`` builds the architecture where something is trained.
    """
    key = rows.tobytes()
    if pool.needs_short(rows) and key not in pool.short_margins:
        wanted = np.append(rows, np.arange(pool.n_train, pool.short.shape[1]))
        found = np.full(pool.short.shape[1], np.nan)
        found[wanted] = short_margins(
            dataset, make_initial(), pool.starts, [rows], training, wanted=wanted, progress=progress
        )[0]
        pool.short_margins[key] = found


def _at(initial: nn.Module, weights: Tensor) -> nn.Module:
    model = copy.deepcopy(initial)
    # A copy: the parameters become views of what they are set from.
    vector_to_parameters(weights.clone(), model.parameters())
    return model
