"""THE training loop: every model here, original, retrained or shadow, comes out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.lr_scheduler import OneCycleLR
from tqdm.auto import tqdm

from puma.data.base import Examples
from puma.data.task import Task
from puma.errors import DataError, ModelError, SettingsError
from puma.models.own_loop import train_by_loop
from puma.models.predictions import outputs, require_device, require_dtype
from puma.models.tasks import mean_loss, require_outputs, weighted
from puma.settings import TrainingSettings

OnStep = Callable[[nn.Module, int, Tensor], None]


@dataclass(frozen=True)
class History:
    """How a training went.

    Attributes:
        loss: The mean loss (nats), with class weights, over the batches of each epoch; or what the
            user's own loop returned, which may be nothing.
        steps: Optimiser steps in total.
    """

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
    """Minimise the task's mean loss (+ weight_decay/2·‖θ‖²) with Adam, in place.

    A row's loss counts by the weight of its class, where ``settings.class_weights`` or the
    examples' task has any. Balanced weights are those of ``examples``.

    Batches, and what the model itself draws (dropout), come from ``seed``: the result depends
    on it and the data alone, and the global random state is untouched.

    A last batch of one row cannot be normalised: a model with BatchNorm takes it together with
    the batch before it, in one step less per epoch. This depends on n, the batch size and the
    architecture alone, and every row is still seen once an epoch.

    ``settings.loop``, a loop of the user's own, does all this in its own way instead: see
    :mod:`puma.models.own_loop`.

    Args:
        model: Changed in place, and left in eval mode.
        examples: The rows to learn from.
        settings: The optimiser's; the learning rate follows its schedule over all steps.
        seed: Of the batches and the model's own draws.
        steps: In place of ``settings.epochs``: training goes on, epoch after epoch, for exactly
            that many optimiser steps.
        on_step: Called as ``on_step(model, step, rows)`` after each step; ``rows`` are the (b,)
            long indices into ``examples`` of the batch that the step was made on.
        label: Of the progress bar.
        progress: Whether to show it.

    Raises:
        DataError: There are no examples, their dtype is not the model's, or a model with
            BatchNorm would get batches of one row.
        ModelError: The model has nothing to train, no output for a class, or was made in
            ``torch.inference_mode``; or the loss stops being finite.
        SettingsError: The user's own loop was to take so many ``steps``, or to call ``on_step``.
    """
    if settings.loop is not None:
        _refuse_steps(settings.loop, steps, on_step)
        _refuse_untrainable_on(model, examples)
        weighted(examples, settings.class_weights)  # which are the loop's to use, if they suit
        return History(*train_by_loop(model, examples, settings, seed=seed))
    plan = plan_training(model, examples, settings, seed=seed, steps=steps)
    task = weighted(examples, settings.class_weights).task
    total = plan.total
    optimizer, scheduler = adam(model.parameters(), settings, total)
    top = examples.labels.max()[None]
    history: list[float] = []
    step = 0
    model.train()
    with (
        torch.enable_grad(),
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        tqdm(total=total, desc=label, unit="step", disable=not progress, mininterval=2) as bar,
    ):
        torch.manual_seed(seed)  # for a model that draws in training, as dropout does
        for batches in plan.epochs():
            sums, seen = 0.0, 0
            for batch in batches:
                output = checked_outputs(model, examples.features[batch], task, top)
                loss = mean_loss(task, output, examples.labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                step += 1
                sums += loss.item() * len(batch)
                seen += len(batch)
                if on_step is not None:
                    on_step(model, step, batch)
                bar.update()
            history.append(sums / seen)
            bar.set_postfix(loss=f"{history[-1]:.4f}")
            # A loss is measured before its step: only the weights show the last one.
            finite = all(parameter.isfinite().all() for parameter in model.parameters())
            refuse_divergence(len(history), history[-1], finite, settings)
    model.eval()
    return History(tuple(history), step)


@dataclass(frozen=True)
class TrainingPlan:
    """Which rows every step of a training takes.

    Attributes:
        n: How many rows there are.
        sizes: How many of them each step of one epoch takes.
        total: Optimiser steps in total.
        seed: Of the batches.
    """

    n: int
    sizes: tuple[int, ...]
    total: int
    seed: int

    def epochs(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield for each epoch its batches: (b,) long indices into the rows."""
        generator = torch.Generator().manual_seed(self.seed)
        for start in range(0, self.total, len(self.sizes)):
            order = torch.randperm(self.n, generator=generator)
            yield order.split(self.sizes)[: self.total - start]


