"""The models that the calibration benchmark repairs: two moons with wrong labels, three ways."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from benchmarks.label_errors import FLIP_SEED
from puma.data import Dataset, Examples, two_moons
from puma.errors import ModelError, SettingsError
from puma.label_errors import flip_labels
from puma.models import build_model, predictions
from puma.models.training import train
from puma.settings import Settings, TrainingSettings

VARIANTS = ("as_trained", "logits_x3", "overfitted")
SHARPENED = 3.0


@dataclass(frozen=True)
class Problem:
    """Two moons as of Appendix E, heavily corrupted.

    points: in all; settings.data.test_fraction of them test, a fifth of the others is held out.
    noise: their deviation. flipped: wrong labels among the rows for training. few: rows that the
    over-fitted model has of these, and their share of the wrong labels.

    Raises SettingsError for numbers that cannot be.
    """

    points: int = 5000
    noise: float = 0.35
    flipped: int = 100
    few: int = 300

    def __post_init__(self) -> None:
        if min(self.points, self.few, self.flipped + 1) < 1 or self.noise < 0:
            raise SettingsError(
                "points and few must be >= 1, flipped and noise >= 0, got "
                f"{self.points}, {self.few}, {self.flipped} and {self.noise}"
            )


@dataclass(frozen=True, repr=False)
class Trained:
    """A model, what it was trained on beside the test rows, and rows that are neither."""

    model: nn.Module
    dataset: Dataset
    held_out: Examples
    flipped_rows: int


def make(variant: str, seed: int, settings: Settings, problem: Problem) -> Trained:
    """The model ``variant`` of a seed, and its rows.

    Raises ModelError for "logits_x3" of a model whose logits are not its last nn.Linear's.
    """
    data = two_moons(
        seed=seed,
        test_fraction=settings.data.test_fraction,
        points=problem.points,
        noise=problem.noise,
    )
    n = len(data.train)
    # numpy's generator: training draws its batches by torch's from the same seed.
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    held_out = data.train.subset(order[: n // 5])
    examples = data.train.subset(order[n // 5 :])
    wrong, flipped = flip_labels(
        examples,
        problem.flipped / len(examples),
        n_classes=len(data.classes),
        seed=FLIP_SEED + seed,
    )
    training = settings.training
    if variant == "overfitted":
        few = torch.arange(problem.few)
        wrong, flipped = wrong.subset(few), flipped[few]
        training = hotter(training)
    dataset = Dataset(data.name, wrong, data.test, data.classes)
    model = build_model(settings.model, dataset, seed=seed)
    train(model, dataset.train, training, seed=seed, progress=False)
    if variant == "logits_x3":
        model = sharpened(model, data.test)
    return Trained(model, dataset, held_out, int(flipped.sum()))


def hotter(training: TrainingSettings) -> TrainingSettings:
    """What learns few rows by heart."""
    return training.model_copy(
        update={"epochs": 6 * training.epochs, "learning_rate": 5 * training.learning_rate}
    )


def sharpened(model: nn.Module, examples: Examples) -> nn.Module:
    """A copy whose last nn.Linear, and with it every logit, is SHARPENED times as large.

    Raises ModelError when that does not hold on ``examples``.
    """
    copied = copy.deepcopy(model)
    layers = [layer for layer in copied.modules() if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for parameter in layers[-1].parameters() if layers else ():
            parameter.mul_(SHARPENED)
    before, after = (predictions.logits(each, examples.features) for each in (model, copied))
    if not torch.allclose(SHARPENED * before, after, rtol=1e-3, atol=1e-4):
        raise ModelError(
            "the over-confident variant needs a model whose logits are those of its last "
            "nn.Linear; benchmark model.name mlp or linear"
        )
    return copied
