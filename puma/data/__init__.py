"""Datasets by name: labelled rows, split, and who owns each of them.

Every room above may import from here.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from pathlib import Path

from puma.data.base import Dataset, Examples
from puma.data.breast_cancer import breast_cancer
from puma.data.german_credit import german_credit
from puma.data.images import digits, mnist
from puma.data.synthetic import radial, rectangular, spiral, two_moons
from puma.errors import DataError, require_path

Source = Callable[[int, float, Path | str | None, bool], Dataset]


def _drawn(source: Callable[..., Dataset]) -> Source:
    """A source that draws its test split itself and comes with PUMA or scikit-learn."""
    return lambda seed, test_fraction, *_: source(seed=seed, test_fraction=test_fraction)


# From (seed, test fraction, folder, download) to a dataset. A new one is one file here and one
# row of this table.
DATASETS: dict[str, Source] = {
    "breast_cancer": _drawn(breast_cancer),
    "digits": _drawn(digits),
    "german_credit": _drawn(german_credit),
    "mnist": lambda _seed, _test, folder, download: mnist(folder=folder, download=download),
    "radial": _drawn(radial),
    "rectangular": _drawn(rectangular),
    "spiral": _drawn(spiral),
    "two_moons": _drawn(two_moons),
}


def load_dataset(
    name: str,
    *,
    seed: int = 0,
    test_fraction: float = 0.25,
    folder: Path | str | None = None,
    download: bool = False,
) -> Dataset:
    """Load the named dataset, split and scaled.

    Every statistic (mean, deviation, median, categories) comes from the training rows alone.

    Args:
        name: One of :data:`DATASETS`.
        seed: Of the split; the same seed gives the same one. MNIST keeps its official split.
        test_fraction: Share of the rows to hold out.
        folder: Where MNIST lies; no other source reads it. See :func:`mnist`.
        download: Whether MNIST may be fetched from the network.

    Raises:
        DataError: The name is unknown, the fraction impossible, or the data are not there.
    """
    try:
        load = DATASETS[name]
    except (KeyError, TypeError):
        raise DataError(
            f"unknown dataset {name!r}; choose one of {', '.join(sorted(DATASETS))}"
        ) from None
    if not isinstance(test_fraction, Real) or not 0 < test_fraction < 1:
        raise DataError(f"test_fraction must lie between 0 and 1, got {test_fraction!r}")
    if folder is not None:
        require_path(folder, DataError)
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
