"""The training objective as a criterion: the mean loss and the L2 penalty."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from puma.data.base import Examples
from puma.errors import SettingsError
from puma.influence.criteria.mean_loss import MeanLoss
from puma.influence.flat_model import FlatModel
from puma.models.device import exact


@dataclass(frozen=True)
class TrainingObjective:
    """J(θ) = mean loss over ``examples`` + ``weight_decay``/2·‖θ‖², in nats.

    Raises:
        DataError: There are no examples.
        SettingsError: ``weight_decay`` is negative or not finite.
    """

    examples: Examples
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        MeanLoss(self.examples)  # refuses no examples
        require_weight_decay(self.weight_decay)

    def value(self, flat: FlatModel, vector: Tensor) -> float:
        """J at ``vector`` (p,), in nats."""
        squared = float(exact(vector) @ exact(vector))
        return MeanLoss(self.examples).value(flat, vector) + self.weight_decay / 2 * squared

    def gradient(self, flat: FlatModel) -> Tensor:
        """(p,) ∇J at ``flat.vector``; 0 where training has come to its optimum."""
        return MeanLoss(self.examples).gradient(flat) + self.weight_decay * flat.vector


def require_weight_decay(weight_decay: float) -> None:
    """Raise SettingsError unless it is finite and >= 0."""
    if not (math.isfinite(weight_decay) and weight_decay >= 0):
        raise SettingsError(f"weight_decay must be finite and >= 0, got {weight_decay}")
