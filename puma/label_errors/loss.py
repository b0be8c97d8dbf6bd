"""The trivial baseline, to be shown beside every other ranker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from puma.data.base import Dataset
from puma.label_errors.ranker import as_suspicion
from puma.models.predictions import losses


@dataclass(frozen=True)
class Loss:
    """The row's own loss in nats: what the model fits worst is most suspect.

    It is that of the task, without class weights: cross-entropy, or half the squared error.

    No derivative, one forward pass. The paper does not compare with it. A method that does not
    beat it has shown nothing. A model that has memorised its rows has no losses left to rank by.
    """

    name: ClassVar[str] = "loss"

    def suspicion(
        self,
        model: nn.Module,
        dataset: Dataset,
        *,
        progress: bool = False,  # noqa: ARG002
    ) -> Tensor:
        """(n,) nats, >= 0. Raises DataError when a loss is not finite."""
        return as_suspicion(losses(model, dataset.train), self.name)
