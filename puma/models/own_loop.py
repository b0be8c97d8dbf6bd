"""Training by a loop of the user's own, by "package.module:function".

The function is named in params.yaml as ``training.loop``. Every model of the dataset is trained by
it: originals, retrained models, and all that removals and audits compare with. It is called as
``function(model, features, labels, settings, seed)``:

- model: an nn.Module in train mode, to be trained in place, from the weights that it has;
- features, labels: all rows to learn from, as tensors of the loop's own;
- settings: the :class:`puma.settings.TrainingSettings` of params.yaml. Their ``epochs`` are to be
  honoured: reference models and SISA's stages are trained for fewer. The others may be ignored;
- seed: a whole number. The global random states of PyTorch, NumPy and Python are seeded with it.

It returns None, or the mean loss of each epoch. Nothing but the arguments may change what it does:
the same ones give the same weights, which is tried on a few rows.
"""

from __future__ import annotations

import copy
import inspect
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from puma.data.base import Examples
from puma.errors import ModelError
from puma.models.predictions import outputs
from puma.models.weights import weights_digest
from puma.project.user_code import code_digest, importable_from, imported
from puma.settings import TrainingSettings

FORM = "package.module:function"
FEW = 64  # rows on which the loop is tried
CALL = "(model, features, labels, settings, seed)"

_Run = Callable[[nn.Module, Examples, TrainingSettings], Any]
# Loops, by their names and code, and the networks that they trained.
_repeatable: set[tuple[str, bytes, str]] = set()


def loop_digest(settings: TrainingSettings) -> str | None:
    """SHA-256 of the module of ``settings.loop``, in hexadecimal; None where there is no loop.

    Raises:
        ModelError: There is no such module.
    """
    if settings.loop is None:
        return None
    return code_digest(settings.loop, "training.loop", FORM, ModelError).hex()


def train_by_loop(
    model: nn.Module, examples: Examples, settings: TrainingSettings, *, seed: int
) -> tuple[tuple[float, ...], int]:
    """Train ``model`` in place with the user's own loop, and leave it in eval mode.

    THIS RUNS THE USER'S CODE; see :func:`puma.project.user_code.imported`.

    Args:
        model: Changed in place.
        examples: The rows to learn from.
        settings: With a ``loop``.
        seed: Of all that is drawn. The global random states are left as they were.

    Returns:
        The losses that the loop returned, if any, and the number of steps that optimisers of
        PyTorch took meanwhile.

    Raises:
        ModelError: The loop cannot be imported or called so, returns something else, leaves other
            parameters or such as are not finite, or gives other weights the second time. What the
            call itself raises is passed on.
    """
    name = str(settings.loop)
    function = imported(name, "training.loop", FORM, ModelError)
    _refuse_other_arguments(name, function)
    run = partial(_called, name, function, seed)
    _require_repeatable(name, run, model, examples, settings)
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1

    hook = register_optimizer_step_post_hook(count)
    try:
        returned = run(model, examples, settings)
    finally:
        hook.remove()
    return _losses(name, returned, settings.epochs), steps


def _refuse_other_arguments(name: str, function: Any) -> None:
    if not callable(function):
        raise ModelError(
            f"training.loop {name!r} is of type {type(function).__name__}; name a function that is "
            f"called with {CALL}"
        )
    try:
        inspect.signature(function).bind(*range(5))
    except TypeError as error:
        raise ModelError(
            f"training.loop {name!r} takes {inspect.signature(function)}, and it is called with "
            f"{CALL}; write it with these five"
        ) from error


