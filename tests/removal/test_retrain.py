"""Retraining is the training loop on the rows that stay; both schedules counted by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from puma.data import Dataset, Examples
from puma.errors import SettingsError
from puma.influence.criteria import MeanLoss
from puma.influence.flat import FlatModel
from puma.models import mlp
from puma.models.training import train
from puma.removal import METHODS, PUMA, Retrain, build_method
from puma.requests.deletion_set import DeletionSet
from puma.settings import Settings, TrainingSettings
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


def test_methods_are_built_with_the_settings_of_their_name():
    settings = Settings.model_validate(
        {"seed": 7, "training": {"epochs": 2}, "puma": {"budget": 0.5}}
    )
    method = build_method("puma", settings)
    assert isinstance(method, PUMA)
    assert (method.budget, method.seed, method.training.epochs) == (0.5, 7, 2)
    assert {name: kind.method for name, kind in METHODS.items()} == {name: name for name in METHODS}
    with pytest.raises(SettingsError, match=r"unknown removal method 'sissa'.*puma"):
        build_method("sissa", settings)


def test_the_recorded_criterion_is_summed_in_double_precision():
    def single(n, seed):
        rows = blobs(n, seed=seed)
        return Examples.of(rows.features.float(), rows.labels)

    dataset = Dataset("blobs", single(901, 0), single(20, 1), ("a", "b"))
    method = Retrain(training=TrainingSettings(epochs=1, batch_size=64))
    trained = method.fit(mlp(3, 2, (8,)), dataset, progress=False)
    removal = method.remove(trained, DeletionSet.of(["0"], dataset), progress=False)
    retained = dataset.train.subset(torch.arange(1, 901))
    for model, recorded in (
        (trained.predictor, removal.criterion_before),
        (removal.predictor, removal.criterion_after),
    ):
        flat_model = FlatModel(model)
        measured = MeanLoss(retained).value(flat_model, flat_model.vector)
        assert recorded == pytest.approx(measured, rel=1e-12)
        assert recorded != float(np.float32(recorded))  # float32 would have rounded it


def test_fit_with_dropout_depends_on_the_seed_alone(dataset):
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double()
    results = []
    for state in (1, 2):
        torch.manual_seed(state)
        trained = Retrain(training=TRAINING).fit(model, dataset, progress=False)
        results.append(flat(trained.predictor))
    assert torch.equal(*results)
