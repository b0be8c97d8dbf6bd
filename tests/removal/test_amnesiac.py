"""Amnesiac ML by hand: what is recorded, what is taken back, and what is not."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from puma.data import Dataset, Examples
from puma.errors import ModelError, SettingsError
from puma.models import mlp
from puma.models.training import train
from puma.removal import METHODS, ORIGINALS, Amnesiac, Retrain, amnesiac, build_trainer
from puma.requests.deletion_set import DeletionSet
from puma.settings import Settings, TrainingSettings, original_of
from tests.removal.conftest import blobs, flat

TRAINING = TrainingSettings(epochs=3, batch_size=8, learning_rate=0.01)
N, STEPS = 60, 24


@pytest.fixture
def dataset() -> Dataset:
    return Dataset("blobs", blobs(N, seed=0), blobs(20, seed=1), ("a", "b"))


def start(dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return mlp(3, 2, (8,)).to(dtype)


def method(**changed) -> Amnesiac:
    settings = {"training": TRAINING, "seed": 5, "repair_epochs": 0}
    return Amnesiac(**{**settings, **changed})


def steps_by_hand(data: Dataset) -> list[tuple[Tensor, Tensor]]:
    """(rows of the batch, change of the parameters) of every step of plain training."""
    model, found = start(), []
    before = flat(model)

    def note(given: nn.Module, _: int, rows: Tensor) -> None:
        nonlocal before
        found.append((rows, flat(given) - before))
        before = flat(given)

    train(model, data.train, TRAINING, seed=5, on_step=note, progress=False)
    return found


def deletion_of(data: Dataset, rows: list[int]) -> DeletionSet:
    return DeletionSet.of([str(row) for row in rows], data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_recorded_original_is_plain_training_bit_for_bit(dataset, dtype):
    data = replace(dataset, train=replace(dataset.train, features=dataset.train.features.to(dtype)))
    plain = Retrain(training=TRAINING, seed=5).fit(start(dtype), data, progress=False)
    recorded = method().fit(start(dtype), data, progress=False)
    assert torch.equal(flat(plain.predictor), flat(recorded.predictor))
    assert plain.history == recorded.history
    assert recorded.original == "amnesiac_original"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_all_batches_subtracted_give_the_initial_weights(dataset, dtype, tolerance):
    data = replace(dataset, train=replace(dataset.train, features=dataset.train.features.to(dtype)))
    remover = method()
    trained = remover.fit(start(dtype), data, progress=False)
    rows = [row for row in range(N) if row not in (0, 1)]  # both classes must stay
    removal = remover.remove(trained, deletion_of(data, rows), progress=False)
    assert removal.parameters["batches_subtracted"] == STEPS
    assert (flat(removal.predictor) - flat(start(dtype))).abs().max() <= tolerance
    assert (flat(trained.predictor) - flat(start(dtype))).abs().max() > 0.01


@pytest.mark.parametrize("marked", [[4], [4, 17, 33], [*range(10)]])
def test_only_the_batches_that_hold_a_marked_row_are_subtracted(dataset, marked, monkeypatch):
    monkeypatch.setattr(amnesiac, "CHUNK", 1)  # one update at a time
    trained = method().fit(start(), dataset, progress=False)
    removal = method().remove(trained, deletion_of(dataset, marked), progress=False)
    steps = steps_by_hand(dataset)
    tainted = [bool(set(rows.tolist()) & set(marked)) for rows, _ in steps]
    assert 0 < sum(tainted) < STEPS
    kept = sum(change for (_, change), bad in zip(steps, tainted, strict=True) if not bad)
    torch.testing.assert_close(flat(removal.predictor), flat(start()) + kept, rtol=0, atol=1e-14)
    assert removal.parameters["batches_subtracted"] == sum(tainted)
    assert removal.parameters["batches_recorded"] == STEPS
    if len(marked) == 1:
        assert sum(tainted) == TRAINING.epochs
    assert removal.history is None


def test_repair_trains_on_the_retained_rows_alone(dataset, monkeypatch):
    marked = [*range(10)]
    trained = method().fit(start(), dataset, progress=False)
    deletion = deletion_of(dataset, marked)
    bare = method().remove(trained, deletion, progress=False)
    seen: list[Examples] = []

    def watched(model, examples, settings, **options):
        seen.append(examples)
        return train(model, examples, settings, **options)

    monkeypatch.setattr(amnesiac, "train", watched)
    removal = method(repair_epochs=2).remove(trained, deletion, progress=False)
    (examples,) = seen
    assert torch.equal(examples.features, dataset.train.features[10:])
    assert removal.parameters["repair_epochs"] == 2
    expected = copy.deepcopy(bare.predictor)
    settings = TRAINING.model_copy(update={"epochs": 2})
    train(expected, dataset.train.without(torch.arange(10)), settings, seed=5, progress=False)
    assert torch.equal(flat(removal.predictor), flat(expected))
    assert len(removal.history.loss) == 2
    assert not any(module.training for module in removal.predictor.modules())


def test_the_original_is_not_changed(dataset):
    trained = method().fit(start(), dataset, progress=False)
    before = flat(trained.predictor)
    method(repair_epochs=1).remove(trained, deletion_of(dataset, [4]), progress=False)
    assert torch.equal(flat(trained.predictor), before)


def test_frozen_parameters_are_neither_recorded_nor_changed(dataset):
    model = start()
    model[0].requires_grad_(False)
    trained = method().fit(model, dataset, progress=False)
    assert np.load(trained.records / "updates.npy", mmap_mode="r").shape == (STEPS, 18)
    removal = method().remove(trained, deletion_of(dataset, [4]), progress=False)
    assert torch.equal(removal.predictor[0].weight, model[0].weight)
    assert not torch.equal(removal.predictor[2].weight, trained.predictor[2].weight)
    with pytest.raises(ModelError, match="no parameter with requires_grad=True"):
        method().fit(model.requires_grad_(False), dataset, progress=False)


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.float64, 8)])
def test_records_keep_their_bound(dataset, tmp_path, dtype, width):
    data = replace(dataset, train=replace(dataset.train, features=dataset.train.features.to(dtype)))
    size = STEPS * (50 * width + 8 * 4)  # 50 parameters, batches of 8
    with pytest.raises(SettingsError) as caught:
        method(max_bytes=size - 1).fit(start(dtype), data, records=tmp_path, progress=False)
    message = str(caught.value)
    assert f"24 steps of 50 parameters takes {size:,} bytes" in message
    assert f"more than amnesiac.max_bytes ({size - 1:,}); lower training.epochs" in message
    assert list(tmp_path.iterdir()) == []

    method(max_bytes=size).fit(start(dtype), data, records=tmp_path, progress=False)
    written = sum((tmp_path / name).stat().st_size for name in ("updates.npy", "batches.npy"))
    assert size < written <= size + 2 * 128  # the files' headers


class Interrupted(nn.Linear):
    """Its user presses Ctrl-C in the eleventh step."""

    steps = 0

    def forward(self, features: Tensor) -> Tensor:
        self.steps += self.training
        if self.steps > 10:
            raise KeyboardInterrupt
        return super().forward(features)


def test_an_interrupted_training_leaves_no_half_record(dataset, tmp_path):
    method().fit(start(), dataset, records=tmp_path, progress=False)
    names = ("updates.npy", "batches.npy")
    before = [(tmp_path / name).read_bytes() for name in names]
    with pytest.raises(KeyboardInterrupt):
        method().fit(Interrupted(3, 2).double(), dataset, records=tmp_path, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)  # and no manifest
    assert [(tmp_path / name).read_bytes() for name in names] == before


def test_a_last_row_that_joins_the_batch_before_it_is_recorded_with_it(dataset):
    """Batch normalisation cannot take one row: of 57 rows, the last batch holds 9."""
    data = replace(dataset, train=dataset.train.subset(torch.arange(57)))
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    trained = method().fit(model, data, progress=False)
    batches = np.load(trained.records / "batches.npy")
    assert batches.shape == (3 * 7, 9)
    assert (batches >= 0).sum(1).tolist() == [*[8] * 6, 9] * 3
    for epoch in np.split(batches, 3):
        assert sorted(epoch[epoch >= 0]) == [*range(57)]
    removal = method().remove(trained, deletion_of(data, [4]), progress=False)
    assert removal.parameters["batches_subtracted"] == 3


def test_a_training_that_fails_leaves_no_usable_records(dataset, tmp_path):
    method().fit(start(), dataset, records=tmp_path, progress=False)
    wild = TRAINING.model_copy(update={"learning_rate": 1e200})
    with pytest.raises(ModelError, match="diverged"):
        method(training=wild).fit(start(), dataset, records=tmp_path, progress=False)
    trained = replace(method().fit(start(), dataset, progress=False), records=tmp_path)
    with pytest.raises(ModelError, match="no complete records"):
        method().remove(trained, deletion_of(dataset, [4]), progress=False)


def test_records_of_other_data_or_settings_are_refused(dataset, tmp_path):
    trained = method().fit(start(), dataset, records=tmp_path, progress=False)
    deletion = deletion_of(dataset, [4])
    with pytest.raises(ModelError, match="with another seed; train the original again"):
        method(seed=6).remove(trained, deletion, progress=False)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "data_digest": "0"}))
    with pytest.raises(ModelError, match="with another data_digest"):
        method().remove(trained, deletion, progress=False)


def test_every_method_has_the_original_of_its_name():
    for name, kind in METHODS.items():
        assert kind.original == original_of(name)
        assert METHODS[ORIGINALS[kind.original]].original == kind.original
    assert isinstance(build_trainer("amnesiac_original", Settings()), Amnesiac)
    assert isinstance(build_trainer("original", Settings()), Retrain)
    with pytest.raises(SettingsError, match=r"unknown original 'sisa'; choose one of amnesiac_"):
        build_trainer("sisa", Settings())
