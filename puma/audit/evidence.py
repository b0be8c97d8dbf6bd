"""The models that an audit compares with, trained once for many audits."""

from __future__ import annotations

from dataclasses import dataclass

from puma.audit.attacks import ATTACKS, Attack
from puma.audit.lira import LiRA
from puma.audit.population import (
    Mask,
    Population,
    everybody,
    halves,
    seeds_of,
    train_population,
    without,
)
from puma.audit.shadow import ShadowAttack
from puma.data.base import Dataset
from puma.models.parallel import cores
from puma.removal import build_trainer
from puma.requests.deletion_set import DeletionSet
from puma.settings import ORIGINAL, Settings

SHADOWS, WITH, WITHOUT = "shadows", "with", "without"


@dataclass(frozen=True, eq=False)
class Evidence:
    """What audits of one dataset, original and request have in common.

    shadow: the paper's attack. lira: the per-row one. with_rows, without_rows: models trained
    like the original on everybody, and on everybody but the removed people.
    """

    shadow: ShadowAttack
    lira: LiRA
    with_rows: Population
    without_rows: Population

    @property
    def attacks(self) -> dict[str, Attack]:
        return {**ATTACKS, "shadow": self.shadow.scores, "lira": self.lira.scores}


def train_shadows(dataset: Dataset, settings: Settings, *, progress: bool = True) -> Population:
    """LiRA's shadow models: plain models, on random halves of the training and test rows.

    They depend on the data and the settings, not on the request.
    """
    seed = _seeds(settings)[SHADOWS]
    members = halves(dataset, settings.audit.shadow_models, seed=seed)
    return train_population(
        dataset,
        members,
        build_trainer(ORIGINAL, settings),
        settings.model,
        seed=seed,
        jobs=settings.audit.jobs or cores(),
        label="shadows of LiRA",
        progress=progress,
    )


def train_references(
    dataset: Dataset,
    deletion_set: DeletionSet,
    original: str,
    settings: Settings,
    *,
    progress: bool = True,
) -> tuple[Population, Population]:
    """Models trained as ``original`` is, with the rows of ``deletion_set`` and without them.

    SISA's ensembles are compared with SISA's, so that what the method does to every row's
    answer is not taken for what the removal did to some.
    """
    count = settings.audit.models
    return (
        _train(WITH, everybody(dataset, count), dataset, original, settings, progress=progress),
        train_without(dataset, deletion_set, original, settings, progress=progress),
    )


def train_without(
    dataset: Dataset,
    deletion_set: DeletionSet,
    original: str,
    settings: Settings,
    *,
    progress: bool = True,
) -> Population:
    """Of :func:`train_references`, those without the rows, which alone depend on them."""
    members = without(dataset, deletion_set, settings.audit.models)
    return _train(WITHOUT, members, dataset, original, settings, progress=progress)


def _train(
    name: str,
    members: Mask,
    dataset: Dataset,
    original: str,
    settings: Settings,
    *,
    progress: bool,
) -> Population:
    return train_population(
        dataset,
        members,
        build_trainer(original, settings),
        settings.model,
        seed=_seeds(settings)[name],
        jobs=settings.audit.jobs or cores(),
        label=f"{original} {name} the rows",
        progress=progress,
    )


def _seeds(settings: Settings) -> dict[str, int]:
    return seeds_of(settings.seed, (SHADOWS, WITH, WITHOUT))
