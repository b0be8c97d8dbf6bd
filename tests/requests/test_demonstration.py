from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from puma.data import Dataset, Examples, load_dataset
from puma.errors import DataError
from puma.requests.demonstration import (
    MARKINGS,
    SCENARIO_FRACTIONS,
    describe,
    leading_rows,
    mark,
    random_rows,
    rows_of,
    smallest_clusters,
)
from puma.settings import MarkingSettings


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


def numbered(n: int) -> Dataset:
    """n training rows, two for each person, of two classes."""
    train = Examples.of(
        torch.zeros(n, 1), torch.arange(n) % 2, [f"p{row // 2}" for row in range(n)]
    )
    return Dataset("numbered", train, train, ("even", "odd"))


@pytest.mark.parametrize("fraction", SCENARIO_FRACTIONS)
def test_ordered_rows_are_the_first_and_have_no_gap(fraction: float) -> None:
    rows = leading_rows(numbered(450), fraction=fraction)
    assert rows.tolist() == list(range(round(450 * fraction)))


@pytest.mark.parametrize("fraction", SCENARIO_FRACTIONS)
def test_random_rows_are_that_many_and_scattered(fraction: float) -> None:
    rows = random_rows(numbered(450), fraction=fraction)
    assert rows.dtype == torch.int64
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert len(rows) == round(450 * fraction)
    assert 0 <= rows[0] <= rows[-1] < 450
    # Every third of the data gives its share, give or take four deviations.
    for third in range(3):
        found = int(((rows >= 150 * third) & (rows < 150 * (third + 1))).sum())
        deviation = (150 * fraction * (1 - fraction) * 300 / 449) ** 0.5
        assert abs(found - 150 * fraction) < 4 * deviation


def test_every_row_is_as_likely_as_the_others() -> None:
    drawn = torch.cat([random_rows(numbered(10), fraction=0.3, seed=s) for s in range(2000)])
    counts = torch.bincount(drawn, minlength=10)
    deviation = (2000 * 0.3 * 0.7) ** 0.5
    assert (counts - 600).abs().max() < 4 * deviation


@pytest.mark.parametrize("name", ["random", "ordered"])
def test_a_larger_fraction_holds_the_smaller_one(name: str) -> None:
    previous: set[int] = set()
    for fraction in SCENARIO_FRACTIONS:
        settings = MarkingSettings(name=name, fraction=fraction)
        rows = set(mark(numbered(101), settings, seed=3).tolist())
        assert previous < rows
        previous = rows


def test_the_seed_decides_the_random_rows_and_leaves_the_global_state() -> None:
    state = torch.get_rng_state()
    first, again, other = (random_rows(numbered(99), fraction=0.5, seed=s) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_rows_are_not_what_else_the_seed_puts_first(seed: int) -> None:
    n = 400
    rows = set(random_rows(numbered(n), fraction=0.2, seed=seed).tolist())
    shuffles = [
        torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist(),  # batches
        np.random.default_rng(seed).permutation(n).tolist(),  # shards
        np.random.RandomState(seed).permutation(n).tolist(),  # splits
    ]
    for order in shuffles:
        assert len(rows & set(order[:80])) < 40  # 16 by chance


@pytest.mark.parametrize(("n", "fraction", "size"), [(2, 0.01, 1), (3, 0.99, 2), (10, 0.25, 2)])
def test_a_share_is_never_nothing_or_everything(n: int, fraction: float, size: int) -> None:
    assert len(random_rows(numbered(n), fraction=fraction)) == size
    assert leading_rows(numbered(n), fraction=fraction).tolist() == list(range(size))


def test_a_share_of_a_single_row_is_refused() -> None:
    for name in ("random", "ordered"):
        with pytest.raises(DataError, match=r"'numbered' has 1 training row; .* at least two"):
            mark(numbered(1), MarkingSettings(name=name))


def test_rows_of_takes_every_row_of_the_people_named() -> None:
    assert rows_of(numbered(9), ["p4", "p1"]).tolist() == [2, 3, 8]


@pytest.mark.parametrize(
    ("ids", "message"), [(["p1", "eve", "mallory"], "2 of 3 ids"), ([], "0 of 0 ids")]
)
def test_rows_of_nobody_are_refused_without_naming_anybody(ids: list[str], message: str) -> None:
    with pytest.raises(
        DataError, match=f"{message} own no training row of 'numbered'; name at least one"
    ) as caught:
        rows_of(numbered(9), ids)
    assert "eve" not in str(caught.value)


def test_mark_does_what_its_settings_say() -> None:
    data = load_dataset("breast_cancer")
    assert (
        mark(data, MarkingSettings(), seed=1).tolist()
        == smallest_clusters(data, clusters=8, seed=1).tolist()
    )
    settings = MarkingSettings(name="cluster", clusters=3)
    assert mark(data, settings).tolist() == smallest_clusters(data, clusters=3).tolist()
    settings = MarkingSettings(name="random", fraction=0.4)
    assert mark(data, settings, seed=1).tolist() == random_rows(data, fraction=0.4, seed=1).tolist()
    settings = MarkingSettings(name="ordered", fraction=0.4)
    assert torch.equal(mark(data, settings), torch.arange(round(0.4 * len(data.train))))


def test_settings_offer_what_the_table_has() -> None:
    assert set(get_args(MarkingSettings.model_fields["name"].annotation)) == set(MARKINGS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (MarkingSettings(), "smallest cluster of every class"),
        (MarkingSettings(name="random", fraction=0.125), "a random 0.125 of the rows"),
        (MarkingSettings(name="ordered"), "the first 0.2 of the rows"),
    ],
)
def test_the_request_says_how_it_was_made(settings: MarkingSettings, words: str) -> None:
    assert describe(settings) == words
