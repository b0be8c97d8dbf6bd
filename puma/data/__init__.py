"""Datasets by name. A new source is one file and one row of this table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from puma.data.base import Dataset, Examples
from puma.data.breast_cancer import breast_cancer
from puma.data.german_credit import german_credit
from puma.data.images import digits, mnist
from puma.data.synthetic import radial, rectangular, spiral, two_moons
from puma.errors import DataError

Source = Callable[[int, float, Path | str | None, bool], Dataset]

# From (seed, test fraction, folder, download) to a dataset; a source ignores what it lacks.
DATASETS: dict[str, Source] = {
    "breast_cancer": lambda seed, test, *_: breast_cancer(seed=seed, test_fraction=test),
    "digits": lambda seed, test, *_: digits(seed=seed, test_fraction=test),
    "german_credit": lambda seed, test, *_: german_credit(seed=seed, test_fraction=test),
    "mnist": lambda _seed, _test, folder, download: mnist(folder=folder, download=download),
    "radial": lambda seed, test, *_: radial(seed=seed, test_fraction=test),
    "rectangular": lambda seed, test, *_: rectangular(seed=seed, test_fraction=test),
    "spiral": lambda seed, test, *_: spiral(seed=seed, test_fraction=test),
    "two_moons": lambda seed, test, *_: two_moons(seed=seed, test_fraction=test),
}


def load_dataset(
    name: str,
    *,
    seed: int = 0,
    test_fraction: float = 0.25,
    folder: Path | str | None = None,
    download: bool = False,
) -> Dataset:
    """The named dataset, split and scaled; the same seed gives the same split.

    Every statistic (mean, deviation, median, categories) comes from the training rows alone.
    MNIST keeps its official split, whatever ``seed`` and ``test_fraction`` are; ``folder`` and
    ``download`` say where it lies and whether the network may be used (see :func:`mnist`), and
    no other source reads them. Raises DataError for an unknown name, an impossible fraction,
    or data that is not there.
    """
    try:
        load = DATASETS[name]
    except KeyError:
        raise DataError(
            f"unknown dataset {name!r}; choose one of {', '.join(sorted(DATASETS))}"
        ) from None
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction must lie between 0 and 1, got {test_fraction}")
    return load(seed, test_fraction, folder, download)


__all__ = [
    "DATASETS",
    "Dataset",
    "Examples",
    "digits",
    "load_dataset",
    "mnist",
    "radial",
    "rectangular",
    "spiral",
    "two_moons",
]
