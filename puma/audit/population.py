"""Many models of the same data, each trained on a known part of it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from puma.audit.predictions import Array, predict
from puma.data.base import Dataset, Examples
from puma.errors import AuditError
from puma.models import build_model
from puma.models.batched import stackable, train_many
from puma.models.parallel import run_all
from puma.project.files import PRIVATE, write_bytes
from puma.removal.base import RemovalMethod
from puma.requests.deletion_set import DeletionSet
from puma.settings import ORIGINAL, ModelSettings

Mask = NDArray[np.bool_]
# At most so many models are trained in lockstep. A constant: rounding must not depend on jobs.
LOCKSTEP = 32


@dataclass(frozen=True, eq=False, repr=False)
class Population:
    """Predictions of k models for the same n rows: the training rows, then the test rows.

    They are of single rows: keep the file as private as the data.

    Attributes:
        margins: (k, n) float64, see :func:`puma.models.predictions.margins`.
        correct: (k, n) whether the most probable class is the label.
        member: (k, n) whether the model was trained on the row.

    Raises:
        AuditError: Margins are not finite, or shapes disagree.
    """

    margins: Array
    correct: Mask
    member: Mask

    def __post_init__(self) -> None:
        shapes = {self.margins.shape, self.correct.shape, self.member.shape}
        if len(shapes) != 1 or self.margins.ndim != 2 or not np.isfinite(self.margins).all():
            raise AuditError(
                f"a population needs finite margins and two masks of one shape (models, rows), "
                f"got {sorted(shapes)}; train it again"
            )

    def __len__(self) -> int:
        return len(self.margins)

    def __repr__(self) -> str:
        return f"Population(models={len(self)}, rows={self.margins.shape[1]})"

    def save(self, path: Path) -> None:
        """Write it, whole or not at all, for the owner alone."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, margins=self.margins, correct=self.correct, member=self.member)
        write_bytes(path, buffer.getvalue(), mode=PRIVATE)

    @classmethod
    def load(cls, path: Path) -> Population:
        """Read what :meth:`save` wrote.

        Raises:
            AuditError: The file is absent, or PUMA did not write it.
        """
        try:
            with np.load(path, allow_pickle=False) as stored:
                return cls(stored["margins"], stored["correct"], stored["member"])
        except FileNotFoundError as error:
            raise AuditError(f"{path}: no such models; run `dvc repro`") from error
        except Exception as error:  # numpy raises zip, pickle, key and value errors alike here
            raise AuditError(
                f"{path}: not a population written by PUMA ({error}); delete it and run `dvc repro`"
            ) from error


def train_population(
    dataset: Dataset,
    members: Mask,
    trainer: RemovalMethod,
    model: ModelSettings,
    *,
    seed: int,
    jobs: int = 1,
    label: str = "models",
    progress: bool = True,
) -> Population:
    """Train one model for every line of ``members``, and apply each to every row.

    Plain originals of a network that stacks are trained many at a time in each process, see
    :func:`puma.models.batched.train_many`; all others one by one.

    Args:
        dataset: The data.
        members: (k, n) which of the training and then the test rows each model is trained on.
        trainer: Its ``fit`` trains them.
        model: Their architecture.
        seed: Determines each model's own seed of weights and batches, whatever ``jobs`` is.
        jobs: How many processes train at once.
        label: Of the progress bar.
        progress: Whether to show it.

    Raises:
        AuditError: ``members`` has another shape, or a model would see fewer than two rows.
    """
    n = len(dataset.train) + len(dataset.test)
    if members.ndim != 2 or members.shape[1] != n or (members.sum(1) < 2).any():
        raise AuditError(
            f"members must say of each of the {n} rows which models see it, at least two rows a "
            f"model, got shape {members.shape}"
        )
    seeds = [int(each) for each in np.random.SeedSequence(seed).generate_state(len(members))]
    plain = trainer.original == ORIGINAL
    together = plain and stackable(build_model(model, dataset, seed=seed), dataset.train.features)
    size = LOCKSTEP if together else 1
    fit = _fit_together if together else _fit_one
    tasks = [
        (dataset, members[start : start + size], trainer, model, seeds[start : start + size])
        for start in range(0, len(members), size)
    ]
    values = np.empty(members.shape)
    correct = np.empty(members.shape, dtype=bool)
    with tqdm(total=len(members), desc=label, unit="model", disable=not progress) as bar:
        for place, found in run_all(fit, tasks, jobs=jobs):
            for line, (margins, right) in enumerate(found, start=place * size):
                values[line], correct[line] = margins, right
                bar.update()
    return Population(values, correct, members)


def _fit_together(
    dataset: Dataset,
    members: Mask,
    trainer: RemovalMethod,
    settings: ModelSettings,
    seeds: list[int],
) -> list[tuple[Array, Mask]]:
    models = [build_model(settings, dataset, seed=seed) for seed in seeds]
    rows = [torch.from_numpy(line).nonzero()[:, 0] for line in members]
    train_many(models, _pooled(dataset), rows, trainer.training, seeds=seeds, progress=False)
    return [_applied(model, dataset) for model in models]


def _fit_one(
    dataset: Dataset,
    members: Mask,
    trainer: RemovalMethod,
    settings: ModelSettings,
    seeds: list[int],
) -> list[tuple[Array, Mask]]:
    (member,), (seed,) = members, seeds
    seen = _pooled(dataset).subset(torch.from_numpy(member))
    data = Dataset(dataset.name, seen, dataset.test, dataset.classes)
    model = build_model(settings, dataset, seed=seed)
    own = trainer.model_copy(update={"seed": seed})
    return [_applied(own.fit(model, data, progress=False).predictor, dataset)]


def _applied(model: nn.Module, dataset: Dataset) -> tuple[Array, Mask]:
    """The margins of every row, and whether the model predicts its label."""
    found = predict(model, dataset.train, dataset.test)
    return found.margins, (found.after.argmax(1) == found.labels).numpy()


def _pooled(dataset: Dataset) -> Examples:
    parts = (dataset.train, dataset.test)
    return Examples(
        torch.cat([part.features for part in parts]),
        torch.cat([part.labels for part in parts]),
        np.concatenate([part.subject_ids for part in parts]),
    )


def everybody(dataset: Dataset, models: int) -> Mask:
    """(models, n) members of originals: every training row and no test row."""
    trained = np.arange(len(dataset.train) + len(dataset.test)) < len(dataset.train)
    return np.tile(trained, (models, 1))


def without(dataset: Dataset, deletion_set: DeletionSet, models: int) -> Mask:
    """(models, n) members of retrained models: every training row outside the deletion set."""
    seen = everybody(dataset, models)
    seen[:, deletion_set.rows.numpy()] = False
    return seen


def halves(dataset: Dataset, models: int, *, seed: int) -> Mask:
    """(models, n) members of LiRA's shadow models: random halves of all rows.

    Every row is in exactly half of the models (Carlini et al., 2022). If ``models`` is odd, the
    last one has a half that no other model complements.
    """
    n = len(dataset.train) + len(dataset.test)
    generator = np.random.default_rng(seed)
    drawn: list[Mask] = []
    for _ in range((models + 1) // 2):
        half = generator.permutation(n) < n // 2
        drawn += [half, ~half]
    return np.array(drawn[:models])


def seeds_of(seed: int, names: Sequence[str]) -> dict[str, int]:
    """Derive an unrelated seed for each name, none of them the audited model's own ``seed``."""
    drawn = np.random.SeedSequence([seed, len(names)]).generate_state(len(names))
    return {name: int(value) for name, value in zip(names, drawn, strict=True)}
