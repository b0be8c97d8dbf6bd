"""THE training loop: every model here, original, retrained or shadow, comes out of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from puma.data.base import Examples
from puma.errors import DataError, ModelError
from puma.settings import TrainingSettings

OnStep = Callable[[nn.Module, int], None]


@dataclass(frozen=True)
class History:
    """``loss[e]``: mean cross-entropy (nats) over the batches of epoch e; ``steps`` in total."""

    loss: tuple[float, ...]
    steps: int


def train(
    model: nn.Module,
    examples: Examples,
    settings: TrainingSettings,
    *,
    seed: int,
    steps: int | None = None,
    on_step: OnStep | None = None,
    label: str = "train",
    progress: bool = True,
) -> History:
    """Minimise mean cross-entropy (+ weight_decay/2·‖θ‖²) with Adam, in place.

    Batches are drawn by a private generator: the result depends on ``seed`` and the data
    alone, and the global random state is untouched unless the model itself draws (dropout).
    ``steps`` overrides ``settings.epochs``: training goes on, epoch after epoch, for exactly
    that many optimiser steps. ``on_step(model, step)`` runs after each one.

    Raises DataError for an empty set, ModelError when the loss stops being finite.
    """
    n = len(examples)
    if n == 0:
        raise DataError("cannot train on 0 examples; nothing is left to learn from")
    per_epoch = -(-n // settings.batch_size)
    total = settings.epochs * per_epoch if steps is None else steps
    if total < 1:
        raise DataError(f"training takes at least one step, got {total}")

    optimizer = torch.optim.Adam(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    generator = torch.Generator().manual_seed(seed)
    history: list[float] = []
    step = 0
    model.train()
    with tqdm(total=total, desc=label, unit="step", disable=not progress, mininterval=0.5) as bar:
        while step < total:
            order = torch.randperm(n, generator=generator)
            sums, seen = 0.0, 0
            for batch in order.split(settings.batch_size)[: total - step]:
                loss = cross_entropy(model(examples.features[batch]), examples.labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                sums += loss.item() * len(batch)
                seen += len(batch)
                if on_step is not None:
                    on_step(model, step)
                bar.update()
            history.append(sums / seen)
            bar.set_postfix(loss=f"{history[-1]:.4f}")
            # A loss is measured before its step: only the weights tell of the last one.
            finite = all(parameter.isfinite().all() for parameter in model.parameters())
            if not math.isfinite(history[-1]) or not finite:
                raise ModelError(
                    f"training diverged in epoch {len(history)} (loss {history[-1]}); "
                    f"lower training.learning_rate (now {settings.learning_rate})"
                )
    model.eval()
    return History(tuple(history), step)
