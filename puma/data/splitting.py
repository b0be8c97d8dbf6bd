"""The one seeded split: a share of every class is held out."""

from __future__ import annotations

import numpy as np
import torch

from puma.data.base import Dataset, Examples
from puma.errors import DataError, require_seed


def split_rows(
    name: str, labels: np.ndarray, *, seed: int, test_fraction: float
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the row numbers of the training and of the test split, stratified by class.

    Raises:
        DataError: A class of the dataset ``name`` is too small for the fraction, or the seed is
            no seed.
    """
    from sklearn.model_selection import train_test_split

    require_seed(seed, DataError)
    try:
        train, test = train_test_split(
            np.arange(len(labels)), test_size=test_fraction, stratify=labels, random_state=seed
        )
    except ValueError as error:
        raise DataError(
            f"dataset {name!r} has no split with data.test_fraction {test_fraction}: {error}; "
            "choose a fraction that leaves every class a row on both sides"
        ) from error
    return train, test


def split_examples(
    name: str,
    features: np.ndarray,
    labels: np.ndarray,
    classes: tuple[str, ...],
    *,
    owner: str,
    seed: int,
    test_fraction: float,
) -> Dataset:
    """Split rows that need no scaling by the training split.

    Args:
        name: Of the dataset.
        features: (n, ...), kept as float32.
        labels: (n,) class numbers.
        classes: Their names.
        owner: Every row is its own subject; ``owner``-0001 is the first.
        seed: Of the split.
        test_fraction: Share of the rows to hold out.
    """
    ids = np.asarray([f"{owner}-{row:04d}" for row in range(1, len(labels) + 1)], dtype=np.str_)
    rows = torch.from_numpy(np.asarray(features, dtype=np.float32))
    whole = Examples(rows, torch.from_numpy(labels), ids)
    train, test = split_rows(name, labels, seed=seed, test_fraction=test_fraction)
    return Dataset(
        name, whole.subset(torch.from_numpy(train)), whole.subset(torch.from_numpy(test)), classes
    )
