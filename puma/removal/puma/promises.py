"""What a removal keeps: criteria, and how far each may move."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from puma.data.base import Dataset
from puma.errors import SettingsError
from puma.influence import Criterion, FlatModel, OwnFunction, preserved_criterion
from puma.influence.sharding import agreed
from puma.removal.results import Trained
from puma.requests.deletion_set import DeletionSet
from puma.settings import PreservedCriterion

REPEATS = 1e-6  # how near each other a criterion of the user's own is, computed twice


@dataclass(frozen=True)
class Promise:
    """A criterion that may move by its budget, from what it is of the original.

    Attributes:
        title: Its name in metrics and messages.
        criterion: C.
        budget: Largest allowed |change| (Eq. 2).
        before: C of the original.
    """

    title: str
    criterion: Criterion
    budget: float
    before: float

    def drift(self, flat: FlatModel, vector: Tensor) -> float:
        """C at ``vector`` minus C of the original."""
        return agreed(self.criterion.value(flat, vector)) - self.before

    def keeps(self, drift: float) -> bool:
        """Return whether |drift| keeps the budget."""
        return abs(drift) <= self.budget  # False also for NaN


def retained_data(trained: Trained, deletion_set: DeletionSet) -> Dataset:
    """The data of ``trained`` without the training and validation rows of the removed people."""
    return replace(deletion_set, dataset=trained.dataset).remaining


def promises(
    wanted: tuple[PreservedCriterion, ...],
    retained: Dataset,
    flat: FlatModel,
    *,
    weight_decay: float,
    sample: int | None = None,
    seed: int = 0,
) -> tuple[Promise, ...]:
    """Make the criteria of a removal, and measure them of the original.

    Args:
        wanted: Which.
        retained: See :func:`retained_data`.
        flat: The original.
        weight_decay: Of training.
        sample: Measure each on so many of its rows, drawn with ``seed``; None: on all.
        seed: Of the samples.

    Raises:
        SettingsError: A criterion cannot be made, or is not finite, or not the same twice.
        DataError: There is no such group, or too few people are in it or outside of it.
    """
    found = []
    for each in wanted:
        criterion = preserved_criterion(each, retained, weight_decay, sample=sample, seed=seed)
        before = agreed(criterion.value(flat, flat.vector))
        if before - before != 0:  # infinite, or NaN
            raise SettingsError(
                f"puma.preserve: {each.title} of the original is {before}; keep a criterion "
                "that is finite"
            )
        own = isinstance(criterion, OwnFunction)
        again = agreed(criterion.value(flat, flat.vector)) if own else before
        if not math.isclose(again, before, rel_tol=REPEATS, abs_tol=REPEATS * each.budget):
            raise SettingsError(
                f"puma.preserve: {each.title} of the original is {before:.6g}, and {again:.6g} "
                "the second time, for the same rows; keep a criterion that draws nothing, and "
                "keeps nothing from one call to the next"
            )
        found.append(Promise(each.title, criterion, each.budget, before))
    return tuple(found)
