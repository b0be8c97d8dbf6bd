import numpy as np
import torch

from puma.data.base import Dataset, Examples
from puma.references import leave_out_groups

OWNERS = [f"person{row // 2}" for row in range(80)]


def two_rows_each() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(80, 3, generator=generator)
    labels = (torch.arange(80) // 2) % 2
    test = Examples.of(features[:4], labels[:4], [f"other{row}" for row in range(4)])
    return Dataset("pairs", Examples.of(features, labels, OWNERS), test, ("a", "b"))


def test_every_partition_divides_the_rows_by_person_into_quarters():
    groups = leave_out_groups(two_rows_each(), 8, seed=1)
    assert len(groups) == 32
    owners = np.array(OWNERS)
    for start in range(0, 32, 4):
        parts = groups[start : start + 4]
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(80))
        for part in parts:
            assert 10 <= len(part) <= 40
            others = np.setdiff1d(np.arange(80), part)
            assert not np.intersect1d(owners[part], owners[others]).size


def test_the_seed_decides_and_partitions_differ():
    first, again, other = (leave_out_groups(two_rows_each(), 8, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(*pair) for pair in zip(first, again, strict=True))
    assert not all(np.array_equal(*pair) for pair in zip(first, other, strict=True))
    assert len({part.tobytes() for part in first}) > 28  # few clusters may fall alike


def test_look_alikes_are_left_out_together():
    data = two_rows_each()
    # 24 far-away heaps of the same class: a partition at that scale keeps each of them whole.
    heaps = torch.arange(96) // 4
    features = torch.stack([100.0 * heaps, torch.zeros(96)], 1) + torch.randn(96, 2) * 0.01
    labels = torch.zeros(96, dtype=torch.long)
    one = Examples.of(features, labels)
    test = Examples.of(features[:1], labels[:1] + 1)
    groups = leave_out_groups(Dataset(data.name, one, test, data.classes), 1, seed=0)
    for part in groups:
        found, counts = np.unique(heaps.numpy()[part], return_counts=True)
        assert (counts == 4).mean() > 0.7, found
