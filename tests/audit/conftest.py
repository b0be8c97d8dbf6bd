"""Planted truths: labels that are coin flips, so that fitting them is memorising."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from puma.audit import (
    Evidence,
    LiRA,
    Population,
    Predictions,
    ShadowAttack,
    everybody,
    halves,
    predict,
    train_population,
    train_shadow_attack,
    without,
)
from puma.data.base import Dataset, Examples
from puma.models import build_model
from puma.models.training import train
from puma.removal import Retrain
from puma.requests.deletion_set import DeletionSet
from puma.settings import ModelSettings, ShadowSettings, TrainingSettings

CLASSES = 4
MODEL = ModelSettings(hidden=(64, 32))
TRAINING = TrainingSettings(epochs=100, learning_rate=1e-2)
SHADOW = ShadowSettings(models=3, epochs=60, attack_epochs=20)
QUICK = Retrain(training=TrainingSettings(epochs=60, learning_rate=1e-2, batch_size=200))


def coin_flips(n: int, seed: int, prefix: str = "s") -> Examples:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 10, generator=generator)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    return Examples.of(features, labels, [f"{prefix}{row}" for row in range(n)])


def mislabelled(n: int, seed: int, ids: list[str], *, share: float) -> Examples:
    """Four clusters that are easy to tell apart, a ``share`` of the labels drawn anew."""
    generator = torch.Generator().manual_seed(seed)
    clusters = torch.randint(CLASSES, (n,), generator=generator)
    features = torch.randn(n, 10, generator=generator)
    features[:, :CLASSES] += 3 * torch.eye(CLASSES)[clusters]
    drawn = torch.rand(n, generator=generator) < share
    others = torch.randint(CLASSES, (n,), generator=generator)
    return Examples.of(features, torch.where(drawn, others, clusters), ids)


def predictions_of(
    after: ArrayLike, labels: ArrayLike, before: ArrayLike | None = None
) -> Predictions:
    logits = torch.as_tensor(np.asarray(after, dtype=np.float64))
    parent = logits if before is None else torch.as_tensor(np.asarray(before, dtype=np.float64))
    truth = torch.as_tensor(np.asarray(labels, dtype=np.int64))
    return Predictions(parent, logits, truth, np.arange(len(truth)))


def random_predictions(n: int, seed: int, *, scale: float = 3.0) -> Predictions:
    """Two unrelated versions' answers about n rows."""
    random = np.random.default_rng(seed)
    after, before = random.normal(0, scale, (2, n, CLASSES))
    return predictions_of(after, random.integers(CLASSES, size=n), before)


@pytest.fixture(scope="session")
def memory() -> Dataset:
    """200 training rows with random labels, and 200 that no model is shown."""
    names = tuple("abcd")
    return Dataset("coins", coin_flips(200, 0, "train"), coin_flips(200, 1, "test"), names)


@pytest.fixture(scope="session")
def overfitted(memory: Dataset) -> nn.Module:
    model = build_model(MODEL, memory, seed=5)
    train(model, memory.train, TRAINING, seed=5, progress=False)
    return model


@pytest.fixture(scope="session")
def attack(memory: Dataset) -> ShadowAttack:
    return train_shadow_attack(memory, MODEL, TRAINING, SHADOW, seed=0, progress=False)


@dataclass(frozen=True)
class Planted:
    """A request for 30 of 160 training rows, what an audit of it needs, and versions to audit.

    original: logits of a model that saw all rows. retrained: those of three that did not see the
    removed ones. None of these models is part of ``evidence``.
    """

    dataset: Dataset
    deletion_set: DeletionSet
    evidence: Evidence
    original: torch.Tensor
    retrained: tuple[torch.Tensor, ...]

    @property
    def labels(self) -> torch.Tensor:
        return torch.cat([self.dataset.train.labels, self.dataset.test.labels])

    def predictions(self, after: torch.Tensor) -> Predictions:
        return Predictions(self.original, after, self.labels, np.arange(len(self.labels)))


@pytest.fixture(scope="session")
def planted(attack: ShadowAttack) -> Planted:
    """Half of the training labels are drawn anew; three removed people own a test row too."""
    people = [f"train{row}" for row in range(160)]
    tested = [*people[:5], *(f"test{row}" for row in range(115))]
    dataset = Dataset(
        "mislabelled",
        mislabelled(160, 2, people, share=0.5),
        mislabelled(120, 3, tested, share=0.1),
        tuple("abcd"),
    )
    deletion_set = DeletionSet.of(people[:60:2], dataset)

    def population(members: NDArray[np.bool_], seed: int) -> Population:
        return train_population(dataset, members, QUICK, MODEL, seed=seed, progress=False)

    def logits(data: Dataset, seed: int) -> torch.Tensor:
        trainer = QUICK.model_copy(update={"seed": seed})
        fitted = trainer.fit(build_model(MODEL, data, seed=seed), data, progress=False)
        return predict(fitted.predictor, dataset.train, dataset.test).after

    evidence = Evidence(
        attack,
        LiRA(population(halves(dataset, 12, seed=0), 1)),
        population(everybody(dataset, 6), 2),
        population(without(dataset, deletion_set, 6), 3),
    )
    kept = Dataset(
        dataset.name, dataset.train.without(deletion_set.rows), dataset.test, dataset.classes
    )
    return Planted(
        dataset,
        deletion_set,
        evidence,
        logits(dataset, 100),
        tuple(logits(kept, seed) for seed in (101, 102, 103)),
    )
