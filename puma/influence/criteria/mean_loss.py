"""The mean loss as a criterion: what must not change in Eq. 2."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.data.base import Examples
from puma.influence.derivatives import weighted_gradient
from puma.influence.flat_model import FlatModel, batches, require_examples
from puma.influence.sharding import share, summed
from puma.models.device import exact


@dataclass(frozen=True)
class MeanLoss:
    """The task's mean loss over ``examples``, with class weights, in nats.

    Raises:
        DataError: There are no examples.
    """

    examples: Examples
    batch_size: int | None = None

    def __post_init__(self) -> None:
        require_examples(self.examples, "the mean loss")

    @torch.no_grad()
    def value(self, flat: FlatModel, vector: Tensor) -> float:
        """Mean loss at ``vector`` (p,), summed in double precision."""
        total = 0.0
        part = share(len(self.examples))
        for features, labels in batches(flat, self.examples, self.batch_size, part=part):
            found = flat.losses(vector, features, labels, self.examples.task)
            total += exact(found).sum().item()
        return float(summed(torch.tensor(total, dtype=torch.float64))) / len(self.examples)

    def gradient(self, flat: FlatModel) -> Tensor:
        """(p,) gradient of the mean loss at ``flat.vector``."""
        n = len(self.examples)
        weights = torch.full((n,), 1 / n, dtype=flat.dtype, device=self.examples.labels.device)
        return weighted_gradient(flat, self.examples, weights, batch_size=self.batch_size)