def plan_training(
    model: nn.Module,
    examples: Examples,
    settings: TrainingSettings,
    *,
    seed: int,
    steps: int | None,
) -> TrainingPlan:
    """Plan what :func:`train` does with these arguments, and raise what it refuses."""
    n = len(examples)
    _refuse_untrainable_on(model, examples)
    sizes = batch_sizes(model, n, settings.batch_size)
    total = settings.epochs * len(sizes) if steps is None else steps
    if total < 1:
        raise DataError(f"training takes at least one step, got {total}")
    return TrainingPlan(n, tuple(sizes), total, seed)


def adam(
    parameters: Iterable[Tensor], settings: TrainingSettings, total: int, *, fused: bool = False
) -> tuple[torch.optim.Adam, OneCycleLR | None]:
    """Return the optimiser, and the schedule of its learning rate over ``total`` steps if any."""
    rate = settings.learning_rate
    optimizer = torch.optim.Adam(
        parameters, lr=rate, weight_decay=settings.weight_decay, fused=fused or None
    )
    if settings.learning_rate_schedule == "constant":
        return optimizer, None
    return optimizer, OneCycleLR(optimizer, rate, total_steps=total, cycle_momentum=False)


def refuse_divergence(epoch: int, loss: float, finite: bool, settings: TrainingSettings) -> None:
    """Raise ModelError if an epoch's mean loss, or a weight after it, is not ``finite``."""
    if not math.isfinite(loss) or not finite:
        raise ModelError(
            f"training diverged in epoch {epoch} (loss {loss}); "
            f"lower training.learning_rate (now {settings.learning_rate})"
        )


def _refuse_steps(loop: str, steps: int | None, on_step: OnStep | None) -> None:
    if steps is not None:
        raise SettingsError(
            f"training.loop {loop!r} trains for epochs, not for {steps} steps; set "
            "retrain.schedule to equal_epochs, or leave training.loop out"
        )
    if on_step is not None:
        raise SettingsError(
            f"training.loop {loop!r} does not say which rows each of its steps was made on, so "
            "that nothing can record them; choose a method that needs no such records, such as "
            "puma or sisa, or leave training.loop out"
        )


def _refuse_untrainable_on(model: nn.Module, examples: Examples) -> None:
    if not len(examples):
        raise DataError("cannot train on 0 examples; nothing is left to learn from")
    _refuse_untrainable(model)
    require_dtype(model, examples.features)
    require_device(model, examples.features)


def _refuse_untrainable(model: nn.Module) -> None:
    parameters = list(model.parameters())
    if torch.is_inference_mode_enabled() or any(each.is_inference() for each in parameters):
        raise ModelError(
            "no model can be trained in torch.inference_mode(), nor one that was made there; "
            "make and train it outside"
        )
    kinds = {each.dtype for each in parameters if each.requires_grad}
    if not kinds:
        raise ModelError(
            "the model has no parameter with requires_grad=True; unfreeze those to be trained"
        )


def checked_outputs(model: nn.Module, features: Tensor, task: Task, labels: Tensor) -> Tensor:
    """Return the (B, K) output of ``model``; ModelError where it is not what the labels need."""
    output = outputs(model, features)
    require_outputs(output, task, labels)
    return output


def batch_sizes(model: nn.Module, n: int, batch_size: int) -> list[int]:
    """Return how many of ``n`` rows each step of one epoch takes; see :func:`train`."""
    full, rest = divmod(n, batch_size)
    sizes = [batch_size] * full + [rest] * (rest > 0)
    if sizes[-1] == 1 and any(isinstance(module, _BatchNorm) for module in model.modules()):
        if len(sizes) == 1 or batch_size == 1:
            raise DataError(
                f"a model with BatchNorm cannot learn from one row at a time (n = {n}, "
                f"training.batch_size {batch_size}); give it more rows and larger batches"
            )
        sizes[-2:] = [batch_size + 1]
    return sizes
