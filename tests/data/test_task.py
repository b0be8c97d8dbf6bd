"""What the labels are: classes, or numbers that are standardised by the training rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes

from puma.data import Dataset, Examples, Task, load_dataset
from puma.data.labelled_split import split_labelled
from puma.data.task import REGRESSION
from puma.errors import DataError

NUMBERS = torch.tensor([0.5, -1.0, 2.0, 3.0])
FEATURES = torch.arange(8.0).reshape(4, 2)


def numbers(task: Task = REGRESSION) -> Dataset:
    rows = Examples.of(FEATURES, NUMBERS, task=task)
    return Dataset("numbers", rows, rows, ())


def test_rows_keep_their_task_and_numbers_the_features_dtype() -> None:
    rows = Examples.of(FEATURES.double(), NUMBERS, ["a", "b", "c", "d"], task=REGRESSION)
    assert rows.labels.dtype == torch.float64
    for part in (rows.subset(torch.tensor([2])), rows.without(torch.tensor([0]))):
        assert part.task == REGRESSION
    assert numbers().rows.task == numbers().task == REGRESSION
    named = Examples.of(FEATURES, torch.tensor([0, 1, 0, 1]))
    assert Dataset("two", named, named, ("no", "yes")).task == Task(classes=("no", "yes"))


@pytest.mark.parametrize(
    ("labels", "task", "match"),
    [
        (NUMBERS, Task(), "one integer class number per example"),
        (torch.tensor([0.0, 1.0, torch.nan, torch.inf]), REGRESSION, "2 of 4 labels are NaN"),
        (torch.zeros(4, 1), REGRESSION, "one number per example"),
        (torch.zeros(4, dtype=torch.bool), REGRESSION, "one number per example"),
    ],
)
def test_labels_of_another_task_are_refused(labels: torch.Tensor, task: Task, match: str) -> None:
    with pytest.raises(DataError, match=match):
        Examples.of(FEATURES, labels, task=task)


def test_classes_that_do_not_suit_the_task_are_refused() -> None:
    with pytest.raises(DataError, match="two classes, and there are 3; set task: classification"):
        Task("binary", ("a", "b", "c"))
    with pytest.raises(DataError, match="a regression has no classes"):
        Task("regression", ("a",))
    rows = Examples.of(FEATURES, torch.tensor([0, 1, 0, 1]))
    with pytest.raises(DataError, match="is of a regression and the test split of a class"):
        Dataset("both", numbers().train, rows, ())


def test_a_stored_dataset_keeps_its_task_and_the_unit_of_its_target(tmp_path: Path) -> None:
    data = numbers(Task("regression", centre=152.0, scale=77.0))
    data.save(tmp_path / "data.npz")
    restored = Dataset.load(tmp_path / "data.npz")
    assert restored.task == data.task
    assert torch.equal(restored.train.labels, NUMBERS)
    assert restored.digest == data.digest != numbers().digest


def test_class_weights_are_no_part_of_the_data() -> None:
    rows = Examples.of(FEATURES, torch.tensor([0, 1, 0, 1]))
    weighted = rows.of_task(Task(class_weights=(1.0, 2.0)))
    plain, other = (Dataset("two", each, each, ("a", "b")) for each in (rows, weighted))
    assert plain.digest == other.digest
    assert other.task.class_weights == (1.0, 2.0)


def test_alike_are_the_rows_of_a_class_or_of_a_quarter_of_the_numbers() -> None:
    classes = torch.tensor([2, 0, 1])
    assert torch.equal(Task().strata(classes), classes)
    values = torch.arange(8.0).flip(0)
    assert REGRESSION.strata(values).tolist() == [3, 3, 2, 2, 1, 1, 0, 0]


def test_numbers_are_standardised_by_the_training_rows_and_split_by_person() -> None:
    values = np.random.default_rng(0).normal(150, 70, 200)
    owners = [f"p{row % 80}" for row in range(200)]
    found = split_labelled(
        "own", values, owners, None, task="regression", seed=0, test_fraction=0.25
    )
    train = values[found.train]
    assert (found.task.centre, found.task.scale) == pytest.approx((train.mean(), train.std()))
    np.testing.assert_allclose(found.labels * train.std() + train.mean(), values)
    sides = [{owners[row] for row in rows} for rows in (found.train, found.test)]
    assert sides[0].isdisjoint(sides[1])
    assert len(sides[1]) == 20


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (np.full(20, 3.0), "the target has one value in all 15 training rows"),
        (np.append(np.arange(19.0), np.nan), "missing or infinite in 1 of 20 rows"),
    ],
)
def test_numbers_that_cannot_be_learnt_are_refused(values: np.ndarray, match: str) -> None:
    owners = [str(row) for row in range(20)]
    with pytest.raises(DataError, match=match):
        split_labelled("own", values, owners, None, task="regression", seed=0, test_fraction=0.25)


@pytest.mark.parametrize("constant", [0.1, 1e9 + 0.1, -1 / 3])
def test_a_constant_target_is_refused_though_its_mean_is_rounded(constant: float) -> None:
    owners = [str(row) for row in range(120)]
    with pytest.raises(DataError, match="the target has one value in all 90 training rows"):
        split_labelled(
            "own", np.full(120, constant), owners, None, task="regression", seed=0,
            test_fraction=0.25,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (np.arange(40) * 1e300, r"deviation inf in the 30 training rows, too large, too small or"),
        (np.arange(40) * 1e-300, r"deviation 0 in the 30 training rows, .* in another unit, or"),
        (1e18 + np.arange(40) * 128.0, r"mean is 1e\+18 and its deviation .* subtract a constant"),
    ],
)
def test_a_target_that_double_precision_does_not_hold_is_refused(
    values: np.ndarray, match: str
) -> None:
    owners = [str(row) for row in range(40)]
    with pytest.raises(DataError, match=match):
        split_labelled("own", values, owners, None, task="regression", seed=0, test_fraction=0.25)


@pytest.mark.parametrize("unit", [1e9, 1e-9])
def test_the_unit_of_a_target_does_not_matter(unit: float) -> None:
    values = np.random.default_rng(0).normal(size=40)
    owners = [str(row) for row in range(40)]
    one, other = (
        split_labelled("own", each, owners, None, task="regression", seed=0, test_fraction=0.25)
        for each in (values, values * unit)
    )
    assert one.test.tolist() == other.test.tolist()
    np.testing.assert_allclose(other.labels, one.labels, rtol=1e-9)


@pytest.mark.parametrize(("rows", "held_out"), [(5, 2), (8, 2), (10, 3), (12, 3), (16, 4)])
def test_a_regression_of_few_people_is_split_without_quarters(rows: int, held_out: int) -> None:
    owners = [str(row) for row in range(rows)]
    found = split_labelled(
        "own", np.arange(rows) / 3, owners, None, task="regression", seed=0, test_fraction=0.25
    )
    assert len(found.test) == held_out


def test_rows_of_one_person_cannot_be_split() -> None:
    with pytest.raises(DataError, match=r"all 8 rows that .* splits are one person's"):
        split_labelled(
            "own", np.arange(8) / 3, ["me"] * 8, None, task="regression", seed=0,
            test_fraction=0.25,
        )  # fmt: skip


def test_one_logit_is_for_two_classes() -> None:
    labels, owners = list("abcabcabc"), [str(row) for row in range(9)]
    with pytest.raises(DataError, match="task: binary needs a target of two values, and this"):
        split_labelled("own", labels, owners, None, task="binary", seed=0, test_fraction=0.3)


def test_diabetes_is_scikit_learns_table() -> None:
    data, published = load_dataset("diabetes"), load_diabetes(scaled=False)
    target = data.rows.labels.double() * data.task.scale + data.task.centre
    order = [int(name.removeprefix("patient-")) - 1 for name in data.rows.subject_ids]
    np.testing.assert_allclose(target.numpy(), published.target[order], rtol=1e-5)
    assert data.classes == ()
    assert replace(data, source="x").task == data.task
