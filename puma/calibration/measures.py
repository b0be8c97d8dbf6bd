"""A model's calibration on given rows, before a repair and after it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from puma.calibration.ece import Reliability, reliability
from puma.data.base import Examples
from puma.influence import FlatModel, SoftECE
from puma.influence.flat_model import require_examples
from puma.models import predictions
from puma.models.tasks import require_classes


@dataclass(frozen=True)
class Calibration:
    """A model's calibration on given rows.

    Attributes:
        soft_ece: See :class:`puma.influence.SoftECE`.
        hard_ece: Between 0 and 1.
        accuracy: Share of right predictions.
        loss: Mean cross-entropy in nats, without class weights.
    """

    soft_ece: float
    hard_ece: float
    accuracy: float
    loss: float


def reliability_of(model: nn.Module, examples: Examples, *, bins: int = 15) -> Reliability:
    """Bin the model's predictions for ``examples``; see :func:`puma.calibration.reliability`.

    The model is left as it was. Raises DataError when there are no examples, or no classes.
    """
    require_examples(examples, "the reliability")
    require_classes(examples, "the reliability", "look at the sizes of its errors")
    logits = predictions.predicted(model, examples)
    return reliability(logits.double().softmax(1), examples.labels, bins=bins)


def measure(model: nn.Module, criterion: SoftECE) -> Calibration:
    """Measure the calibration on the criterion's examples, with its number of bins.

    The model is left as it was.
    """
    examples = criterion.examples
    flat = FlatModel(model)
    return Calibration(
        soft_ece=criterion.value(flat, flat.vector),
        hard_ece=reliability_of(model, examples, bins=criterion.bins).ece,
        accuracy=predictions.accuracy(model, examples),
        loss=predictions.losses(model, examples).double().mean().item(),
    )
