"""What every removal method has in common: ``fit`` and ``remove``, and their checks.

``fit`` belongs to a method because some (shards, per-batch records) act DURING training;
``remove`` takes out the rows of one deletion set.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field, ValidationError
from torch import nn

from puma.data.base import Dataset, Examples
from puma.errors import DataError, DeletionError, ModelError, SettingsError, require_type
from puma.influence.sharding import gathered, is_shared, own_rows, require_same
from puma.models import predictions, weights_digest
from puma.models.device import chosen_device, exact
from puma.models.own_loop import loop_digest
from puma.models.tasks import losses, weighted
from puma.models.training import History, train
from puma.project.files import sha256
from puma.removal.results import CriterionChange, Parameter, Patch, Removal, Trained
from puma.requests.deletion_set import DeletionSet
from puma.settings import ORIGINAL, DeviceName, Seed, Strict, TrainingSettings, problems_of

LOOP_DIGEST = "loop_sha256"  # of the user's own training loop, among a model's parameters


class RemovalMethod(Strict, ABC):
    """A removal method as a value: settings checked when it is built, no state afterwards.

    Attributes:
        method: Its name in :data:`puma.removal.METHODS` and params.yaml.
        original: The kind of original that it removes from. Any other than the plain one is
            made by the method's own ``fit``, which records what ``remove`` will need.
        exact: Whether no weight of what it makes was trained on the removed rows.
        shares_rows: Whether several ranks may remove together, each with a share of the rows
            (:func:`puma.influence.rows_shared`).
        training: How models are trained, the original included.
        seed: Of everything that the method draws.
        device: Where ``fit`` and ``remove`` compute; what they return is where the given model
            was. See :func:`puma.models.device.chosen_device`. None: where the model and the data
            are.

    Raises:
        SettingsError: A setting is unknown, or its value cannot be used.
    """

    method: ClassVar[str]
    original: ClassVar[str] = ORIGINAL
    exact: ClassVar[bool] = False
    shares_rows: ClassVar[bool] = False

    training: TrainingSettings = TrainingSettings()
    seed: Seed = 0
    # No part of what identifies a version: it changes round-off alone.
    device: DeviceName | None = Field(default=None, exclude=True)

    if not TYPE_CHECKING:  # type checkers read the signature from the fields

        def __init__(self, **settings: Any) -> None:
            try:
                super().__init__(**settings)
            except ValidationError as error:
                raise SettingsError(f"{type(self).__name__}: {problems_of(error)}") from error

    @property
    def idempotent(self) -> bool:
        """Whether rows that an earlier removal took out may, and then should, be marked again.

        Such a method takes them to where they belong, not further.
        """
        return False

    @property
    def uses_pool(self) -> bool:
        """Whether ``remove`` needs :attr:`Trained.pool`."""
        return False

    def recorded_settings(self) -> dict[str, Parameter]:
        """Return every setting of the method as a YAML scalar, ``training`` and ``seed`` aside."""
        own = self.model_dump(exclude=set(RemovalMethod.model_fields))
        return {name: _yaml_scalar(value) for name, value in own.items()}

    def training_code(self) -> dict[str, Parameter]:
        """Return the digest of the user's own training loop, by the name that it is recorded by.

        Empty where there is none.

        Raises:
            ModelError: There is no such loop.
        """
        digest = loop_digest(self.training)
        return {} if digest is None else {LOOP_DIGEST: digest}

    def fit(
        self,
        model: nn.Module,
        dataset: Dataset,
        *,
        records: Path | None = None,
        progress: bool = True,
    ) -> Trained:
        """Train a copy of ``model`` on the training split.

        Args:
            model: Where the training starts; it is not changed.
            dataset: The rows to learn from.
            records: The folder for what the method records meanwhile, made when absent, files
                of the same name replaced. None is a temporary one, deleted with the returned
                object. A method that removes from the plain original records nothing.
            progress: Whether to show a progress bar.

        Raises:
            DataError: ``dataset`` is none, or no row can be learnt from.
            ModelError: ``model`` is none, does not fit the rows, or diverges.
        """
        require_type(model, nn.Module, "the model", ModelError, "pass one, as build_model makes")
        require_type(dataset, Dataset, "the dataset", DataError, "pass what load_dataset returns")
        initial, predictor = self._start(model, dataset), self._start(model, dataset)
        folder = None
        temporary = self.original != ORIGINAL and records is None
        if self.original != ORIGINAL:
            folder = records or Path(tempfile.mkdtemp(prefix=f"puma-{self.method}-"))
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SettingsError(
                    f"{folder}: no folder for the records can be made there ({error.strerror}); "
                    "name another one"
                ) from error
        home, rows = _home(initial), dataset
        if self.device is not None:
            predictor = predictor.to(chosen_device(self.device))
            rows = dataset.to(chosen_device(self.device))
        _import_what_optimisers_use()
        start = time.perf_counter()
        try:
            history = self._train(predictor, rows, folder, progress=progress)
        except BaseException:
            if temporary and folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        trained = Trained(
            predictor.eval().to(home),
            dataset,
            initial,
            history,
            time.perf_counter() - start,
            original=self.original,
            records=folder,
            parameters={**self._training_parameters(), **self.training_code()},
        )
        if temporary and folder is not None:
            weakref.finalize(trained, shutil.rmtree, folder, ignore_errors=True)
        return trained

    def _start(self, model: nn.Module, dataset: Dataset) -> nn.Module:  # noqa: ARG002
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

    def _training_parameters(self) -> dict[str, Parameter]:
        """What the trained model depends on, of the method's own settings."""
        return {}

    def remove(
        self, trained: Trained, deletion_set: DeletionSet, *, progress: bool = True
    ) -> Removal:
        """Make a new model without the rows of ``deletion_set``; ``trained`` is not changed.

        Raises:
            DeletionError: The set was made for other data than the model was trained on.
            ModelError: The model was trained by another kind of method, or its records do not
                fit.
            SettingsError: Several ranks are to share the rows, and the method is for one process.
            RankError: They have other models, data or settings, or one of them has failed.
        """
        require_type(trained, Trained, "what to remove from", ModelError, "pass what fit returns")
        require_type(
            deletion_set,
            DeletionSet,
            "the deletion set",
            DeletionError,
            "make one with DeletionSet.of or DeletionSet.read",
        )
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
        self._require_ranks_agree(trained, deletion_set)
        if self._trains_anything(trained, deletion_set):
            _import_what_optimisers_use()
        start = time.perf_counter()
        home, trained = _home(trained.predictor), self._moved(trained)
        rows = weighted(trained.dataset.train, self.training.class_weights)
        if rows.task != trained.dataset.task:
            trained = replace(trained, dataset=replace(trained.dataset, train=rows))
        patch = self._patch(trained, deletion_set, progress=progress)
        seconds = time.perf_counter() - start
        retain_set = rows.without(deletion_set.rows)
        removal = Removal(
            method=self.method,
            predictor=patch.predictor,
            deletion_set=deletion_set,
            parent_weights=weights_digest(trained.predictor),
            seconds=seconds,
            criterion_before=_mean_loss(trained.predictor, retain_set),
            criterion_after=_mean_loss(patch.predictor, retain_set),
            parameters={**self.recorded_settings(), **patch.outcomes},
            diagnostics=patch.diagnostics,
            history=patch.history,
            steps=patch.steps,
            row_weights=patch.row_weights,
            preserved=self._preserved(trained, deletion_set, patch.predictor),
        )
        patch.predictor.to(home)
        return removal

    def _moved(self, trained: Trained) -> Trained:
        """``trained``, where it is to be computed."""
        if self.device is None:
            return trained
        device = chosen_device(self.device)

        def moved(model: nn.Module) -> nn.Module:
            return model if _home(model) == device else copy.deepcopy(model).to(device)

        return replace(
            trained,
            predictor=moved(trained.predictor),
            initial=moved(trained.initial),
            dataset=trained.dataset.to(device),
        )

    def _require_ranks_agree(self, trained: Trained, deletion_set: DeletionSet) -> None:
        """Compare what several ranks are to remove by; there is nothing to compare for one."""
        if not is_shared():
            return
        if not self.shares_rows:
            raise SettingsError(
                f"{self.method} is for one process; call it on rank 0 alone, outside of "
                "rows_shared(), or choose puma"
            )
        require_same(
            "models, data or settings",
            weights_digest(trained.predictor),
            trained.dataset.digest,
            sha256(deletion_set.rows.numpy().tobytes()),
            self.model_dump_json(),
        )

    def _preserved(
        self,
        trained: Trained,  # noqa: ARG002
        deletion_set: DeletionSet,  # noqa: ARG002
        predictor: nn.Module,  # noqa: ARG002
    ) -> tuple[CriterionChange, ...]:
        """Measure what the method promised to keep, on all rows of each criterion."""
        return ()

    def _trains_anything(
        self,
        trained: Trained,  # noqa: ARG002
        deletion_set: DeletionSet,  # noqa: ARG002
    ) -> bool:
        """Whether this removal trains a model, for however short a time."""
        return True

    @abstractmethod
    def _patch(self, trained: Trained, deletion_set: DeletionSet, *, progress: bool) -> Patch:
        """The method itself; everything in here is timed."""


def _home(model: nn.Module) -> torch.device:
    """Where the model is: the CPU for one without weights."""
    return next((each.device for each in model.parameters()), torch.device("cpu"))


def _import_what_optimisers_use() -> None:
    """PyTorch's compiler, now and not at the first step: seconds that are no removal's."""
    import torch._dynamo  # noqa: F401


def _mean_loss(model: nn.Module, examples: Examples) -> float:
    """Nats, summed in double precision: a drift is far smaller than the two losses."""
    own = own_rows(examples)
    found = examples.features.new_empty(0)
    if len(own):
        found = losses(own.task, predictions.outputs_of(model, own), own.labels)
    return exact(gathered(found, len(examples))).mean().item()


def _yaml_scalar(value: object) -> Parameter:
    """``value`` as a number or in YAML's own words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    if isinstance(value, str | int | float):
        return value
    raise TypeError(f"a setting of type {type(value).__name__} has no form to record it in")
