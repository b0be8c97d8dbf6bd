"""A planted truth: labels are coin flips, so fitting them is memorising, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from puma.audit import ShadowAttack, train_shadow_attack
from puma.data.base import Dataset, Examples
from puma.models import build_model
from puma.settings import ModelSettings, ShadowSettings, TrainingSettings
from puma.training import train

CLASSES = 4
MODEL = ModelSettings(hidden=(64, 32))
TRAINING = TrainingSettings(epochs=100, learning_rate=1e-2)
SHADOW = ShadowSettings(models=3, epochs=60, attack_epochs=20)


def coin_flips(n: int, seed: int, prefix: str = "s") -> Examples:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 10, generator=generator)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    return Examples.of(features, labels, [f"{prefix}{row}" for row in range(n)])


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
