"""Many copies of one small network, trained in lockstep as one stacked model.

A step of a small network costs more in calls than in arithmetic. One call for all copies makes
each of them several times cheaper than :func:`puma.models.training.train` alone.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm

from puma.data.base import Examples
from puma.models.tasks import likelihood_of, weighted
from puma.models.training import (
    History,
    TrainingPlan,
    adam,
    checked_outputs,
    plan_training,
    refuse_divergence,
    train,
)
from puma.settings import TrainingSettings

_BLOCK = 256  # steps whose labels and weights are looked up at once


def train_many(
    models: Sequence[nn.Module],
    examples: Examples,
    rows: Sequence[Tensor],
    settings: TrainingSettings,
    *,
    seeds: Sequence[int],
    steps: int | None = None,
    label: str = "train",
    progress: bool = True,
) -> list[History]:
    """Train each model on its own rows as ``train`` would alone, all at once if they stack.

    Weights and losses agree with those of ``train`` up to round-off. Models that do not stack
    (see :func:`stackable`) are trained by it, one after the other.

    Args:
        models: Alike but for their weights. Changed in place, and left in eval mode.
        examples: What the rows are of.
        rows: For each model the (n,) long indices into ``examples`` that it learns from.
        settings: See :func:`puma.models.training.train`, also for ``steps``.
        seeds: Each model's own, of its batches.
        steps: In place of ``settings.epochs``, for every model.
        label: Of the progress bar.
        progress: Whether to show it.

    Raises:
        DataError: As ``train``, for the first model with that fault.
        ModelError: As ``train``; the models before the one that diverges may stay untrained.
    """
    own = [examples.subset(each) for each in rows]
    plans = [
        plan_training(model, part, settings, seed=seed, steps=steps)
        for model, part, seed in zip(models, own, seeds, strict=True)
    ]
    if not models or not stackable(models[0], own[0].features, settings):
        return [
            train(model, part, settings, seed=seed, steps=steps, label=label, progress=progress)
            for model, part, seed in zip(models, own, seeds, strict=True)
        ]
    # Models of one stack share the learning rate of a step, which one_cycle derives from their
    # number of steps.
    constant = settings.learning_rate_schedule == "constant"
    stacks: dict[int, list[int]] = defaultdict(list)
    for place, plan in enumerate(plans):
        stacks[0 if constant else plan.total].append(place)
    found: dict[int, History] = {}
    for places in stacks.values():
        histories = _train_stack(
            [models[place] for place in places],
            examples,
            [rows[place] for place in places],
            [plans[place] for place in places],
            settings,
            label=label,
            progress=progress,
        )
        found.update(zip(places, histories, strict=True))
    return [found[place] for place in range(len(models))]


def stackable(model: nn.Module, features: Tensor, training: TrainingSettings) -> bool:
    """Whether copies of ``model`` may be trained as one stacked model.

    They may if its output for a row depends on its parameters and that row alone: no buffers or
    other tensors of its own, no batch statistics, nothing that it draws in training. And
    ``torch.vmap`` must be able to run it, which is tried with two copies. A training loop of the
    user's own takes one model at a time.

    Args:
        model: It is not changed.
        features: (n, ...) some rows that it takes, at least one.
        training: How it would be trained.
    """
    if training.loop is not None:
        return False
    if any(True for _ in model.buffers()) or any(
        isinstance(module, _BatchNorm)
        or any(isinstance(value, Tensor) for value in vars(module).values())
        for module in model.modules()
    ):
        return False
    pair = [copy.deepcopy(model).train() for _ in range(2)]
    batch = features[[0, 0, -1]]
    with torch.no_grad():
        for parameter in pair[1].parameters():
            parameter.mul_(0.5)
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            alone = [each(batch) for each in pair]
            fewer = [each(batch[1:]) for each in pair]
        try:
            together = _outputs(pair[0], stack_module_state(pair)[0], batch.expand(2, *batch.shape))
        except Exception:
            return False  # the model itself ran just before, so it is vmap that cannot run it
    return all(
        isinstance(one, Tensor)
        and one.shape == stacked.shape
        and torch.allclose(one, stacked, rtol=1e-4, atol=1e-5)
        and torch.allclose(one[1:], less, rtol=1e-4, atol=1e-5)
        for one, less, stacked in zip(alone, fewer, together, strict=True)
    )


def _outputs(model: nn.Module, parameters: dict[str, Tensor], batches: Tensor) -> Tensor:
    """(k, B, classes) of k models, whose stacked parameters these are, each for its batch."""

    def one(own: dict[str, Tensor], batch: Tensor) -> Tensor:
        found: Tensor = functional_call(model, own, (batch,))
        return found

    outputs: Tensor = vmap(one)(parameters, batches)
    return outputs


def _train_stack(
    models: list[nn.Module],
    examples: Examples,
    rows: list[Tensor],
    plans: list[TrainingPlan],
    settings: TrainingSettings,
    *,
    label: str,
    progress: bool,
) -> list[History]:
    steps = max(plan.total for plan in plans)
    taken = _rows_of_steps(examples, rows, plans, settings.batch_size)
    task = examples.task
    likelihood = likelihood_of(task)
    own = _class_weights(examples, rows, settings)
    top = examples.labels[torch.cat(rows)].max()[None]
    for model in models:
        model.train()
    checked_outputs(models[0], examples.features[rows[0][:1]], task, top)
    base = copy.deepcopy(models[0])
    stacked, _ = stack_module_state(models)
    moving = [each for each in stacked.values() if each.requires_grad]
    optimizer, scheduler = adam(moving, settings, steps, fused=True)
    losses = torch.empty(steps, len(models), dtype=torch.float64)
    histories: list[list[float]] = [[] for _ in models]
    ends = _epoch_ends(plans)
    with (
        torch.enable_grad(),
        tqdm(total=steps, desc=label, unit="step", disable=not progress, mininterval=2) as bar,
    ):
        step = 0
        for block in taken.split(_BLOCK):
            present = block >= 0
            counts = present.sum(2, keepdim=True)
            weights = present / counts.clamp(min=1).to(examples.features.dtype)
            # Gaps are filled with the batch's own first row: of another the loss might overflow,
            # and zero times infinity is not zero.
            filled = block.where(present, block[:, :, :1]).clamp(min=0)
            targets = examples.labels[filled]
            if own is not None:
                weights = weights * own[torch.arange(len(models))[:, None], targets]
            for batch, target, weight in zip(filled, targets, weights, strict=True):
                inputs = examples.features.index_select(0, batch.flatten())
                outputs = _outputs(base, stacked, inputs.unflatten(0, batch.shape))
                each = likelihood.losses(outputs.flatten(0, 1), target.flatten())
                loss = (each.view_as(weight) * weight).sum(1)
                gradients = torch.autograd.grad(loss.sum(), moving, allow_unused=True)
                for parameter, gradient in zip(moving, gradients, strict=True):
                    # The fused Adam takes a transposed gradient for a contiguous one.
                    parameter.grad = None if gradient is None else gradient.contiguous()
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                losses[step] = loss.detach()
                step += 1
                if step in ends:
                    weights_finite = _finite(stacked)
                    for place in ends[step]:
                        plan, history = plans[place], histories[place]
                        sizes = torch.tensor(plan.sizes[: step - len(history) * len(plan.sizes)])
                        past = losses[step - len(sizes) : step, place]
                        history.append(((past * sizes).sum() / sizes.sum()).item())
                        refuse_divergence(
                            len(history), history[-1], weights_finite[place], settings
                        )
                        if step == plan.total:  # the others go on
                            _unstack(stacked, place, models[place])
                bar.update()
    return [
        History(tuple(history), plan.total) for history, plan in zip(histories, plans, strict=True)
    ]


def _rows_of_steps(
    examples: Examples, rows: list[Tensor], plans: list[TrainingPlan], batch_size: int
) -> Tensor:
    """(steps, k, B) the row that each model takes at each place of each batch, or -1 for none.

    B depends on the examples alone: how a sum is rounded may depend on it, and what a model
    becomes must not depend on how few rows the others have.
    """
    steps, width = max(plan.total for plan in plans), min(batch_size, len(examples))
    found = torch.full((steps, len(rows), width), -1)
    for place, (own, plan) in enumerate(zip(rows, plans, strict=True)):
        start = 0
        for batches in plan.epochs():
            epoch = pad_sequence(
                [own[batch] for batch in batches], batch_first=True, padding_value=-1
            )
            found[start : start + len(epoch), place, : epoch.shape[1]] = epoch
            start += len(epoch)
    return found


def _class_weights(
    examples: Examples, rows: list[Tensor], settings: TrainingSettings
) -> Tensor | None:
    """(k, classes) what the loss of each class counts for each model; None where all is 1."""
    if settings.class_weights is None and examples.task.class_weights is None:
        return None
    each = [
        weighted(examples.subset(own), settings.class_weights).task.class_weights or ()
        for own in rows
    ]
    # Unnamed classes that a model has no row of are missing at the end.
    like = examples.features
    return pad_sequence([like.new_tensor(weights) for weights in each], True, 1.0)


def _finite(stacked: dict[str, Tensor]) -> list[bool]:
    """Of each model, whether all of its weights are finite."""
    each = [value.detach().isfinite().flatten(1).all(1) for value in stacked.values()]
    return torch.stack(each).all(0).tolist()


def _unstack(stacked: dict[str, Tensor], place: int, model: nn.Module) -> None:
    """Leave ``model`` with its own weights of the stack, in eval mode."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(stacked[name][place])
    model.eval()


def _epoch_ends(plans: list[TrainingPlan]) -> dict[int, list[int]]:
    """Which models have an epoch that ends after so many steps."""
    found: dict[int, list[int]] = defaultdict(list)
    for place, plan in enumerate(plans):
        for end in {*range(len(plan.sizes), plan.total, len(plan.sizes)), plan.total}:
            found[end].append(place)
    return found
