"""Choosing whom to remove in a demonstration: one cluster of look-alikes per class."""

from __future__ import annotations

import torch
from sklearn.cluster import KMeans
from torch import Tensor

from puma.data.base import Dataset
from puma.errors import DataError


def smallest_clusters(dataset: Dataset, *, clusters: int = 8, seed: int = 0) -> Tensor:
    """(m,) training rows: the smallest k-means cluster of every class (paper, Appendix A).

    Similar rows vouch for each other, so removing a few scattered ones shows nothing; a whole
    cluster leaves a gap that an attack can see. Raises DataError for a class with fewer rows
    than clusters.
    """
    chosen = []
    for label, name in enumerate(dataset.classes):
        rows = (dataset.train.labels == label).nonzero().flatten()
        if len(rows) < clusters:
            raise DataError(
                f"class {name!r} of {dataset.name!r} has {len(rows)} training rows for "
                f"{clusters} clusters; lower marking.clusters"
            )
        features = dataset.train.features[rows].flatten(1).numpy()
        found = torch.from_numpy(
            KMeans(n_clusters=clusters, random_state=seed, n_init=1).fit(features).labels_
        )
        numbers, sizes = found.unique(return_counts=True)  # equal rows can leave a cluster empty
        chosen.append(rows[found == numbers[sizes.argmin()]])
    return torch.cat(chosen).sort().values
