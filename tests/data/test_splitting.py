"""The validation split: by person, from what would be training rows, and never in their way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from puma.data import Dataset, load_dataset
from puma.data.splitting import Extras, hold_out
from puma.errors import DataError
from puma.influence import CRITERIA, FlatModel, MeanLoss
from puma.settings import SourceSettings
from tests.cases import linear, random_examples

# As an earlier PUMA, which had no validation split, computed them with seed 3.
DIGESTS = {
    "german_credit": "9c5cd81bf07481441b250d85c146d58231c93b51006033502b52ec008b3b9d44",
    "two_moons": "ce1b3a15206ec2a0d805068dafd6d13bc69d10939b65915f3dfadc55dd9906ca",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_without_a_fraction_a_dataset_is_as_before(name: str) -> None:
    data = load_dataset(name, seed=3, validation_fraction=0)
    assert data.validation is None
    assert data.digest == DIGESTS[name]


def test_validation_rows_come_from_the_training_rows_alone(tmp_path: Path) -> None:
    whole = load_dataset("two_moons", seed=3)
    data = load_dataset("two_moons", seed=3, validation_fraction=0.2)
    assert data.validation is not None
    assert data.test.subject_ids.tolist() == whole.test.subject_ids.tolist()
    parts = [*data.train.subject_ids.tolist(), *data.validation.subject_ids.tolist()]
    assert sorted(parts) == sorted(whole.train.subject_ids.tolist())
    assert len(data.validation) == 150
    assert data.validation.labels.double().mean() == pytest.approx(0.5, abs=0.01)
    # The rows stay those of their owners.
    first = data.validation.subject_ids[0]
    row = whole.train.owned_by([str(first)])
    assert torch.equal(whole.train.features[row[0]], data.validation.features[0])
    assert len(data.rows) == len(data.train) + len(data.test)
    data.save(tmp_path / "data.npz")
    again = Dataset.load(tmp_path / "data.npz")
    assert again.validation is not None
    assert again.digest == data.digest != whole.digest
    assert torch.equal(again.validation.features, data.validation.features)
    assert repr(again).endswith("validation=Examples(n=150, features=(2,)))")


def test_nobody_is_trained_on_and_held_out_for_validation() -> None:
    data = load_dataset("breast_cancer", seed=1, validation_fraction=0.3)
    assert data.validation is not None
    assert not {*data.train.subject_ids} & {*data.validation.subject_ids}
    other = load_dataset("breast_cancer", seed=2, validation_fraction=0.3)
    again = load_dataset("breast_cancer", seed=1, validation_fraction=0.3)
    assert again.digest == data.digest != other.digest


def test_of_a_regression_every_quarter_is_held_out() -> None:
    data = load_dataset("diabetes", validation_fraction=0.2)
    assert data.validation is not None
    assert data.validation.task == data.task
    assert len(data.validation) == pytest.approx(0.2 * 331, abs=1)
    assert float(data.validation.labels.median()) == pytest.approx(
        float(data.train.labels.median()), abs=0.2
    )


def test_a_table_is_scaled_by_its_training_rows_alone(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    lines = [f"p{row // 2},{draw.normal():.6f},{'ab'[row % 2]}" for row in range(80)]
    (tmp_path / "own.csv").write_text("who,x,y\n" + "\n".join(lines))
    data = load_dataset(
        "own",
        validation_fraction=0.25,
        source=SourceSettings(path="own.csv", target="y", subject="who"),
        root=tmp_path,
    )
    assert data.validation is not None
    assert not {*data.train.subject_ids} & {*data.validation.subject_ids}
    assert float(data.train.features.mean()) == pytest.approx(0, abs=1e-6)
    assert float(data.train.features.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert abs(float(data.validation.features.mean())) > 1e-3


@pytest.mark.parametrize("fraction", [-0.1, 1, "0.2", float("nan")])
def test_impossible_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(DataError, match="validation_fraction must be 0 or lie between 0 and 1"):
        load_dataset("radial", validation_fraction=fraction)


def test_a_fraction_that_leaves_nobody_is_refused() -> None:
    with pytest.raises(DataError, match=r"no split with data\.validation_fraction 0\.001: "):
        load_dataset("radial", validation_fraction=0.001)


def test_a_class_that_would_lose_its_last_training_row_is_refused() -> None:
    labels = np.asarray([0] * 10 + [1] * 10 + [2])
    owners = np.asarray([f"p{row}" for row in range(21)])
    split = np.arange(21), np.arange(0)

    def draw() -> None:
        for seed in range(30):  # until the person who alone has class 2 is drawn
            train, _, validation = hold_out("x", labels, owners, split, Extras(0.4), seed=seed)
            assert sorted([*train, *validation]) == list(range(21))

    with pytest.raises(DataError, match=r"fraction 0\.4 leaves 1 classes without a training row"):
        draw()


def test_validation_loss_takes_the_validation_rows_where_there_are_any() -> None:
    parts = [random_examples(n, 3, seed=n) for n in (5, 6, 7)]
    flat = FlatModel(linear())
    names = ("a", "b", "c")
    for data, rows in (
        (Dataset("x", parts[0], parts[1], names, validation=parts[2]), parts[2]),
        (Dataset("x", parts[0], parts[1], names), parts[1]),
    ):
        found = CRITERIA["validation_loss"](data, 0).value(flat, flat.vector)
        assert found == MeanLoss(rows).value(flat, flat.vector)
