"""Datasets by name. A new source is one file and one row of this table."""

from __future__ import annotations

from collections.abc import Callable

from puma.data.base import Dataset, Examples
from puma.data.breast_cancer import breast_cancer
from puma.data.german_credit import german_credit
from puma.errors import DataError

DATASETS: dict[str, Callable[..., Dataset]] = {
    "breast_cancer": breast_cancer,
    "german_credit": german_credit,
}


def load_dataset(name: str, *, seed: int = 0, test_fraction: float = 0.25) -> Dataset:
    """The named dataset, split and scaled; the same seed gives the same split.

    Every statistic (mean, deviation, median, categories) comes from the training rows alone.
    Raises DataError for an unknown name.
    """
    try:
        load = DATASETS[name]
    except KeyError:
        raise DataError(
            f"unknown dataset {name!r}; choose one of {', '.join(sorted(DATASETS))}"
        ) from None
    return load(seed=seed, test_fraction=test_fraction)


__all__ = ["DATASETS", "Dataset", "Examples", "load_dataset"]
