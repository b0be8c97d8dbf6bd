"""Retraining is the training loop on the rows that stay; both schedules counted by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from puma.data import Dataset
from puma.models import mlp
from puma.models.training import train
from puma.removal import Retrain
from puma.requests.deletion_set import DeletionSet
from puma.settings import TrainingSettings
from tests.removal.conftest import blobs, flat

TRAINING = TrainingSettings(epochs=3, batch_size=16)


@pytest.fixture
def dataset() -> Dataset:
    return Dataset("blobs", blobs(100, seed=0), blobs(20, seed=1), ("a", "b"))


@pytest.fixture
def model() -> nn.Module:
    return mlp(3, 2, (8,)).double()


@pytest.mark.parametrize(("schedule", "steps"), [("equal_epochs", 3 * 4), ("equal_steps", 3 * 7)])
def test_retrains_from_the_initial_weights_on_the_retained_rows(dataset, model, schedule, steps):
    method = Retrain(training=TRAINING, schedule=schedule, seed=5)
    trained = method.fit(model, dataset, progress=False)
    deletion = DeletionSet.of([str(i) for i in range(40)], dataset)
    removal = method.remove(trained, deletion, progress=False)

    expected = copy.deepcopy(model)
    train(
        expected,
        dataset.train.subset(torch.arange(40, 100)),
        TRAINING,
        seed=5,
        steps=steps,
        progress=False,
    )
    assert torch.equal(flat(removal.predictor), flat(expected))
    assert removal.parameters["steps"] == steps
    assert removal.n_removed == 40


def test_marked_rows_have_no_effect_whatsoever(dataset, model):
    rows = torch.arange(40)
    spoiled = copy.deepcopy(dataset.train)
    spoiled.features[rows] = 1e3
    other = Dataset("blobs", spoiled, dataset.test, dataset.classes)
    results = []
    for data in (dataset, other):
        method = Retrain(training=TRAINING)
        trained = method.fit(model, data, progress=False)
        deletion = DeletionSet.of([str(i) for i in range(40)], data)
        results.append(flat(method.remove(trained, deletion, progress=False).predictor))
    assert torch.equal(*results)


def test_fit_leaves_the_given_model_alone(dataset, model):
    before = flat(model).clone()
    trained = Retrain(training=TRAINING).fit(model, dataset, progress=False)
    assert torch.equal(flat(model), before)
    assert torch.equal(flat(trained.initial), before)
    assert not torch.equal(flat(trained.predictor), before)
    assert len(trained.history.loss) == 3


def test_fit_with_dropout_depends_on_the_seed_alone(dataset):
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double()
    results = []
    for state in (1, 2):
        torch.manual_seed(state)
        trained = Retrain(training=TRAINING).fit(model, dataset, progress=False)
        results.append(flat(trained.predictor))
    assert torch.equal(*results)
