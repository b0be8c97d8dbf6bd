"""Criteria that a removal keeps: on which rows, and functions of the user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from puma.data import Dataset
from puma.errors import DataError, SettingsError
from puma.influence import FlatModel, OwnFunction, preserved_criterion
from puma.settings import PreservedCriterion
from tests.cases import convolutional, mlp, random_examples

CODE = """
import torch

def worst_tenth(logits, labels):
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    return losses.sort().values[-len(losses) // 10 :].mean()

def accuracy(logits, labels):
    return (logits.argmax(1) == labels).double().mean()

def detached(logits, labels):
    return logits.detach().mean()

def cornered(logits, labels):
    return (logits - logits).abs().sum().sqrt()

def row_by_row(logits, labels):
    return logits.sum(1)

def number(logits, labels):
    return 3.0

def infinite(logits, labels):
    return logits.mean() / 0

def broken(logits, labels):
    return logits.mean() + undefined

LIMIT = 0.5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_criteria.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_criteria"
    sys.modules.pop("my_criteria", None)


def dataset(*, validation: bool = True) -> Dataset:
    train, test, held_out = (random_examples(n, 3, seed=n) for n in (45, 12, 31))
    old = {"age > 60": torch.arange(45) % 3 > 0}
    young = {"age > 60": torch.arange(31) % 2 > 0}
    return Dataset(
        "tiny",
        train.with_groups(old),
        test,
        ("a", "b", "c"),
        validation=held_out.with_groups(young) if validation else None,
    )


def losses(model: torch.nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        return cross_entropy(model(features), labels, reduction="none")


@pytest.mark.parametrize(
    ("settings", "part", "rows"),
    [
        ({"criterion": "retained_loss"}, "train", slice(None)),
        ({"criterion": "validation_loss"}, "validation", slice(None)),
        ({"criterion": "group_loss", "where": "age > 60"}, "train", "age > 60"),
        (
            {"criterion": "group_loss", "where": "age > 60", "over": "validation"},
            "validation",
            "age > 60",
        ),
        ({"criterion": "validation_loss", "where": "age > 60"}, "validation", "age > 60"),
    ],
)
def test_each_loss_is_the_mean_over_its_rows(settings, part, rows) -> None:
    data, model = dataset(), mlp()
    examples = getattr(data, part)
    chosen = examples.groups[rows] if isinstance(rows, str) else rows
    flat = FlatModel(model)
    criterion = preserved_criterion(PreservedCriterion(budget=1, **settings), data, 0.0)
    expected = losses(model, examples.features, examples.labels)[chosen].mean()
    assert criterion.value(flat, flat.vector) == pytest.approx(float(expected), rel=1e-12)


def test_a_sample_is_drawn_from_the_rows_of_the_criterion() -> None:
    data = dataset()
    wanted = PreservedCriterion(criterion="group_loss", where="age > 60", budget=1)
    criterion = preserved_criterion(wanted, data, 0.0, sample=7, seed=3)
    inside = {*data.train.subject_ids[data.train.groups["age > 60"].numpy()].tolist()}
    drawn = criterion.examples.subject_ids.tolist()
    assert len(drawn) == 7
    assert {*drawn} < inside


def test_no_validation_rows_are_said_to_be_missing_and_test_rows_never_take_their_place() -> None:
    wanted = PreservedCriterion(criterion="validation_loss", budget=1)
    with pytest.raises(SettingsError, match=r"'tiny' has none; set data.validation_fraction, such"):
        preserved_criterion(wanted, dataset(validation=False), 0.0)


def test_an_unknown_criterion_and_group_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"puma.preserve: unknown criterion 'ece'; choose one "):
        preserved_criterion(PreservedCriterion(criterion="ece", budget=1), dataset(), 0.0)
    wanted = PreservedCriterion(criterion="group_loss", where="age > 70", budget=1)
    with pytest.raises(DataError, match="prepared without the group 'age > 70'"):
        preserved_criterion(wanted, dataset(), 0.0)


@pytest.mark.parametrize("batch_size", [None, 7])
@pytest.mark.parametrize("name", ["mlp", "convolutional"])
def test_an_own_function_has_the_gradient_of_the_whole(module, name, batch_size) -> None:
    model, shape = (mlp(), (3,)) if name == "mlp" else (convolutional(), (1, 4, 4))
    examples, flat = random_examples(40, *shape), FlatModel(model)
    named = OwnFunction.named(f"{module}:worst_tenth", examples)
    criterion = replace(named, batch_size=batch_size)

    def whole(vector: Tensor) -> Tensor:
        logits = flat.logits(vector, examples.features)
        each = cross_entropy(logits, examples.labels, reduction="none")
        return each.sort().values[-4:].mean()

    value, gradient = whole(flat.vector), torch.func.grad(whole)(flat.vector)
    assert criterion.value(flat, flat.vector) == pytest.approx(float(value), rel=1e-12)
    torch.testing.assert_close(criterion.gradient(flat), gradient, rtol=1e-10, atol=1e-12)
    assert float(gradient.norm()) > 1e-3


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("accuracy", "is not differentiable: its value does not come from the logits"),
        ("detached", "is not differentiable"),
        ("cornered", "has a gradient with 120 of 120 entries that are NaN or infinite"),
        ("row_by_row", r"returned a tensor of shape \(40,\) of torch.float64; return one number"),
        ("number", "returned float; return one number as a tensor"),
        ("infinite", "is -?inf on the 40 rows; return a finite number"),
        ("broken", r"raised NameError; it is called with logits of shape \(40, 3\) and labels"),
    ],
)
def test_what_is_no_criterion_is_refused(module, function, message) -> None:
    flat = FlatModel(mlp())
    criterion = OwnFunction.named(f"{module}:{function}", random_examples(40, 3))
    with pytest.raises(SettingsError, match=message):
        criterion.gradient(flat)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{}:LIMIT", "is of type float; name a function of logits and labels"),
        ("{}:nothing", "cannot be imported"),
        ("no_such_module:worst", "cannot be imported"),
    ],
)
def test_what_is_no_function_is_refused(module, name, message) -> None:
    with pytest.raises(SettingsError, match=message):
        OwnFunction.named(name.format(module), random_examples(40, 3))
