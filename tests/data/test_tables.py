"""The two packaged tables, each feature recomputed by hand from the CSV with pandas."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import train_test_split

import puma.data
from puma.data import Dataset, Examples, load_dataset
from puma.data.tabular import split_and_scale
from puma.errors import DataError

FILES = Path(puma.data.__file__).parent / "files"
GERMAN = pd.read_csv(FILES / "german_credit.csv", keep_default_na=False)
BREAST = pd.read_csv(FILES / "breast_cancer_wisconsin_original.csv")
GERMAN_ID = [f"applicant-{row + 1:04d}" for row in range(1000)]
BREAST_ID = BREAST["sample_code_number"].astype(str).tolist()
NAMES = ["german_credit", "breast_cancer"]


def german_rows(data: Dataset) -> np.ndarray:
    """Table row numbers of training and test, read from the ids."""
    return np.asarray([GERMAN_ID.index(name) for name in data.train.subject_ids])


def german_by_hand(train_rows: np.ndarray) -> np.ndarray:
    """(1000, d) features of the whole table, scaled by the training rows alone."""
    attributes = GERMAN.drop(columns="creditability")
    numbers = attributes.select_dtypes("number")
    train = numbers.iloc[train_rows]
    scaled = (numbers - train.mean()) / train.std(ddof=0)
    columns = [scaled.to_numpy()]
    for name in attributes.columns.difference(numbers.columns, sort=False):
        values = attributes[name]
        for category in sorted(values.iloc[train_rows].unique()):
            columns.append((values == category).to_numpy(dtype=float)[:, None])
    return np.hstack(columns)


def both(data: Dataset) -> tuple[np.ndarray, list[str], list[str]]:
    """Features, label names and ids of training and test rows together."""
    features = torch.cat([data.train.features, data.test.features]).numpy()
    labels = [data.classes[label] for label in torch.cat([data.train.labels, data.test.labels])]
    return features, labels, [*data.train.subject_ids.tolist(), *data.test.subject_ids.tolist()]


def test_packaged_tables_have_the_published_shape() -> None:
    assert GERMAN.shape == (1000, 21)
    assert GERMAN["creditability"].value_counts().to_dict() == {"good": 700, "bad": 300}
    assert BREAST.shape == (699, 11)
    assert BREAST["class"].value_counts().to_dict() == {"benign": 458, "malignant": 241}
    assert BREAST["bare_nuclei"].isna().sum() == BREAST.isna().sum().sum() == 16
    assert len(set(BREAST_ID)) == 645


@pytest.mark.parametrize("seed", [0, 1])
def test_german_credit_equals_the_table_scaled_by_hand(seed: int) -> None:
    data = load_dataset("german_credit", seed=seed)
    rows = german_rows(data)
    expected = german_by_hand(rows)
    assert expected.shape[1] == data.train.features.shape[1]
    features, labels, ids = both(data)
    order = [GERMAN_ID.index(name) for name in ids]
    assert sorted(order) == list(range(1000))
    np.testing.assert_allclose(features, expected[order], atol=1e-5)
    assert labels == GERMAN["creditability"].iloc[order].tolist()


@pytest.mark.parametrize("seed", [0, 1])
def test_breast_cancer_rows_stay_with_their_owner(seed: int) -> None:
    data = load_dataset("breast_cancer", seed=seed)
    attributes = BREAST.drop(columns=["sample_code_number", "class"])
    train_rows, test_rows = train_test_split(
        np.arange(699), test_size=0.25, stratify=BREAST["class"], random_state=seed
    )
    assert data.train.subject_ids.tolist() == [BREAST_ID[row] for row in train_rows]
    filled = attributes.fillna(attributes.iloc[train_rows].median())
    train = filled.iloc[train_rows]
    expected = ((filled - train.mean()) / train.std(ddof=0)).to_numpy()
    features, labels, ids = both(data)
    order = np.concatenate([train_rows, test_rows])
    np.testing.assert_allclose(features, expected[order], atol=1e-5)
    assert labels == BREAST["class"].iloc[order].tolist()
    assert Counter(ids) == Counter(BREAST_ID)
    assert data.train.features.shape == (524, 9)


def test_missing_numbers_become_the_training_median() -> None:
    # The whole table's median is 1 for every split: only a table of our own distinguishes them.
    table = pd.DataFrame({"x": np.arange(40.0) ** 2, "y": ["a", "b"] * 20})
    table.loc[[3, 11, 30], "x"] = np.nan
    data = split_and_scale(
        "own",
        table,
        label="y",
        subject_ids=GERMAN_ID[:40],
        numeric=["x"],
        seed=2,
        test_fraction=0.3,
    )
    rows = [GERMAN_ID.index(name) for name in data.train.subject_ids]
    train = table["x"].iloc[rows]
    assert train.median() != table["x"].median()
    filled = train.fillna(train.median())
    for part in (data.train, data.test):
        for feature, name in zip(part.features[:, 0].tolist(), part.subject_ids, strict=True):
            raw = table["x"].fillna(train.median())[GERMAN_ID.index(name)]
            assert feature == pytest.approx((raw - filled.mean()) / filled.std(ddof=0), abs=1e-5)


def test_a_category_of_test_rows_alone_is_a_row_of_zeros() -> None:
    table = pd.DataFrame({"x": np.arange(20.0), "kind": ["k", "l"] * 10, "y": [0, 0, 1, 1] * 5})
    ids = GERMAN_ID[:20]

    def build() -> Dataset:
        return split_and_scale(
            "own",
            table,
            label="y",
            subject_ids=ids,
            numeric=["x"],
            categorical=["kind"],
            seed=0,
            test_fraction=0.25,
        )

    stranger = build().test.subject_ids[2]
    table.loc[ids.index(stranger), "kind"] = "never seen"
    data = build()
    assert data.test.subject_ids[2] == stranger
    assert data.test.features[2, 1:].tolist() == [0, 0]
    others = [row for row in range(5) if row != 2]
    for row in others:
        kind = table["kind"][ids.index(data.test.subject_ids[row])]
        assert data.test.features[row, 1:].tolist() == [float(kind == "k"), float(kind == "l")]


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("german_credit", [225, 525], [75, 175]), ("breast_cancer", [343, 181], [115, 60])],
)
@pytest.mark.parametrize("seed", [0, 7])
def test_split_holds_a_quarter_of_every_class(
    name: str, train: list[int], test: list[int], seed: int
) -> None:
    data = load_dataset(name, seed=seed)
    assert torch.bincount(data.train.labels).tolist() == train
    assert torch.bincount(data.test.labels).tolist() == test


def test_test_fraction_is_honoured() -> None:
    data = load_dataset("german_credit", test_fraction=0.4)
    assert (len(data.train), len(data.test)) == (600, 400)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_the_split(name: str) -> None:
    first, again, other = (load_dataset(name, seed=seed) for seed in (3, 3, 4))
    assert first.digest == again.digest
    assert first.digest != other.digest
    assert set(first.test.subject_ids) != set(other.test.subject_ids)


def test_owners_survive_subset_without_save_and_load(tmp_path: Path) -> None:
    data = load_dataset("german_credit")
    expected = german_by_hand(german_rows(data))
    data.save(tmp_path / "data.npz")
    train = Dataset.load(tmp_path / "data.npz").train

    def assert_matches_table(part: Examples) -> None:
        order = [GERMAN_ID.index(name) for name in part.subject_ids]
        np.testing.assert_allclose(part.features.numpy(), expected[order], atol=1e-5)
        labels = [data.classes[label] for label in part.labels]
        assert labels == GERMAN["creditability"].iloc[order].tolist()

    shuffled = train.subset(torch.randperm(750, generator=torch.Generator().manual_seed(0)))
    rest = shuffled.without(torch.arange(0, 750, 3))
    assert len(set(rest.subject_ids)) == 500
    assert_matches_table(rest)
    assert_matches_table(rest.subset(rest.labels == 1))
    assert_matches_table(rest.subset(rest.owned_by(rest.subject_ids[10:20])))


@pytest.mark.parametrize("name", NAMES)
def test_reprs_name_no_owner_and_no_value(name: str) -> None:
    data = load_dataset(name)
    n, d = data.train.features.shape
    held_out = len(data.test)
    assert repr(data) == (
        f"Dataset('{name}', train=Examples(n={n}, features=({d},)), "
        f"test=Examples(n={held_out}, features=({d},)))"
    )


def test_an_unknown_dataset_names_its_choices() -> None:
    with pytest.raises(
        DataError,
        match="unknown dataset 'imagenet'; choose one of breast_cancer, diabetes, digits, "
        "german_credit, mnist, radial, rectangular, spiral, two_moons",
    ):
        load_dataset("imagenet")
