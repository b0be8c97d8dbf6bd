from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from puma.data import Dataset, Examples, load_dataset
from puma.errors import DataError
from puma.marking import smallest_clusters


def by_the_paper(dataset: Dataset, clusters: int, seed: int) -> list[int]:
    """Appendix A, Data Marking: cluster every class's rows, mark the smallest cluster."""
    rows = np.arange(len(dataset.train))
    labels, marked = dataset.train.labels.numpy(), []
    for label in np.unique(labels):
        own = rows[labels == label]
        found = KMeans(n_clusters=clusters, random_state=seed).fit_predict(
            dataset.train.features.numpy()[own]
        )
        sizes = {cluster: int((found == cluster).sum()) for cluster in range(clusters)}
        smallest = min(sizes, key=lambda cluster: sizes[cluster])
        marked += own[found == smallest].tolist()
    return sorted(marked)


@pytest.mark.parametrize("name", ["german_credit", "breast_cancer"])
@pytest.mark.parametrize(("clusters", "seed"), [(8, 0), (8, 1), (3, 0)])
def test_marks_the_smallest_cluster_of_every_class(name: str, clusters: int, seed: int) -> None:
    dataset = load_dataset(name)
    marked = smallest_clusters(dataset, clusters=clusters, seed=seed)
    assert marked.tolist() == by_the_paper(dataset, clusters, seed)
    assert set(dataset.train.labels[marked].tolist()) == {0, 1}
    # The smallest of k clusters holds at most a k-th of its class.
    for label in (0, 1):
        of_class = dataset.train.labels == label
        share = of_class[marked].sum() / of_class.sum()
        assert 0 < share <= 1 / clusters


def blobs(sizes: list[list[int]], spread: float) -> Dataset:
    """Class c holds one far-off blob of sizes[c][b] rows for every b."""
    generator = torch.Generator().manual_seed(0)
    rows, labels = [], []
    for label, blob_sizes in enumerate(sizes):
        for blob, size in enumerate(blob_sizes):
            rows.append(100.0 * blob + spread * torch.randn(size, 2, generator=generator))
            labels += [label] * size
    train = Examples.of(torch.cat(rows), torch.tensor(labels))
    return Dataset("blobs", train, train.subset(torch.tensor([0])), ("good", "bad"))


def test_marks_the_blob_that_stands_apart() -> None:
    dataset = blobs([[9, 4, 7], [3, 8, 6]], spread=0.1)
    marked = smallest_clusters(dataset, clusters=3)
    assert marked.tolist() == [*range(9, 13), *range(20, 23)]


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
def test_equal_rows_leave_no_class_unmarked() -> None:
    # Two distinct points cannot fill three clusters; the empty one is nobody's.
    dataset = blobs([[5, 2], [2, 6]], spread=0)
    assert smallest_clusters(dataset, clusters=3).tolist() == [5, 6, 7, 8]


def test_a_class_with_fewer_rows_than_clusters_is_refused() -> None:
    dataset = blobs([[9], [4, 3]], spread=0.1)
    with pytest.raises(
        DataError,
        match=r"class 'bad' of 'blobs' has 7 training rows for 8 clusters; "
        r"lower marking\.clusters",
    ):
        smallest_clusters(dataset)
    assert len(smallest_clusters(dataset, clusters=7)) >= 2
