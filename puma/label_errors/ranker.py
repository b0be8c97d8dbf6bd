"""What every ranker of training rows is: settings, and one method that gives the scores."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from puma.data.base import Dataset
from puma.errors import DataError


class Ranker(Protocol):
    """Orders the training rows by how likely their labels are wrong.

    A ranker that measures harm to a criterion has the fields ``criterion``, a name in
    :data:`puma.influence.CRITERIA`, and ``weight_decay``, what the model was trained with.

    Attributes:
        name: Its name in :data:`puma.label_errors.RANKERS`.
    """

    name: ClassVar[str]

    def suspicion(self, model: nn.Module, dataset: Dataset, *, progress: bool = False) -> Tensor:
        """(n,) float64 on the CPU for the rows of ``dataset.train`` in their order.

        Higher: more suspect. Only the order compares between rankers, the unit is each one's own.
        ``model`` was trained on ``dataset.train`` and is left as it was, as is the global random
        state. ``progress`` shows a bar where the work takes long.
        """
        ...


def as_suspicion(scores: Tensor, name: str) -> Tensor:
    """``scores`` as a ranker returns them. Raises DataError when some are NaN or infinite."""
    scores = scores.detach().to("cpu", torch.float64)
    if not torch.isfinite(scores).all():
        raise DataError(
            f"{name}: {int((~torch.isfinite(scores)).sum())} of {len(scores)} scores are NaN or "
            "infinite; check the model's parameters and its losses"
        )
    return scores
