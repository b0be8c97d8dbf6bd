"""Many models of the same data, each trained on a known part of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm

from puma.audit.predictions import predict
from puma.data.base import Dataset
from puma.errors import AuditError
from puma.influence.margin_gram import margin_gram
from puma.models import build_model
from puma.models.batched import stackable, train_many
from puma.models.parallel import run_all
from puma.models.tasks import hits
from puma.project.files import PRIVATE, sha256, written
from puma.references.population import Array, Mask, Population
from puma.removal.base import RemovalMethod
from puma.requests.deletion_set import DeletionSet
from puma.settings import ORIGINAL, ModelSettings

# At most so many models are trained in lockstep. A constant: rounding must not depend on jobs.
LOCKSTEP = 32
KERNEL_EVERY = 2  # of a pool's models, every second one is enough for their mean kernel

_Applied = tuple[Array, Mask, Array | None]


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
    population, _ = train_models(
        dataset, members, trainer, model, seed=seed, jobs=jobs, label=label, progress=progress
    )
    return population


def train_models(
    dataset: Dataset,
    members: Mask,
    trainer: RemovalMethod,
    model: ModelSettings,
    *,
    seed: int,
    jobs: int,
    label: str,
    progress: bool,
    kernel_every: int = 0,
    resume: Path | None = None,
) -> tuple[Population, Array | None]:
    """Train as :func:`train_population`, and average the kernels of some of the models.

    Args:
        dataset: See :func:`train_population`, as all that is not named here.
        members: See there.
        trainer: See there.
        model: See there.
        seed: See there.
        jobs: See there.
        label: See there.
        progress: See there.
        kernel_every: Of so many models, one gives its kernel; 0: none does.
        resume: The folder in which what each model predicts is kept as soon as it is trained;
            what is there already is not trained again. Empty it when code of PUMA or of the model
            changes. Only models that are trained one by one take long enough to be kept.

    Returns:
        The population, and the (N, N) mean of :func:`puma.influence.margin_gram.margin_gram` over
        every ``kernel_every``-th model; None where that is 0.
    """
    n = len(dataset.train) + len(dataset.test)
    if members.ndim != 2 or members.shape[1] != n or (members.sum(1) < 2).any():
        raise AuditError(
            f"members must say of each of the {n} rows which models see it, at least two rows a "
            f"model, got shape {members.shape}"
        )
    seeds = [int(each) for each in np.random.SeedSequence(seed).generate_state(len(members))]
    kernels = [kernel_every > 0 and line % kernel_every == 0 for line in range(len(members))]
    plain = trainer.original == ORIGINAL
    together = plain and stackable(
        build_model(model, dataset, seed=seed), dataset.train.features, trainer.training
    )
    size = LOCKSTEP if together else 1
    fit = _fit_together if together else partial(_fit_one_or_resume, resume)
    groups = [
        _Group(
            dataset,
            members[start : start + size],
            trainer,
            model,
            seeds[start : start + size],
            kernels[start : start + size],
        )
        for start in range(0, len(members), size)
    ]
    values = np.empty(members.shape)
    correct = np.empty(members.shape, dtype=bool)
    grams: list[Array] = []
    with (
        tqdm(total=len(members), desc=label, unit="model", disable=not progress) as bar,
        closing(run_all(fit, [(group,) for group in groups], jobs=jobs)) as done,
    ):
        for place, found in done:
            for line, (margins, right, gram) in enumerate(found, start=place * size):
                values[line], correct[line] = margins, right
                if gram is not None:
                    grams.append(gram)
                bar.update()
    return Population(values, correct, members), np.mean(grams, 0) if grams else None


@dataclass(frozen=True)
class _Group:
    """The models that one task trains: several in lockstep, or a single one."""

    dataset: Dataset
    members: Mask
    trainer: RemovalMethod
    model: ModelSettings
    seeds: list[int]
    kernels: list[bool]

    @property
    def digest(self) -> str:
        """Of all that the models depend on, but for code."""
        made_from = (
            self.dataset.digest,
            self.trainer.model_dump_json(),
            self.model.model_dump_json(),
            json.dumps([self.seeds, self.kernels]),
        )
        return sha256(self.members.tobytes(), *(each.encode() for each in made_from))


def _fit_together(group: _Group) -> list[_Applied]:
    data = group.dataset
    models = [build_model(group.model, data, seed=seed) for seed in group.seeds]
    rows = [torch.from_numpy(line).nonzero()[:, 0] for line in group.members]
    train_many(models, data.rows, rows, group.trainer.training, seeds=group.seeds, progress=False)
    return [_applied(*each, data) for each in zip(models, group.kernels, strict=True)]


def _fit_one_or_resume(resume: Path | None, group: _Group) -> list[_Applied]:
    if resume is None:
        return _fit_one(group)
    path = resume / f"{group.digest}.npz"
    if not path.exists():
        ((margins, correct, gram),) = _fit_one(group)
        parts: dict[str, Any] = {"margins": margins, "correct": correct}
        if gram is not None:
            parts["gram"] = gram
        with written(path, mode=PRIVATE) as stream:
            np.savez(stream, **parts)
    with np.load(path, allow_pickle=False) as stored:
        return [(stored["margins"], stored["correct"], stored.get("gram"))]


def _fit_one(group: _Group) -> list[_Applied]:
    (member,), (seed,), (kernel,) = group.members, group.seeds, group.kernels
    whole = group.dataset
    seen = whole.rows.subset(torch.from_numpy(member))
    data = Dataset(whole.name, seen, whole.test, whole.classes)
    model = build_model(group.model, whole, seed=seed)
    own = group.trainer.model_copy(update={"seed": seed})
    return [_applied(own.fit(model, data, progress=False).predictor, kernel, whole)]


def _applied(model: nn.Module, kernel: bool, dataset: Dataset) -> _Applied:
    """The margins of every row, whether the model predicts its label, and the kernel if wanted."""
    found = predict(model, dataset.train, dataset.test)
    correct = np.zeros(len(found), dtype=bool)
    if not dataset.task.is_regression:
        correct = hits(found.after, found.labels).numpy()
    gram = margin_gram(model, dataset.rows).numpy() if kernel else None
    return found.margins, correct, gram


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
