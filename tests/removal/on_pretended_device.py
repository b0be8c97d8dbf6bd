"""Removals on another device than the CPU: a pretended one, with float64 as CUDA, or without."""

from __future__ import annotations

import copy
import re
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from puma.audit import train_pool
from puma.data import Examples
from puma.errors import DataError, ModelError, SettingsError
from puma.influence import SOLVERS, FlatModel, MeanLoss, influence_scores
from puma.models import build_model, load_weights, save_weights, weights_digest
from puma.models import device as devices
from puma.models.device import chosen_device
from puma.models.training import train
from puma.removal import METHODS, PUMA, Trained, build_method
from puma.removal.puma.method import ONE_STEP
from puma.settings import Settings, TrainingSettings
from tests.cases import mlp, random_examples
from tests.pretend_device import KIND, PretendedDevice
from tests.removal.shared_by_ranks import REMOVALS, removal_problem


@pytest.fixture(params=[True, False], ids=["as CUDA", "as MPS"])
def there(request, monkeypatch):
    """The device, while it is there."""
    monkeypatch.setattr(devices, "WITHOUT_DOUBLE", set() if request.param else {KIND})
    with PretendedDevice(double=request.param):
        yield torch.device(KIND, 0)


def moved(trained: Trained, device: torch.device) -> Trained:
    return Trained(
        copy.deepcopy(trained.predictor).to(device),
        trained.dataset.to(device),
        copy.deepcopy(trained.initial).to(device),
        pool=trained.pool,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", REMOVALS)
def test_a_removal_is_that_of_the_cpu(there, name):
    if name == "several criteria" and not devices.WITHOUT_DOUBLE:
        pytest.skip("the pretended device cannot squeeze in place, as PyTorch does for v @ M")
    settings = {**REMOVALS[name], "tolerance": 1e-4}
    trained, deletion_set = removal_problem(torch.float32)
    expected = PUMA(**settings).remove(trained, deletion_set, progress=False)
    found = PUMA(**settings).remove(moved(trained, there), deletion_set, progress=False)
    assert {each.device for each in found.predictor.parameters()} == {there}
    for mine, theirs in zip(
        found.predictor.parameters(), expected.predictor.parameters(), strict=True
    ):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-5)
    assert found.criterion_after == pytest.approx(expected.criterion_after, abs=1e-6)
    assert found.parent_weights == weights_digest(trained.predictor)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_and_removes_where_the_model_and_the_data_are(there, name):
    trained, deletion_set = removal_problem(torch.float32)
    own = {"puma": ONE_STEP, "puma_paper": {"damping": 10.0}, "sisa": {"shards": 2}}
    method = METHODS[name](
        training=TrainingSettings(epochs=3, class_weights="balanced"), **own.get(name, {})
    )
    start = copy.deepcopy(trained.initial)
    losses = []
    for device in (torch.device("cpu"), there):
        fitted = method.fit(
            copy.deepcopy(start).to(device), trained.dataset.to(device), progress=False
        )
        removal = method.remove(fitted, deletion_set, progress=False)
        assert {each.device for each in removal.predictor.parameters()} == {device}
        losses.append([removal.criterion_before, removal.criterion_after])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


@pytest.mark.slow
def test_target_margins_come_from_a_pool_on_the_cpu(there):
    trained, deletion_set = removal_problem(torch.float32)
    training = TrainingSettings(epochs=3)
    settings = Settings.model_validate(
        {
            "model": {"hidden": [5]},
            "training": training.model_dump(),
            "pool": {"models": 16, "everybody": 3},
        }
    )
    initial = build_model(settings.model, trained.dataset, seed=settings.seed)
    pool = train_pool(trained.dataset, settings, progress=False)
    trained = Trained(initial, trained.dataset, initial, pool=pool)
    method = PUMA(training=training)
    expected, found = (
        method.remove(each, deletion_set, progress=False)
        for each in (trained, moved(trained, there))
    )
    assert found.criterion_after == pytest.approx(expected.criterion_after, abs=1e-5)
    assert expected.criterion_after != expected.criterion_before


