"""The attacks and models that an audit uses, trained once for many audits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from puma.audit.attacks import ATTACKS, OF_CLASSES, Attack
from puma.audit.lira import LiRA
from puma.audit.population import (
    KERNEL_EVERY,
    everybody,
    halves,
    seeds_of,
    train_models,
    without,
)
from puma.audit.shadow import ShadowAttack
from puma.data.base import Dataset
from puma.errors import SettingsError
from puma.models import build_model
from puma.models.batched import stackable
from puma.models.parallel import cores, running_on
from puma.models.tasks import likelihood_of
from puma.references import LeaveOutRidge, Pool, Population, leave_out_groups
from puma.references.kernel_ridge import MOST_ROWS
from puma.references.partitions import PARTS
from puma.references.population import Array, Mask
from puma.references.short_training import COPIES, short_margins, starts_of, train_short
from puma.removal import build_trainer
from puma.requests.deletion_set import DeletionSet
from puma.settings import ORIGINAL, EvidenceSource, Settings

SHADOWS, WITH, WITHOUT = "shadows", "with", "without"
POOL, POOL_EVERYBODY = "pool", "pool of everybody"


@dataclass(frozen=True, eq=False)
class Evidence:
    """What audits of one dataset, original and request compare with.

    Attributes:
        shadow: The paper's attack.
        lira: The attack that compares row by row.
        with_rows: Models trained as the original was, on everybody.
        without_rows: Models trained so on everybody but the removed people: retrained models,
            or what the pool predicts of them.
        source: "retrain" or "pool": what ``without_rows`` are.
    """

    shadow: ShadowAttack
    lira: LiRA
    with_rows: Population
    without_rows: Population
    source: EvidenceSource = "retrain"

    @property
    def attacks(self) -> dict[str, Attack]:
        """Every attack by its name in the metrics; those of classes only where there are some."""
        plain = {
            name: attack
            for name, attack in ATTACKS.items()
            if self.shadow.classes or name not in OF_CLASSES
        }
        return {**plain, "shadow": self.shadow.scores, "lira": self.lira.scores}


def train_shadows(dataset: Dataset, settings: Settings, *, progress: bool = True) -> Population:
    """Train LiRA's shadow models: plain models, on random halves of the training and test rows.

    They depend on the data and the settings, not on the request.
    """
    seed = _seeds(settings)[SHADOWS]
    members = halves(dataset, settings.audit.shadow_models, seed=seed)
    shadows, _ = _trained(
        dataset, members, ORIGINAL, settings, seed, label="shadows of LiRA", progress=progress
    )
    return shadows


def evidence_source(original: str, settings: Settings) -> EvidenceSource:
    """What versions made from ``original`` are audited with: the pool is of the plain one."""
    return settings.audit.evidence if original == ORIGINAL else "retrain"


def train_references(
    dataset: Dataset,
    deletion_set: DeletionSet,
    original: str,
    settings: Settings,
    *,
    progress: bool = True,
) -> tuple[Population, Population]:
    """Train models as ``original`` is, with the rows of ``deletion_set`` and without them.

    SISA's ensembles are compared with SISA's: otherwise what the method does to every prediction
    would be taken for what the removal did to some.

    Returns:
        :attr:`Evidence.with_rows` and :attr:`Evidence.without_rows`.
    """
    count = settings.audit.models
    with_rows, _ = _trained(
        dataset,
        everybody(dataset, count),
        original,
        settings,
        _seeds(settings)[WITH],
        label=f"{original} {WITH} the rows",
        progress=progress,
    )
    return with_rows, train_without(dataset, deletion_set, original, settings, progress=progress)


def train_pool(
    dataset: Dataset,
    settings: Settings,
    *,
    progress: bool = True,
    resume: Path | None = None,
) -> Pool:
    """Train the pool of the plain original, which serves every request.

    Without a kernel where there are more than :data:`puma.references.kernel_ridge.MOST_ROWS`
    training rows. ``resume``: see :func:`puma.audit.population.train_models`.

    Raises:
        SettingsError: ``settings.pool`` wants none.
    """
    seeds, n, models = _seeds(settings), len(dataset.train), settings.pool.models
    if models == 0:
        raise SettingsError("pool.models is 0, so there is no pool to train; set it to 32")
    groups = leave_out_groups(dataset, models // PARTS, seed=seeds[POOL])
    members = everybody(dataset, models)
    for line, rows in zip(members, groups, strict=True):
        line[rows] = False
    left_out, gram = _trained(
        dataset,
        members,
        ORIGINAL,
        settings,
        seeds[POOL],
        label="pool, each without a quarter",
        progress=progress,
        kernel_every=KERNEL_EVERY if n <= MOST_ROWS else 0,
        resume=resume,
    )
    with_everybody, _ = _trained(
        dataset,
        everybody(dataset, settings.pool.everybody),
        ORIGINAL,
        settings,
        seeds[POOL_EVERYBODY],
        label="pool, of everybody",
        progress=progress,
        resume=resume,
    )
    nobody = np.zeros(0, dtype=np.int64)
    initial = build_model(settings.model, dataset, seed=seeds[POOL])
    stacks = stackable(initial, dataset.train.features, settings.training)
    copies = COPIES if stacks else 1
    starts = starts_of(
        [build_model(settings.model, dataset, seed=seeds[POOL] + k) for k in range(copies)]
    )
    return Pool(
        left_out,
        with_everybody,
        None if gram is None else LeaveOutRidge.fit(gram, n, labels=_labels_of(dataset)),
        short_margins(
            dataset, initial, starts, [*groups, nobody], settings.training, progress=progress
        ),
        starts,
        dataset.digest,
    )


def _labels_of(dataset: Dataset) -> Array | None:
    """(N,) the labels of a regression in the unit of its margins."""
    labels = dataset.rows.labels.double()
    if not dataset.task.is_regression:
        return None
    margins: Array = -likelihood_of(dataset.task).margins(0 * labels[:, None], labels).numpy()
    return margins


def predict_without(
    pool: Pool, deletion_set: DeletionSet, settings: Settings, *, progress: bool = True
) -> Population:
    """What :func:`train_without` would return for the plain original, as the pool predicts it.

    The half of the pool that steers removals has no part in it.

    Raises:
        AuditError: The pool is of other data.
    """
    dataset = deletion_set.dataset
    pool.require(dataset)
    rows = deletion_set.rows.numpy()
    make_initial = partial(build_model, settings.model, dataset, seed=0)  # for its layers alone
    train_short(pool, dataset, make_initial, rows, settings.training, progress=progress)
    found = pool.predict(rows, half="audit")
    members = without(dataset, deletion_set, len(found.draws))
    return Population(found.draws, found.correct, members)


def train_without(
    dataset: Dataset,
    deletion_set: DeletionSet,
    original: str,
    settings: Settings,
    *,
    progress: bool = True,
    resume: Path | None = None,
) -> Population:
    """Train :attr:`Evidence.without_rows`, the only evidence that depends on the request.

    ``resume``: see :func:`puma.audit.population.train_models`.
    """
    members = without(dataset, deletion_set, settings.audit.models)
    population, _ = _trained(
        dataset,
        members,
        original,
        settings,
        _seeds(settings)[WITHOUT],
        label=f"{original} {WITHOUT} the rows",
        progress=progress,
        resume=resume,
    )
    return population


def _trained(
    dataset: Dataset,
    members: Mask,
    original: str,
    settings: Settings,
    seed: int,
    *,
    label: str,
    progress: bool,
    kernel_every: int = 0,
    resume: Path | None = None,
) -> tuple[Population, Array | None]:
    """:func:`puma.audit.population.train_models` with the trainer and the engine of settings."""
    with running_on(settings.engine):
        return train_models(
            dataset,
            members,
            build_trainer(original, settings),
            settings.model,
            seed=seed,
            jobs=settings.audit.jobs or cores(),
            label=label,
            progress=progress,
            kernel_every=kernel_every,
            resume=resume,
        )


def _seeds(settings: Settings) -> dict[str, int]:
    names = seeds_of(settings.seed, (SHADOWS, WITH, WITHOUT))
    return names | seeds_of(settings.seed, (POOL, POOL_EVERYBODY))