def _called(
    name: str,
    function: Callable[..., Any],
    seed: int,
    model: nn.Module,
    examples: Examples,
    settings: TrainingSettings,
) -> Any:
    """Train ``model`` by one call, and check what became of it."""
    before = _form(model)
    model.train()
    # Copies: what it does to its rows must not change the data.
    rows = examples.features.clone(), examples.labels.clone()
    with importable_from(), torch.enable_grad(), _seeded(seed):
        returned = function(model, *rows, settings, seed)
    model.zero_grad(set_to_none=True)
    model.eval()
    after = _form(model)
    if after != before:
        changed = sorted({key for key, _ in {*before.items()} ^ {*after.items()}})
        raise ModelError(
            f"training.loop {name!r} left another network: {', '.join(changed[:5])} changed in "
            "shape, dtype, device or requires_grad; train the given weights in place, and undo "
            "what it does to them besides"
        )
    bad = sorted(
        key
        for key, value in model.state_dict().items()
        if value.is_floating_point() and not value.isfinite().all()
    )
    if bad:
        raise ModelError(
            f"training.loop {name!r} left weights that are NaN or infinite in "
            f"{', '.join(bad[:5])}: the training diverged; lower its learning rate (now "
            f"{settings.learning_rate} in training.learning_rate)"
        )
    return returned


def _form(model: nn.Module) -> dict[str, tuple[Any, ...]]:
    """What a loop must leave as it is, of every parameter and buffer."""
    trains = {key: each.requires_grad for key, each in model.named_parameters()}
    return {
        key: (each.shape, each.dtype, each.device, trains.get(key))
        for key, each in model.state_dict().items()
    }


def _require_repeatable(
    name: str, run: _Run, model: nn.Module, examples: Examples, settings: TrainingSettings
) -> None:
    """Try the loop twice on a few rows for one epoch, once in a process for each network."""
    key = (name, code_digest(name, "training.loop", FORM, ModelError), repr(model))
    if key in _repeatable:
        return
    places = torch.linspace(0, len(examples) - 1, min(FEW, len(examples))).round().long()
    few, once = examples.subset(places), settings.model_copy(update={"epochs": 1})
    twice = [copy.deepcopy(model) for _ in range(2)]
    try:
        for each in twice:
            run(each, few, once)
    except Exception as error:
        error.add_note(
            f"training.loop {name!r} was tried on {len(few)} rows for one epoch, to see whether "
            "it repeats itself"
        )
        raise
    first, second = map(weights_digest, twice)
    if first == weights_digest(model):
        raise ModelError(
            f"training.loop {name!r} left the weights as they were, tried on {len(few)} rows for "
            "one epoch; train the given model in place, not a copy of it, and make steps also with "
            "so few rows"
        )
    if first != second:
        raise ModelError(
            f"training.loop {name!r} gave other weights the second time, for the same arguments, "
            f"tried on {len(few)} rows for one epoch; draw only from the global generators of "
            "PyTorch, NumPy and Python, which are seeded, or from the argument seed, and keep "
            "nothing from one call to the next"
        )
    _require_plain(name, twice[0], copy.deepcopy(model), few)
    _repeatable.add(key)


@torch.no_grad()
def _require_plain(name: str, trained: nn.Module, given: nn.Module, few: Examples) -> None:
    """Raise ModelError unless weights are all that the loop changed: they alone are stored."""
    given.load_state_dict(trained.state_dict())
    found, expected = (outputs(model.eval(), few.features) for model in (trained, given))
    if not torch.equal(found, expected):
        raise ModelError(
            f"training.loop {name!r} left another network: it gives other outputs than the given "
            "one with the same weights and buffers, tried on "
            f"{len(few)} rows; take out hooks, replaced methods and changed attributes when the "
            "training ends, for only weights and buffers are stored"
        )


def _losses(name: str, returned: Any, epochs: int) -> tuple[float, ...]:
    if returned is None:
        return ()
    try:
        losses = tuple(float(loss) for loss in returned)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"training.loop {name!r} returned {type(returned).__name__}; return the mean loss of "
            "each epoch as a list of numbers, or None"
        ) from error
    if not all(map(math.isfinite, losses)):
        raise ModelError(
            f"training.loop {name!r} returned a loss that is NaN or infinite: the training "
            "diverged; lower its learning rate"
        )
    if len(losses) > epochs:
        raise ModelError(
            f"training.loop {name!r} returned {len(losses)} losses for {epochs} epochs; honour "
            "settings.epochs, since some models are trained for fewer, and return the mean loss "
            "of each epoch"
        )
    return losses


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global random states, and put them back."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