@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_scores_are_those_of_the_cpu(there, solver):
    model, examples = mlp().float(), random_examples(20, 3, dtype=torch.float32)
    expected = influence_scores(model, examples, solver=solver, damping=1.0)
    elsewhere = copy.deepcopy(model).to(there)
    found = influence_scores(elsewhere, examples.to(there), solver=solver, damping=1.0)
    assert found.device == there
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-5)


def test_model_and_data_on_two_devices_are_refused(there):
    trained, deletion_set = removal_problem(torch.float32)
    elsewhere = moved(trained, there)
    mixed = Trained(elsewhere.predictor, trained.dataset, elsewhere.initial)
    words = f"the features are on cpu and the model on {there}; move one of them"
    examples = trained.dataset.train
    for work in (
        lambda: PUMA(**ONE_STEP).remove(mixed, deletion_set, progress=False),
        lambda: influence_scores(elsewhere.predictor, examples),
        lambda: MeanLoss(examples).gradient(FlatModel(elsewhere.predictor)),
        lambda: train(elsewhere.initial, examples, TrainingSettings(), seed=0, progress=False),
    ):
        with pytest.raises(DataError, match=re.escape(words)):
            work()
    with pytest.raises(DataError, match=f"features are on {there} and labels on cpu"):
        Examples.of(examples.features.to(there), examples.labels)
    half = nn.Sequential(nn.Linear(3, 4).to(there), nn.BatchNorm1d(4))
    with pytest.raises(ModelError, match="must share one dtype, and all one device"):
        FlatModel(half.float())
    half[1].requires_grad_(False)  # what does not train has to be there, too
    with pytest.raises(ModelError, match="must share one dtype, and all one device"):
        FlatModel(half)


def test_data_on_a_device_have_the_digest_of_the_same_on_the_cpu(there):
    dataset = removal_problem()[0].dataset if not devices.WITHOUT_DOUBLE else None
    dataset = dataset or removal_problem(torch.float32)[0].dataset
    assert dataset.to(there).train.features.device == there
    assert dataset.to(there).digest == dataset.digest
    assert dataset.to("cpu").train is dataset.train


no_gpu = pytest.mark.skipif(
    torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU"
)


@no_gpu
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_computed(name):
    words = f"device is {name}, and PyTorch finds cpu here"
    with pytest.raises(SettingsError, match=words):
        chosen_device(name)
    trained, deletion_set = removal_problem(torch.float32)
    method = build_method("puma", Settings(device=name))
    with pytest.raises(SettingsError, match=words):
        method.remove(trained, deletion_set, progress=False)
    with pytest.raises(SettingsError, match=words):
        method.fit(trained.initial, trained.dataset, progress=False)


@no_gpu
def test_auto_is_the_cpu_where_there_is_nothing_else():
    assert chosen_device("auto") == chosen_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:-1", "CPU", 0])
def test_other_names_of_devices_are_refused(name):
    with pytest.raises(ValueError, match=r"device\n"):
        Settings.model_validate({"device": name})


def test_a_device_is_no_part_of_what_identifies_a_removal():
    assert "device" not in PUMA(device="cpu").model_dump()
    assert "device" not in PUMA(device="cpu").recorded_settings()


def test_weights_that_were_saved_on_a_gpu_are_loaded_without_one(tmp_path: Path):
    model, path = nn.Linear(3, 2), tmp_path / "weights.pt"
    save_weights(model, path)
    with zipfile.ZipFile(path) as archive:
        content = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            # A pickled text is its length and its letters: the place of each storage.
            archive.writestr(name, data.replace(b"X\3\0\0\0cpu", b"X\6\0\0\0cuda:0"))
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(path, weights_only=True)
    assert weights_digest(load_weights(nn.Linear(3, 2), path)) == weights_digest(model)
