"""Gradient Shapley: what each row's own training step does to the performance, on average."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from tqdm.auto import tqdm

from puma.data.base import Dataset, Examples
from puma.errors import (
    ModelError,
    SettingsError,
    require_max_bytes,
    require_memory,
    require_seed,
)
from puma.influence import FlatModel
from puma.influence.flat_model import batches
from puma.label_errors.ranker import as_suspicion
from puma.models.tasks import hits, likelihood_of, require_classes
from puma.progress import end_early

PERFORMANCES = ("accuracy", "loss")
Performance = Callable[[Tensor], Tensor]


class NotSettledWarning(UserWarning):
    """The Shapley values did not settle to the tolerance that was set."""


@dataclass(frozen=True)
class GShapley:
    """−value of each row by G-Shapley (Ghorbani and Zou, 2019, Algorithm 2).

    In each permutation of the training rows a freshly initialised model takes one epoch of plain
    gradient descent, one row per step. Each row is credited with the change of performance on
    ``dataset.test`` that its step made. A row's value is its mean credit; the lowest values are
    the most suspect. Each permutation's credits add up to final minus initial performance.

    The test labels must be right, and test accuracy measured after a repair by this ranking is
    too good: pass a Dataset whose ``test`` is a validation split. What one epoch cannot learn,
    such as two spirals, this ranker cannot judge.

    Fresh weights: each trainable module's ``reset_parameters``; frozen modules keep theirs, and
    BatchNorm, which cannot learn statistics from single rows, its initial ones.

    Attributes:
        permutations: How many at most.
        learning_rate: Of the steps. The authors search for the one that is best after one epoch
            (0.1 found more than 0.03 and 0.3 on two moons and radial, one seed).
        performance: "accuracy", or "loss", the mean loss with its sign turned; None: accuracy, and
            loss for a regression, which has none.
        tolerance: Stop when the values' standard error (root mean square over rows) is at most
            this share of their spread over rows, looked at after each batch. A NotSettledWarning
            says when it was not reached. None makes all ``permutations``.
        batch: How many permutations run side by side. It changes speed and memory, not the
            values: each permutation has a seed of its own.
        seed: Of the orders and the fresh weights.
        max_bytes: The memory for the weights of a batch and for the credits, activations apart.

    Raises:
        SettingsError: A setting cannot be used.
    """

    name: ClassVar[str] = "g_shapley"

    permutations: int = 100
    learning_rate: float = 0.1
    performance: str | None = None
    tolerance: float | None = None
    batch: int = 25
    seed: int = 0
    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        for setting in ("permutations", "batch"):
            if getattr(self, setting) < 1:
                raise SettingsError(f"{setting} must be >= 1, got {getattr(self, setting)}")
        require_seed(self.seed, SettingsError)
        require_max_bytes(self.max_bytes)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise SettingsError(f"learning_rate must be finite and > 0, got {self.learning_rate}")
        if self.performance not in (None, *PERFORMANCES):
            raise SettingsError(
                f"performance must be one of {', '.join(PERFORMANCES)}, got {self.performance!r}"
            )
        if self.tolerance is not None and not (
            math.isfinite(self.tolerance) and self.tolerance > 0
        ):
            raise SettingsError(f"tolerance must be finite and > 0, or None, got {self.tolerance}")

    def suspicion(self, model: nn.Module, dataset: Dataset, *, progress: bool = False) -> Tensor:
        """(n,) −value, in shares of accuracy or nats per step.

        Raises:
            ModelError: A trainable module has no ``reset_parameters``, or the weights diverge.
            SolverError: Weights and credits take more than ``max_bytes``.
            DataError: ``performance`` is accuracy, and there are no classes.
        """
        return as_suspicion(-self._values(model, dataset, progress), self.name)

    def _values(self, model: nn.Module, dataset: Dataset, progress: bool) -> Tensor:
        n = len(dataset.train)
        self._require_memory(FlatModel(model), n)
        credits = torch.zeros(0, n, dtype=torch.float64)
        settled = self.tolerance is None
        with tqdm(
            total=self.permutations, desc=self.name, unit="permutation", disable=not progress
        ) as bar:
            for start in range(0, self.permutations, self.batch):
                seeds = range(start, min(start + self.batch, self.permutations))
                starts = [FlatModel(fresh(model, self.seed + each)).vector for each in seeds]
                orders = [_order(n, self.seed + each) for each in seeds]
                part = self.credits(model, dataset, torch.stack(starts), torch.stack(orders))
                credits = torch.cat([credits, part])
                bar.update(len(seeds))
                if self.tolerance is not None and self._error(credits) <= self.tolerance:
                    settled = True
                    break
            end_early(bar)
        if not settled:
            warnings.warn(
                f"g_shapley: after {len(credits)} permutations the values' standard error is "
                f"{self._error(credits):.2g} of their spread, tolerance {self.tolerance}; raise "
                "permutations, or tolerance",
                NotSettledWarning,
                stacklevel=3,
            )
        return credits.mean(0)

    def credits(self, model: nn.Module, dataset: Dataset, starts: Tensor, orders: Tensor) -> Tensor:
        """(b, n) credit of every row in each of b permutations run side by side.

        Args:
            model: It gives the architecture.
            dataset: Its training rows are learnt from, its test rows measure the performance.
            starts: (b, p) initial trainable parameters.
            orders: (b, n) long, the rows in the order in which they are learnt from.
        """
        # The buffers are the initial ones too, whichever weights each permutation starts from.
        flat, train, task = FlatModel(fresh(model, self.seed)), dataset.train, dataset.task
        default = "accuracy" if likelihood_of(task).has_classes else "loss"
        measure = _performance(flat, dataset.test, self.performance or default)
        slope = vmap(grad(lambda point, x, y: flat.losses(point, x, y, task).mean()))
        points, before = starts, measure(starts)
        credits = torch.zeros(orders.shape, dtype=torch.float64)
        for rows in orders.split(1, dim=1):
            steps = slope(points, train.features[rows], train.labels[rows]).detach()
            points = points - self.learning_rate * steps
            after = measure(points)
            credits.scatter_(1, rows, (after - before)[:, None])
            before = after
        if not torch.isfinite(points).all():
            raise ModelError(
                f"g_shapley: the weights diverged; lower learning_rate (now {self.learning_rate})"
            )
        return credits

    def _require_memory(self, flat: FlatModel, n: int) -> None:
        """Six copies of a batch's weights, two of all credits, three of a batch's orders."""
        batch = min(self.batch, self.permutations)
        item = torch.finfo(flat.dtype).bits // 8
        require_memory(
            6 * batch * flat.size * item + 8 * n * (2 * self.permutations + 3 * batch),
            self.max_bytes,
            f"g_shapley: {batch} models of {flat.size} parameters at once and the credits of {n} "
            f"rows in {self.permutations} permutations",
            "lower batch (the values stay), lower permutations, or raise max_bytes",
        )

    @staticmethod
    def _error(credits: Tensor) -> float:
        """Standard error of the values, as a share of their spread over rows."""
        if len(credits) < 2:
            return math.inf
        error = (credits.var(0) / len(credits)).mean().sqrt()
        spread = credits.mean(0).std(correction=0)
        return float(error / spread) if spread > 0 else math.inf


def fresh(model: nn.Module, seed: int) -> nn.Module:
    """Copy ``model`` in eval mode, its trainable modules initialised anew.

    The same seed gives the same weights; the global random state is left as it was. A module
    with parameters of its own that are all frozen is kept.

    Raises:
        ModelError: A module, named, trains but has no ``reset_parameters``.
    """
    copied = copy.deepcopy(model).eval()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        for name, module in copied.named_modules():
            if not any(p.requires_grad for p in module.parameters(recurse=False)):
                continue
            reset = getattr(module, "reset_parameters", None)
            if reset is None:
                raise ModelError(
                    f"{type(module).__name__} {name!r} has trainable parameters but no "
                    "reset_parameters() to draw them anew; add one, or freeze them"
                )
            reset()
    return copied


def _order(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def _performance(flat: FlatModel, examples: Examples, kind: str) -> Performance:
    """The map (b, p) parameters -> (b,) float64 performance on ``examples``, higher is better."""
    likelihood = likelihood_of(examples.task)
    if kind == "accuracy":
        require_classes(examples, "g_shapley by accuracy", "set performance to 'loss'")

    def total(outputs: Tensor, labels: Tensor) -> Tensor:
        each, repeated = outputs.flatten(0, 1), labels.repeat(len(outputs))
        if kind == "accuracy":
            found = hits(likelihood.predictions(each), repeated)
        else:
            found = -likelihood.losses(each, repeated)
        return found.double().view(len(outputs), -1).sum(1)

    @torch.no_grad()
    def measure(points: Tensor) -> Tensor:
        sums = torch.zeros(len(points), dtype=torch.float64)
        for features, labels in batches(flat, examples):
            sums += total(vmap(flat.logits, in_dims=(0, None))(points, features), labels).cpu()
        return sums / len(examples)

    return measure
