"""What every removal method has in common: two verbs, and what they hand over.

``fit`` comes first because some methods (shards, per-batch records) act DURING training;
``remove`` answers one deletion set.
"""

from __future__ import annotations

import copy
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import torch
from torch import nn

from puma import predictions
from puma.data.base import Dataset, Examples
from puma.deletion import DeletionSet
from puma.errors import DeletionError
from puma.settings import Seed, Strict, TrainingSettings
from puma.training import History, train


@dataclass(frozen=True, repr=False)
class Trained:
    """A model, the data it learnt from, and the weights it started with.

    predictor: the trained model, in eval mode; maps (B, ...) features to (B, classes) logits.
    initial: the same architecture before its first step, where retraining starts again.
    history: the loss curve, or None for a model that was trained elsewhere.
    seconds: wall time of the training.
    """

    predictor: nn.Module
    dataset: Dataset
    initial: nn.Module
    history: History | None = None
    seconds: float = 0.0


@dataclass(frozen=True, repr=False)
class Removal:
    """A model from which the rows of ``deletion_set`` were removed, and what it took.

    predictor: the new model; the original is untouched.
    seconds: wall time from the trained model and the rows to the new weights. PyTorch's own
        imports on first use (about a second, once per process) are not part of it.
    parameters: settings and deterministic outcomes that identify how it was made.
    criterion_before, criterion_after: mean cross-entropy (nats) of the RETAINED rows.
    diagnostics: further numbers about the run, such as solver iterations.
    """

    method: str
    predictor: nn.Module
    deletion_set: DeletionSet
    seconds: float
    criterion_before: float
    criterion_after: float
    parameters: Mapping[str, str | int | float] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    history: History | None = None

    @property
    def n_removed(self) -> int:
        """How many training rows went."""
        return len(self.deletion_set)

    @property
    def criterion_drift(self) -> float:
        """Change of the retained rows' mean loss; PUMA bounds its size (Eq. 2)."""
        return self.criterion_after - self.criterion_before


@dataclass(frozen=True)
class Patch:
    """What a method's own step returns: new weights, how they came about, what they cost."""

    predictor: nn.Module
    parameters: Mapping[str, str | int | float]
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    history: History | None = None


class RemovalMethod(Strict, ABC):
    """A method is a value: settings checked when it is built, no state afterwards."""

    method: ClassVar[str]

    training: TrainingSettings = TrainingSettings()
    seed: Seed = 0

    def fit(self, model: nn.Module, dataset: Dataset, *, progress: bool = True) -> Trained:
        """Train a copy of ``model`` on the training split; ``model`` itself is not changed."""
        predictor = copy.deepcopy(model)
        start = time.perf_counter()
        history = train(
            predictor, dataset.train, self.training, seed=self.seed, label="fit", progress=progress
        )
        seconds = time.perf_counter() - start
        return Trained(predictor, dataset, copy.deepcopy(model), history, seconds)

    def remove(
        self, trained: Trained, deletion_set: DeletionSet, *, progress: bool = True
    ) -> Removal:
        """A new model without the rows of ``deletion_set``; ``trained`` is not changed.

        Raises DeletionError when the set was made for other data than the model was trained on.
        """
        if deletion_set.dataset.digest != trained.dataset.digest:
            raise DeletionError(
                f"the deletion set was checked against other data than this model's "
                f"{trained.dataset.name!r}; read it again with the model's own dataset"
            )
        _start_pytorch(type(self))
        start = time.perf_counter()
        patch = self._patch(trained, deletion_set, progress=progress)
        seconds = time.perf_counter() - start
        retained = trained.dataset.train.without(deletion_set.rows)
        return Removal(
            method=self.method,
            predictor=patch.predictor,
            deletion_set=deletion_set,
            seconds=seconds,
            criterion_before=predictions.losses(trained.predictor, retained).mean().item(),
            criterion_after=predictions.losses(patch.predictor, retained).mean().item(),
            parameters=patch.parameters,
            diagnostics=patch.diagnostics,
            history=patch.history,
        )

    @abstractmethod
    def _patch(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Patch:
        """The method itself; everything in here is timed."""


@cache
def _start_pytorch(method: type[RemovalMethod]) -> None:
    """Let a removal of one of four toy rows pay for what PyTorch imports on first use."""
    toy = Examples.of(torch.eye(4), torch.tensor([0, 1, 0, 1]))
    dataset = Dataset("toy", toy, toy, ("a", "b"))
    model = nn.utils.skip_init(nn.Linear, 4, 2)  # draws no random numbers
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    once = method(training=TrainingSettings(epochs=1))
    with warnings.catch_warnings():
        # PyTorch 2.14 deprecates what its own forward mode is built on, and says so here.
        warnings.filterwarnings("ignore", message=r".*torch\.jit\.script.*")
        once._patch(Trained(model, dataset, model), DeletionSet.of(["0"], dataset), progress=False)
