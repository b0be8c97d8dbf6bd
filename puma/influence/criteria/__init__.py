"""Criteria C: what a model is judged by. A new one is one file and one row of CRITERIA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from puma.data.base import Dataset, Examples
from puma.errors import SettingsError
from puma.influence.criteria.criterion import Criterion
from puma.influence.criteria.mean_loss import MeanLoss
from puma.influence.criteria.soft_ece import SoftECE
from puma.influence.criteria.training_objective import TrainingObjective, require_weight_decay


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


def require_criterion(name: str, weight_decay: float) -> None:
    """Raise SettingsError for a name that is not in CRITERIA or a bad weight decay."""
    if name not in CRITERIA:
        raise SettingsError(
            f"unknown criterion {name!r}; choose one of {', '.join(sorted(CRITERIA))}"
        )
    require_weight_decay(weight_decay)


__all__ = [
    "CRITERIA",
    "Criterion",
    "CriterionKind",
    "MeanLoss",
    "SoftECE",
    "TrainingObjective",
    "require_criterion",
]
