"""Datasets by name: labelled rows, split, and who owns each of them.

Every room above may import from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path

from puma.data.base import Dataset, Examples
from puma.data.breast_cancer import breast_cancer
from puma.data.diabetes import diabetes
from puma.data.german_credit import german_credit
from puma.data.images import digits, mnist
from puma.data.own_source import load_source
from puma.data.splitting import Extras
from puma.data.synthetic import radial, rectangular, spiral, two_moons
from puma.data.task import Task
from puma.errors import DataError, require_path
from puma.project.own_data import require_known
from puma.settings import SourceSettings

Source = Callable[[int, float, Extras, Path | str | None, bool], Dataset]


def _drawn(source: Callable[..., Dataset]) -> Source:
    """A source that draws its test split itself and comes with PUMA or scikit-learn."""
    return lambda seed, test_fraction, extras, *_: source(
        seed=seed, test_fraction=test_fraction, extras=extras
    )


# From (seed, test fraction, extras, folder, download) to a dataset. A new one is one file here and
# one row of this table.
DATASETS: dict[str, Source] = {
    "breast_cancer": _drawn(breast_cancer),
    "diabetes": _drawn(diabetes),
    "digits": _drawn(digits),
    "german_credit": _drawn(german_credit),
    "mnist": lambda seed, _test, extras, folder, download: mnist(
        folder=folder, download=download, seed=seed, extras=extras
    ),
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
    validation_fraction: float = 0.0,
    groups: Sequence[str] = (),
    folder: Path | str | None = None,
    download: bool = False,
    source: SourceSettings | None = None,
    root: Path | str = ".",
) -> Dataset:
    """Load the named dataset, split and scaled.

    Every statistic (mean, deviation, median, categories) comes from the training rows alone.

    Args:
        name: One of :data:`DATASETS`, or any other name with a ``source``.
        seed: Of the split; the same seed gives the same one. MNIST keeps its official split.
        test_fraction: Share of the rows to hold out; of a source's people.
        validation_fraction: Share of the other people to hold out as rows on which criteria are
            measured; 0: there are none.
        groups: Expressions over the columns of the table, such as "age >= 60", whose rows
            :attr:`Examples.groups` marks; see :class:`puma.where.Where`. Synthetic data have the
            columns x and y.
        folder: Where MNIST lies; no other source reads it. See :func:`mnist`.
        download: Whether MNIST may be fetched from the network.
        source: The user's own data, as in ``sources`` of params.yaml.
        root: The folder from which the source's path is seen, and in which its module is looked
            for first.

    Raises:
        DataError: The name is unknown, the fraction impossible, or the data are not there or not
            fit for use.
    """
    if not isinstance(test_fraction, Real) or not 0 < test_fraction < 1:
        raise DataError(f"test_fraction must lie between 0 and 1, got {test_fraction!r}")
    if not isinstance(validation_fraction, Real) or not 0 <= validation_fraction < 1:
        raise DataError(
            f"validation_fraction must be 0 or lie between 0 and 1, got {validation_fraction!r}"
        )
    extras = Extras(float(validation_fraction), tuple(dict.fromkeys(groups)))
    if folder is not None:
        require_path(folder, DataError)
    require_known(name, source)
    if source is None:
        return DATASETS[name](seed, test_fraction, extras, folder, download)
    require_path(root, DataError)
    return load_source(
        name, source, Path(root), seed=seed, test_fraction=float(test_fraction), extras=extras
    )


__all__ = [
    "DATASETS",
    "Dataset",
    "Examples",
    "Task",
    "digits",
    "load_dataset",
    "mnist",
    "radial",
    "rectangular",
    "spiral",
    "two_moons",
]
