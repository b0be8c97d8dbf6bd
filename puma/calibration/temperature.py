"""Temperature scaling (Guo et al., 2017): the baseline that a repair of the weights must beat."""

from __future__ import annotations

import copy
import math

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from puma.calibration.ece import check_labels
from puma.data.base import Examples
from puma.errors import DataError, SettingsError, require_type
from puma.influence.flat_model import require_examples
from puma.models import predictions
from puma.models.tasks import require_classes

# The temperature is looked for within these factors of the logits' own scale.
FACTORS = (1e-6, 1e6)


class TemperatureScaled(nn.Module):
    """A copy of ``model`` whose logits are divided by ``temperature``, a buffer.

    Above 1 it is less confident. The most probable class, and so the accuracy, stays the same.

    Raises:
        SettingsError: ``temperature`` is not finite and > 0.
    """

    temperature: Tensor

    def __init__(self, model: nn.Module, temperature: float) -> None:
        super().__init__()
        if not (math.isfinite(temperature) and temperature > 0):
            raise SettingsError(f"temperature must be finite and > 0, got {temperature}")
        self.model = copy.deepcopy(model)
        self.training = model.training
        like = next(self.model.parameters(), torch.zeros(()))
        value = torch.tensor(temperature, dtype=like.dtype, device=like.device)
        self.register_buffer("temperature", value)

    def forward(self, features: Tensor) -> Tensor:
        """(B, classes) logits; of two classes by one logit (B, 1)."""
        logits: Tensor = self.model(features)
        return logits / self.temperature


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Find the T > 0 at which the mean cross-entropy of (n, classes) ``logits``/T is smallest.

    There is one minimum: the loss is convex in 1/T.

    Raises:
        DataError: Wrong shapes, numbers that are not finite, or no T is best. That is so when
            every label has the largest logit (the loss falls all the way to T = 0), or when the
            labels' logits are on average no larger than the others' (it falls all the way to
            T = infinity).
    """
    require_type(logits, Tensor, "logits", DataError, "convert it with torch.as_tensor")
    floating = logits.is_floating_point()
    if not floating or logits.ndim != 2 or 0 in logits.shape or not logits.isfinite().all():
        raise DataError(
            "logits must be finite, one row per example and one column per class, got shape "
            f"{tuple(logits.shape)} of {logits.dtype} with "
            f"{int((~torch.isfinite(logits)).sum())} not finite"
        )
    check_labels(labels, *logits.shape)
    logits = logits.detach().double()
    own = logits.gather(1, labels.long()[:, None])[:, 0]
    behind = logits.max(1).values - own
    if not (behind > 0).any():
        raise DataError(
            f"all {len(labels)} answers are right, so the loss falls for ever as the temperature "
            "goes to 0; fit it on rows that the model was not trained on"
        )
    if own.mean() <= logits.mean():
        raise DataError(
            "the model answers no better than at random, so the loss falls for ever as the "
            "temperature grows; check that logits and labels belong together"
        )

    def loss(log_temperature: float) -> float:
        return cross_entropy(logits / math.exp(log_temperature), labels.long()).item()

    spread = logits.std(1).mean().item()
    bounds = [math.log(spread * factor) for factor in FACTORS]
    best = float(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-8}).x)
    if min(best - bounds[0], bounds[1] - best) < 1e-3:
        raise DataError(
            f"no temperature within {FACTORS[0]:g} to {FACTORS[1]:g} times the logits' deviation "
            f"of {spread:.3g} is best; check that logits and labels belong together"
        )
    return math.exp(best)


def temperature_scaled(model: nn.Module, examples: Examples) -> TemperatureScaled:
    """Copy ``model`` with the temperature that is best on ``examples``, in its own mode.

    Fit on held-out rows: on training rows the temperature shows how confident the model is of
    what it has memorised. Raises what :func:`fit_temperature` raises, and DataError for a
    regression.
    """
    require_examples(examples, "the temperature")
    require_classes(examples, "a temperature", "it has no probabilities to correct")
    fitted = fit_temperature(predictions.predicted(model, examples), examples.labels)
    return TemperatureScaled(model, fitted)
