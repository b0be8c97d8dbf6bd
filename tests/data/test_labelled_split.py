"""The split by person: nobody on both sides, classes on both, one seed one split."""

from __future__ import annotations

import numpy as np
import pytest

from puma.data.labelled_split import split_labelled
from puma.data.splitting import split_rows
from puma.errors import DataError


def people(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Labels and owners: one to six rows each, of one class in nine of ten cases."""
    draw = np.random.default_rng(seed)
    labels, owners = [], []
    for person in range(count):
        own = draw.choice(["a", "b", "rare"], p=[0.6, 0.36, 0.04])
        for _ in range(draw.integers(1, 7)):
            labels.append(str(own if draw.random() < 0.9 else "a"))
            owners.append(f"p{person}")
    order = draw.permutation(len(labels))
    return [labels[row] for row in order], [owners[row] for row in order]


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_on_both_sides_and_every_class_is(seed: int) -> None:
    labels, owners = people(200, seed)
    found = split_labelled("own", labels, owners, None, seed=seed, test_fraction=0.25)
    assert sorted([*found.train, *found.test]) == list(range(len(labels)))
    sides = [{owners[row] for row in rows} for rows in (found.train, found.test)]
    assert not sides[0] & sides[1]
    assert len(sides[1]) == 50
    assert [found.task.classes[number] for number in found.labels] == labels
    rare = [
        {owners[row] for row in rows if labels[row] == "rare"} for rows in (found.train, found.test)
    ]
    assert len(rare[1]) == pytest.approx(0.25 * len(rare[0] | rare[1]), abs=1)
    again = split_labelled("own", labels, owners, None, seed=seed, test_fraction=0.25)
    other = split_labelled("own", labels, owners, None, seed=seed + 1, test_fraction=0.25)
    assert again.test.tolist() == found.test.tolist() != other.test.tolist()


def test_people_of_one_row_are_split_as_rows_are() -> None:
    labels = ["x"] * 30 + ["y"] * 50
    owners = [f"p{row}" for row in range(80)]
    found = split_labelled("own", labels, owners, None, seed=3, test_fraction=0.2)
    _, test = split_rows("own", np.asarray(labels), seed=3, test_fraction=0.2)
    assert found.test.tolist() == sorted(test.tolist())


def test_numbers_are_classes_in_their_order() -> None:
    labels = ["10", "9", "-1", "9", "10", "-1"] * 4
    owners = [f"p{row}" for row in range(24)]
    found = split_labelled("own", labels, owners, None, seed=0, test_fraction=0.25)
    assert found.task.classes == ("-1", "9", "10")
    assert found.labels[:3].tolist() == [2, 1, 0]


def test_a_class_whose_people_have_rarer_ones_too_does_not_stop_the_split() -> None:
    # Of b's two people, one also owns the only rows of the rarer c but for another person's.
    labels = ["a"] * 40 + ["b", "b", "b"] + ["c", "c"]
    owners = [f"p{row}" for row in range(40)] + ["q", "r", "r"] + ["q", "s"]
    for seed in range(20):
        try:
            found = split_labelled("own", labels, owners, None, seed=seed, test_fraction=0.5)
        except DataError as error:
            assert "have no row in the" in str(error)  # noqa: PT017 - either is right
            continue
        assert {*found.labels[found.train].tolist()} == {0, 1, 2}
        return
    pytest.fail("no seed splits these rows")


def test_a_fraction_without_a_split_is_refused() -> None:
    labels, owners = ["a", "b"] * 4, [f"p{row}" for row in range(8)]
    with pytest.raises(
        DataError, match=r"dataset 'own' has no split with data\.test_fraction 0\.1"
    ):
        split_labelled("own", labels, owners, None, seed=0, test_fraction=0.1)
