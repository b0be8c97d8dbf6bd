"""Choosing whom to remove in a demonstration: look-alikes, or a share of all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from puma.data.base import Dataset
from puma.errors import DataError, require_seed
from puma.settings import MarkingSettings

# What the paper's Table 1 removes, in the scenarios ordered and random.
SCENARIO_FRACTIONS = (0.2, 0.4, 0.6, 0.8)
_STREAM = 1


def smallest_clusters(dataset: Dataset, *, clusters: int = 8, seed: int = 0) -> Tensor:
    """(m,) training rows: the smallest k-means cluster of every class (paper, Appendix A).

    Of a regression, of every quarter of the target.

    Similar rows vouch for each other, so removing a few scattered ones shows nothing; a whole
    cluster leaves a gap that an attack can see. Raises DataError for a class with fewer rows
    than clusters.
    """
    from sklearn.cluster import KMeans

    chosen = []
    strata = dataset.task.strata(dataset.train.labels)
    present = range(len(dataset.classes)) if dataset.classes else strata.unique().tolist()
    for label in present:
        rows = (strata == label).nonzero().flatten()
        if len(rows) < clusters:
            name = f"class {dataset.classes[label]!r}" if dataset.classes else "a quarter"
            raise DataError(
                f"{name} of {dataset.name!r} has {len(rows)} training rows for "
                f"{clusters} clusters; lower marking.clusters"
            )
        features = dataset.train.features[rows].flatten(1).numpy()
        found = torch.from_numpy(
            KMeans(n_clusters=clusters, random_state=seed, n_init=1).fit(features).labels_
        )
        numbers, sizes = found.unique(return_counts=True)  # equal rows can leave a cluster empty
        chosen.append(rows[found == numbers[sizes.argmin()]])
    return torch.cat(chosen).sort().values


def random_rows(dataset: Dataset, *, fraction: float, seed: int = 0) -> Tensor:
    """(m,) training rows drawn evenly: the paper's scenario Random.

    The rows lie in every batch and in every shard. With one seed, a larger fraction holds
    every row of a smaller one. Raises DataError for a single training row.
    """
    # A stream of its own: whatever else shuffles rows by the same seed (training its batches,
    # SISA its shards) would otherwise find the marked rows side by side.
    generator = np.random.default_rng([seed, _STREAM])
    order = torch.from_numpy(generator.permutation(len(dataset.train)))
    return order[: _share(dataset, fraction)].sort().values


def leading_rows(dataset: Dataset, *, fraction: float) -> Tensor:
    """(m,) the first training rows without a gap: the paper's scenario Ordered.

    The rows fill as few shards or batches as they can WHERE those keep the order of the data,
    as SISA's do with ``sisa.assignment: ordered``. :func:`~puma.models.train` shuffles every
    epoch: for what follows its batches, this is as scattered as :func:`random_rows`. Which rows
    come first is up to the seeded split. Raises DataError for a single training row.
    """
    return torch.arange(_share(dataset, fraction))


def rows_of(dataset: Dataset, subject_ids: list[str]) -> Tensor:
    """(m,) ascending training rows of exactly these people.

    For scripts and tests: ids are personal data and have no place in params.yaml; a request
    for real people is deletions/<dataset>.csv. Raises DataError, with a count alone, for ids
    without a training row.
    """
    unknown = set(subject_ids) - set(dataset.train.subject_ids.tolist())
    if unknown or not subject_ids:
        raise DataError(
            f"{len(unknown)} of {len(subject_ids)} ids own no training row of "
            f"{dataset.name!r}; name at least one, each as the dataset spells it"
        )
    return dataset.train.owned_by(subject_ids)


@dataclass(frozen=True)
class Marking:
    """A way to choose rows; ``words`` says it, with {clusters} and {fraction} to fill in."""

    choose: Callable[[Dataset, MarkingSettings, int], Tensor]
    words: str


MARKINGS: dict[str, Marking] = {
    "cluster": Marking(
        lambda data, how, seed: smallest_clusters(data, clusters=how.clusters, seed=seed),
        "smallest cluster of every class",
    ),
    "random": Marking(
        lambda data, how, seed: random_rows(data, fraction=how.fraction, seed=seed),
        "a random {fraction:g} of the rows",
    ),
    "ordered": Marking(
        lambda data, how, _: leading_rows(data, fraction=how.fraction),
        "the first {fraction:g} of the rows",
    ),
}


def mark(dataset: Dataset, settings: MarkingSettings, *, seed: int = 0) -> Tensor:
    """(m,) ascending training rows that ``settings`` asks for.

    A deletion request takes people, not rows: whoever owns one of these loses the others too.

    Raises:
        DataError: The rows cannot be chosen so, or the seed is none.
    """
    require_seed(seed, DataError)
    return MARKINGS[settings.name].choose(dataset, settings, seed)


def describe(settings: MarkingSettings) -> str:
    """In words, which rows :func:`mark` takes."""
    return MARKINGS[settings.name].words.format(**settings.model_dump())


def _share(dataset: Dataset, fraction: float) -> int:
    """How many rows that is: at least one, and never all of them."""
    n = len(dataset.train)
    if n < 2:
        raise DataError(
            f"{dataset.name!r} has {n} training row; a share of the rows needs at least two"
        )
    return min(max(round(fraction * n), 1), n - 1)
