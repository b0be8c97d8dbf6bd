"""What the data's functions are given by mistake: the project's own errors, with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from puma.data import Dataset, Examples, load_dataset
from puma.data.tabular import split_and_scale
from puma.errors import DataError, DeletionError
from puma.requests.request_file import read_subject_ids

FEATURES, LABELS = torch.ones(4, 2), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (FEATURES.numpy(), LABELS, "features must be a PyTorch tensor, got ndarray; convert"),
        (FEATURES, LABELS.numpy(), "labels must be a PyTorch tensor, got ndarray; convert"),
        (FEATURES.tolist(), LABELS, "features must be a PyTorch tensor, got list"),
        (None, LABELS, "features must be a PyTorch tensor, got NoneType"),
    ],
)
def test_examples_are_tensors(features: Any, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Examples.of(features, labels)


@pytest.mark.parametrize("rows", [[0, 1], np.array([0]), 1, None])
def test_rows_are_a_tensor(rows: Any) -> None:
    examples = Examples.of(FEATURES, LABELS)
    for choose in (examples.subset, examples.without):
        with pytest.raises(DataError, match="rows must be a PyTorch tensor of row numbers, got"):
            choose(rows)


def scaled(**columns: Any) -> Dataset:
    table = pd.DataFrame({"class": ["a", "b"] * 6, "x": range(12), **columns})
    return split_and_scale(
        "mine", table, label="class", subject_ids=[str(row) for row in range(12)],
        numeric=["x"], seed=0, test_fraction=0.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [np.inf, -np.inf, *range(10)]}, "column 'x' holds 2 infinite values; correct"),
        ({"x": ["secret", *range(11)]}, "column 'x' is to be numeric .*; convert it with pandas"),
        ({"x": list("abcdefghijkl")}, "column 'x' is to be numeric"),
    ],
)
def test_columns_that_cannot_be_scaled_are_named(columns: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"dataset 'mine': {message}") as caught:
        scaled(**columns)
    assert "secret" not in str(caught.value)


def test_missing_numbers_are_still_imputed() -> None:
    assert len(scaled(x=[None, *range(11)]).train) == 6
    assert len(scaled(x=pd.array([None, *range(11)], dtype="Int64")).train) == 6


def test_absent_columns_are_named() -> None:
    table = pd.DataFrame({"class": ["a", "b"]})
    with pytest.raises(DataError, match=r"no column 'x'; its columns are \['class'\]"):
        split_and_scale(
            "mine", table, label="class", subject_ids=["1", "2"], numeric=["x"], seed=0,
            test_fraction=0.5,
        )  # fmt: skip


@pytest.mark.parametrize("seed", [-1, 2**32, 0.5, "1", None])
@pytest.mark.parametrize("name", ["german_credit", "radial", "two_moons", "digits"])
def test_what_is_no_seed_is_refused(name: str, seed: Any) -> None:
    with pytest.raises(DataError, match=r"a seed must be a whole number from 0 to .*, got"):
        load_dataset(name, seed=seed)


def test_a_path_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(DataError, match="null"):
        Dataset.load(Path("a\0b"))
    with pytest.raises(DeletionError, match=r"cannot be read .*null.*; correct the path"):
        read_subject_ids(Path("a\0b"))
