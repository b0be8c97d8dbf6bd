"""The attacks and models that an audit uses, trained once for many audits."""

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
    """What audits of one dataset, original and request compare with.

    Attributes:
        shadow: The paper's attack.
        lira: The attack that compares row by row.
        with_rows: Models trained as the original was, on everybody.
        without_rows: Models trained so on everybody but the removed people: retrained models.
    """

    shadow: ShadowAttack
    lira: LiRA
    with_rows: Population
    without_rows: Population

    @property
    def attacks(self) -> dict[str, Attack]:
        """Every attack by its name in the metrics."""
        return {**ATTACKS, "shadow": self.shadow.scores, "lira": self.lira.scores}


def train_shadows(dataset: Dataset, settings: Settings, *, progress: bool = True) -> Population:
    """Train LiRA's shadow models: plain models, on random halves of the training and test rows.

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
    """Train models as ``original`` is, with the rows of ``deletion_set`` and without them.

    SISA's ensembles are compared with SISA's: otherwise what the method does to every prediction
    would be taken for what the removal did to some.

    Returns:
        :attr:`Evidence.with_rows` and :attr:`Evidence.without_rows`.
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
    """Train :attr:`Evidence.without_rows`, the only evidence that depends on the request."""
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
