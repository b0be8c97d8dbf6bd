"""What a row may do harm to: the criteria C of psi, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from puma.data.base import Dataset, Examples
from puma.errors import SettingsError
from puma.influence import Criterion, FlatModel, MeanLoss
from puma.influence.soft_ece import SoftECE


@dataclass(frozen=True)
class TrainingObjective:
    """J(θ) = mean cross-entropy over ``examples`` + ``weight_decay``/2·‖θ‖², as training has it.

    Raises DataError for no examples, SettingsError for a weight decay that is negative.
    """

    examples: Examples
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        MeanLoss(self.examples)  # refuses no examples
        require_weight_decay(self.weight_decay)

    def value(self, flat: FlatModel, vector: Tensor) -> float:
        """J at ``vector`` (p,), in nats."""
        squared = float(vector.double() @ vector.double())
        return MeanLoss(self.examples).value(flat, vector) + self.weight_decay / 2 * squared

    def gradient(self, flat: FlatModel) -> Tensor:
        """(p,) ∇J at ``flat.vector``; 0 where training has come to its optimum."""
        return MeanLoss(self.examples).gradient(flat) + self.weight_decay * flat.vector


@dataclass(frozen=True)
class CriterionKind:
    """``build(examples, weight_decay)`` for the examples that ``over`` picks from a dataset."""

    over: Callable[[Dataset], Examples]
    build: Callable[[Examples, float], Criterion]

    def __call__(self, dataset: Dataset, weight_decay: float) -> Criterion:
        return self.build(self.over(dataset), weight_decay)


def _train(dataset: Dataset) -> Examples:
    return dataset.train


def _test(dataset: Dataset) -> Examples:
    return dataset.test


# training_loss: J itself. Its gradient vanishes at the optimum, and psi with it: noise.
# unregularised_loss: J without its L2 term; ∇C = −weight_decay·θ at the optimum of a model that
#   was trained with it, and 0 for one that was not.
# validation_loss: the mean loss of dataset.test, which must be clean. Whoever repairs labels by it
#   has used the test rows: the test accuracy measured afterwards is no longer unbiased.
# soft_ece: the soft-binned calibration error on the training rows (Appendix E).
CRITERIA: dict[str, CriterionKind] = {
    "training_loss": CriterionKind(_train, TrainingObjective),
    "unregularised_loss": CriterionKind(_train, lambda examples, _: MeanLoss(examples)),
    "validation_loss": CriterionKind(_test, lambda examples, _: MeanLoss(examples)),
    "soft_ece": CriterionKind(_train, lambda examples, _: SoftECE(examples)),
}


def require_criterion(name: str, weight_decay: float) -> None:
    """Raise SettingsError for a name that is not in CRITERIA or a bad weight decay."""
    if name not in CRITERIA:
        raise SettingsError(
            f"unknown criterion {name!r}; choose one of {', '.join(sorted(CRITERIA))}"
        )
    require_weight_decay(weight_decay)


def require_weight_decay(weight_decay: float) -> None:
    """Raise SettingsError unless it is finite and >= 0."""
    if not (math.isfinite(weight_decay) and weight_decay >= 0):
        raise SettingsError(f"weight_decay must be finite and >= 0, got {weight_decay}")
