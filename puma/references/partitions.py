"""Who is left out together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puma.data.base import Dataset

PARTS = 4  # a model is trained without a quarter of the people; a half, or one scale, is worse
SCALES = (24, 8, 4, None)  # k-means clusters of every class (or quarter); None: at random


def leave_out_groups(dataset: Dataset, partitions: int, *, seed: int) -> list[NDArray[np.int64]]:
    """Divide the training rows several times into four parts, by person, at different scales.

    Partition p keeps the clusters of ``SCALES[p % 4]`` whole, so that look-alikes are left out
    together. All rows of a person are in one part.

    Args:
        dataset: Its training rows are divided.
        partitions: How often.
        seed: Of the clusters and the parts.

    Returns:
        4·partitions arrays of ascending training rows, four for each partition.
    """
    people, first, of_row = np.unique(
        dataset.train.subject_ids, return_index=True, return_inverse=True
    )
    features = dataset.train.features[first].flatten(1).cpu().numpy()
    labels = dataset.task.strata(dataset.train.labels)[first].cpu().numpy()
    generator = np.random.default_rng([seed, len(people)])
    found = []
    for number in range(partitions):
        clusters = _clusters(features, labels, SCALES[number % len(SCALES)], generator)
        part = _parts(clusters, generator)[of_row]
        found += [np.flatnonzero(part == each) for each in range(PARTS)]
    return found


def _clusters(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    count: int | None,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """(people,) the number of each one's cluster."""
    if count is None:
        return np.arange(len(labels))
    from sklearn.cluster import KMeans

    found = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        distinct = len(np.unique(features[of_class], axis=0))
        means = KMeans(
            min(count, distinct), n_init=1, random_state=int(generator.integers(2**31))
        ).fit(features[of_class])
        found[of_class] = means.labels_ + count * label
    return found


def _parts(clusters: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """(people,) the part of each: clusters stay whole, the largest first to the smallest part."""
    names, sizes = np.unique(clusters, return_counts=True)
    order = generator.permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    filled = np.zeros(PARTS)
    part_of = np.empty(len(names), dtype=np.int64)
    for cluster in order:
        part_of[cluster] = filled.argmin()
        filled[part_of[cluster]] += sizes[cluster]
    part: NDArray[np.int64] = part_of[np.searchsorted(names, clusters)]
    return part
