"""The strength of the signal in ∇C: where ∇C vanishes, ψ ranks the rows by noise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from puma.data.base import Dataset
from puma.errors import SettingsError, require_seed
from puma.influence import FlatModel
from puma.influence.criteria import CRITERIA

SPLITS = 8
# Chosen on four sets in the plane with a tenth of the labels flipped, five seeds, the paper's
# network after 50 or 200 epochs (40 runs), or 50 with weight decay (14): those runs whose loss
# finds at least .3 of the flips in a tenth of the rows. The shares below are of these same runs,
# not of fresh ones. Below 0.9 lie:
#   training loss, without / with weight decay 0.01    85 % / 57 %   (finds .51 / .61 of the loss's)
#   validation loss, either                                   0 %   (.84, .89)
#   unregularised loss, with weight decay                     0 %   (.91)
#   calibration error, without / with weight decay     23 % / 0 %    (.76, .93)
# The plain length, H = I, is a worse judge: 60 % / 71 %, 5 % / 14 %, 57 %, 30 % / 0 %.
WEAK = 0.9


class WeakSignalWarning(UserWarning):
    """∇C is no longer than chance makes it: the scores are noise."""


def signal_strength(
    flat: FlatModel,
    dataset: Dataset,
    criterion: str,
    *,
    weight_decay: float = 0.0,
    invert: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
) -> float:
    """√(∇CᵀH⁻¹∇C) in units of what chance gives; free of scale, 0 where ∇C = 0.

    Chance: the criterion's examples are split at random into halves A and B, SPLITS times, and
    d = (∇C_A − ∇C_B)/2 takes the place of ∇C. For a mean over examples that is ∇C with its
    summands' signs drawn at random, of expected square Σ‖g_i‖²/n², with no per-example gradient
    formed; for the calibration error it is similar. The result is √(∇CᵀH⁻¹∇C / mean dᵀH⁻¹d):
    about 1 for examples that the parameters have neither been fitted to nor miss systematically,
    close to 0 at the optimum of C.

    At an optimum with weight decay this is small also for "unregularised_loss", though
    ∇C = −decay·θ is no noise there: a false alarm for a logistic regression, not seen for
    networks.

    Args:
        flat: The model.
        dataset: Where the criterion's examples come from.
        criterion: A name in :data:`puma.influence.CRITERIA`.
        weight_decay: What the model was trained with.
        invert: The map v -> H⁻¹v, None for H = I. Measure in the metric of the ranker: an
            optimiser that has not settled leaves a ∇J that is long, but lies along the directions
            of high curvature, which H⁻¹ takes out.
        seed: Of the splits; the global random state is not used.

    Returns:
        A number >= 0; inf when all halves agree, as a single example does with itself.

    Raises:
        SettingsError: A bad seed.
    """
    require_seed(seed, SettingsError)
    kind = CRITERIA[criterion]
    examples = kind.over(dataset)
    n = len(examples)
    gradient = kind(dataset, weight_decay).gradient(flat)
    squared = _squared(gradient, invert)
    if squared == 0:
        return 0.0
    if n == 1:
        return math.inf
    generator = torch.Generator().manual_seed(seed)
    total = 0.0
    for _ in range(SPLITS):
        order = torch.randperm(n, generator=generator).to(examples.labels.device)
        first, second = (
            kind.build(examples.subset(half), weight_decay).gradient(flat)
            for half in (order[: n // 2], order[n // 2 :])
        )
        total += _squared((first - second) / 2, invert)
    return math.sqrt(squared / (total / SPLITS)) if total else math.inf


def warn_if_weak(strength: float, criterion: str, name: str) -> None:
    """Warn of noise when ``strength`` is below WEAK; called by a ranker's ``suspicion``."""
    if strength >= WEAK:
        return
    remedy = "criterion 'validation_loss' with clean held-out rows"
    if criterion == "validation_loss":
        remedy = "more held-out rows"
    warnings.warn(
        f"{name}: the gradient of {criterion} is {strength:.2g} times as long as chance makes it "
        f"(below {WEAK} is noise), as near an optimum of {criterion}, so this ranking says little; "
        f"use {remedy}, or ranker 'loss'",
        WeakSignalWarning,
        stacklevel=3,
    )


def _squared(vector: Tensor, invert: Callable[[Tensor], Tensor] | None) -> float:
    """Compute vᵀH⁻¹v."""
    image = vector if invert is None else invert(vector)
    return float(vector.double() @ image.double())
