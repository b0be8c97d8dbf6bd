"""What every removal method has in common: two verbs, and what they hand over.

``fit`` comes first because some methods (shards, per-batch records) act DURING training;
``remove`` answers one deletion set.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from puma.data.base import Dataset, Examples
from puma.errors import DeletionError, ModelError
from puma.models import predictions, weights_digest
from puma.models.training import History, train
from puma.requests.deletion_set import DeletionSet
from puma.settings import ORIGINAL, Seed, Strict, TrainingSettings


@dataclass(frozen=True, repr=False)
class Trained:
    """A model, the data it learnt from, and the weights it started with.

    predictor: the trained model, in eval mode; maps (B, ...) features to (B, classes) logits.
    initial: the same architecture before its first step, where retraining starts again.
    history: the loss curve, or None for a model that was trained elsewhere.
    seconds: wall time of the training, the recording included; as for a removal, PyTorch's
        own imports on first use are not part of it.
    original: which kind of original this is; a method removes from its own kind alone.
    records: the folder of what the method recorded while it trained, or None. It tells of the
        training rows: keep it as private as the data.
    parameters: what identifies the training, the optimiser's settings aside.
    """

    predictor: nn.Module
    dataset: Dataset
    initial: nn.Module
    history: History | None = None
    seconds: float = 0.0
    original: str = ORIGINAL
    records: Path | None = None
    parameters: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Removal:
    """A model from which the rows of ``deletion_set`` were removed, and what it took.

    predictor: the new model; the original is untouched.
    parent_weights: digest of the weights of the original, which says what this came from.
    seconds: wall time from the trained model and the rows to the new weights. PyTorch's own
        imports on first use (about a second, once per process) are not part of it.
    parameters: settings and deterministic outcomes that identify how it was made.
    criterion_before, criterion_after: mean cross-entropy (nats) of the RETAINED rows.
    diagnostics: further numbers about the run, such as solver iterations.
    steps: the same for each step of a method that takes several.
    """

    method: str
    predictor: nn.Module
    deletion_set: DeletionSet
    parent_weights: str
    seconds: float
    criterion_before: float
    criterion_after: float
    parameters: Mapping[str, str | int | float] = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    history: History | None = None
    steps: tuple[Mapping[str, float], ...] = ()

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
    steps: tuple[Mapping[str, float], ...] = ()


class RemovalMethod(Strict, ABC):
    """A method is a value: settings checked when it is built, no state afterwards.

    method: its name. original: the kind of original that it removes from; any other than the
    plain one is made by the method's own ``fit``, which records what ``remove`` will need.
    small: settings with which it can learn from four rows.
    """

    method: ClassVar[str]
    original: ClassVar[str] = ORIGINAL
    small: ClassVar[Mapping[str, Any]] = {}

    training: TrainingSettings = TrainingSettings()
    seed: Seed = 0

    @property
    def idempotent(self) -> bool:
        """Whether rows that an earlier removal took out may be marked again, as they should then:
        they are taken to where they belong, not further."""
        return False

    def fit(
        self,
        model: nn.Module,
        dataset: Dataset,
        *,
        records: Path | None = None,
        progress: bool = True,
    ) -> Trained:
        """Train a copy of ``model`` on the training split; ``model`` itself is not changed.

        ``records`` is the folder for what the method records meanwhile, made when absent,
        files of the same name replaced. None is a temporary one, deleted with the returned
        object. A method that removes from the plain original records nothing.
        """
        initial, predictor = self._start(model), self._start(model)
        folder = None
        temporary = self.original != ORIGINAL and records is None
        if self.original != ORIGINAL:
            folder = records or Path(tempfile.mkdtemp(prefix=f"puma-{self.method}-"))
            folder.mkdir(parents=True, exist_ok=True)
        _start_training()
        start = time.perf_counter()
        try:
            history = self._train(predictor, dataset, folder, progress=progress)
        except BaseException:
            if temporary and folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        trained = Trained(
            predictor.eval(),
            dataset,
            initial,
            history,
            time.perf_counter() - start,
            original=self.original,
            records=folder,
            parameters=self._described(),
        )
        if temporary and folder is not None:
            weakref.finalize(trained, shutil.rmtree, folder, ignore_errors=True)
        return trained

    def _start(self, model: nn.Module) -> nn.Module:
        """What is trained, before its first step: a copy of ``model``, or one made of copies."""
        return copy.deepcopy(model)

    def _train(
        self,
        predictor: nn.Module,
        dataset: Dataset,
        records: Path | None,  # noqa: ARG002
        *,
        progress: bool,
    ) -> History:
        """Train ``predictor`` in place, and record into ``records`` where the method has any."""
        return train(
            predictor, dataset.train, self.training, seed=self.seed, label="fit", progress=progress
        )

    def _described(self) -> dict[str, str | int | float]:
        """The method's own settings that the trained model depends on."""
        return {}

    def remove(
        self, trained: Trained, deletion_set: DeletionSet, *, progress: bool = True
    ) -> Removal:
        """A new model without the rows of ``deletion_set``; ``trained`` is not changed.

        Raises DeletionError when the set was made for other data than the model was trained on,
        ModelError when that was not by this kind of method or its records do not fit.
        """
        if trained.original != self.original:
            raise ModelError(
                f"{self.method} removes from {self.original!r}, and this model was trained as "
                f"{trained.original!r}; pass what {type(self).__name__}.fit returns"
            )
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
            parent_weights=weights_digest(trained.predictor),
            seconds=seconds,
            criterion_before=_mean_loss(trained.predictor, retained),
            criterion_after=_mean_loss(patch.predictor, retained),
            parameters=patch.parameters,
            diagnostics=patch.diagnostics,
            history=patch.history,
            steps=patch.steps,
        )

    @abstractmethod
    def _patch(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Patch:
        """The method itself; everything in here is timed."""


def _mean_loss(model: nn.Module, examples: Examples) -> float:
    """Nats, summed in double precision: a drift is far smaller than the two losses."""
    return predictions.losses(model, examples).double().mean().item()


@cache
def _start_pytorch(method: type[RemovalMethod]) -> None:
    """Let a removal of one of four toy rows pay for what PyTorch imports on first use."""
    model, dataset = _toy()
    once = method(training=TrainingSettings(epochs=1), **method.small)
    trained = Trained(model, dataset, model)
    if method.original != ORIGINAL:
        trained = once.fit(model, dataset, progress=False)
    with warnings.catch_warnings():
        # PyTorch 2.14 deprecates what its own forward mode is built on, and says so here.
        warnings.filterwarnings("ignore", message=r".*torch\.jit\.script.*")
        once._patch(trained, DeletionSet.of(["0"], dataset), progress=False)


@cache
def _start_training() -> None:
    """The same for training."""
    model, dataset = _toy()
    train(model, dataset.train, TrainingSettings(epochs=1), seed=0, progress=False)


def _toy() -> tuple[nn.Module, Dataset]:
    """A model of zeros, which draws no random numbers, and four rows."""
    toy = Examples.of(torch.eye(4), torch.tensor([0, 1, 0, 1]))
    model = nn.utils.skip_init(nn.Linear, 4, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model, Dataset("toy", toy, toy, ("a", "b"))
