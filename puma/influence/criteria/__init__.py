"""Criteria C: what a model is judged by. A new one is one file and one row of CRITERIA.

A function of the user's own, "package.module:function", needs no row: see :class:`OwnFunction`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from puma.data.base import Dataset, Examples
from puma.data.groups import group
from puma.errors import SettingsError
from puma.influence.criteria.criterion import Criterion
from puma.influence.criteria.mean_loss import MeanLoss
from puma.influence.criteria.own_function import FORM, OwnFunction
from puma.influence.criteria.soft_ece import SoftECE
from puma.influence.criteria.training_objective import TrainingObjective, require_weight_decay
from puma.influence.curvature import sampled
from puma.settings import OWN_CODE, RETAINED_LOSS, PreservedCriterion


@dataclass(frozen=True)
class CriterionKind:
    """How a named criterion is made from a dataset.

    Attributes:
        over: Picks the examples that C is measured on.
        build: Makes C from these examples and the weight decay of training.
    """

    over: Callable[[Dataset], Examples]
    build: Callable[[Examples, float], Criterion]

    def __call__(self, dataset: Dataset, weight_decay: float) -> Criterion:
        """Make C for ``dataset``; ``weight_decay`` is that of training."""
        return self.build(self.over(dataset), weight_decay)


def _train(dataset: Dataset) -> Examples:
    return dataset.train


def _held_out(dataset: Dataset) -> Examples:
    return dataset.test if dataset.validation is None else dataset.validation


# training_loss: what training minimises. Its gradient vanishes at the optimum, and ψ is noise.
# unregularised_loss: the same without its L2 term. At the optimum of a model trained with weight
#   decay its gradient is −weight_decay·θ; without weight decay it is 0.
# validation_loss: the mean loss of dataset.validation, whose labels must be right; where there is
#   none, of dataset.test. Whoever repairs labels by the latter has used the test rows: the test
#   accuracy measured afterwards is too good.
# soft_ece: the soft-binned calibration error on the training rows (Appendix E).
CRITERIA: dict[str, CriterionKind] = {
    "training_loss": CriterionKind(_train, TrainingObjective),
    "unregularised_loss": CriterionKind(_train, lambda examples, _: MeanLoss(examples)),
    "validation_loss": CriterionKind(_held_out, lambda examples, _: MeanLoss(examples)),
    "soft_ece": CriterionKind(_train, lambda examples, _: SoftECE(examples)),
}
# What the mean loss is called where a removal keeps it: of all rows that stay, or of a group's.
OF_REMOVALS = {RETAINED_LOSS: "unregularised_loss", "group_loss": "unregularised_loss"}


def require_criterion(name: str, weight_decay: float) -> None:
    """Raise SettingsError for a name that is not in CRITERIA or a bad weight decay."""
    if name not in CRITERIA:
        raise SettingsError(
            f"unknown criterion {name!r}; choose one of {', '.join(sorted(CRITERIA))}"
        )
    require_weight_decay(weight_decay)


def require_preservable(name: str) -> None:
    """Raise SettingsError unless a removal can keep the criterion ``name``."""
    able = {*CRITERIA, *OF_REMOVALS}
    if name not in able and OWN_CODE not in name:
        raise SettingsError(
            f"puma.preserve: unknown criterion {name!r}; choose one of {', '.join(sorted(able))}, "
            f'or write "{FORM}"'
        )


def preserved_criterion(
    preserved: PreservedCriterion,
    dataset: Dataset,
    weight_decay: float,
    *,
    sample: int | None = None,
    seed: int = 0,
) -> Criterion:
    """Make the criterion that a removal is to keep.

    Args:
        preserved: Which one, and on which rows.
        dataset: Without the people to be removed.
        weight_decay: Of training.
        sample: Measure it on so many of its rows, drawn with ``seed``; None: on all.
        seed: Of the sample.

    Raises:
        SettingsError: There is no such criterion, or no validation rows.
        DataError: There is no such group, or too few people are in it or outside of it.
    """
    name = preserved.criterion
    require_preservable(name)
    examples = dataset.train
    if preserved.of_validation:
        if dataset.validation is None:
            raise SettingsError(
                f"puma.preserve: {preserved.title} is measured on validation rows, and dataset "
                f"{dataset.name!r} has none; set data.validation_fraction, such as to 0.2, or, "
                "where there were some, ask for it without the people to be removed"
            )
        examples = dataset.validation
    if preserved.where is not None:
        examples = group(examples, preserved.where)
    if sample is not None:
        examples = sampled(examples, sample, seed=seed)
    if OWN_CODE in name:
        return OwnFunction.named(name, examples)
    return CRITERIA[OF_REMOVALS.get(name, name)].build(examples, weight_decay)


__all__ = [
    "CRITERIA",
    "Criterion",
    "CriterionKind",
    "MeanLoss",
    "OwnFunction",
    "SoftECE",
    "TrainingObjective",
    "preserved_criterion",
    "require_criterion",
    "require_preservable",
]
