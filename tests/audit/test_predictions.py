from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logit, softmax
from scipy.stats import rankdata
from torch import nn

from puma.audit import Predictions, predict
from puma.data.base import Dataset, Examples
from puma.errors import AuditError
from puma.models import mlp
from tests.audit.conftest import CLASSES, predictions_of, random_predictions


def forward(model: nn.Module, examples: Examples) -> np.ndarray:
    with torch.no_grad():
        outputs: np.ndarray = model(examples.features).double().numpy()
    return outputs


def test_losses_are_minus_the_log_of_the_labels_probability() -> None:
    given = random_predictions(50, 0)
    labels = given.labels.numpy()
    expected = -log_softmax(given.after.numpy(), 1)[np.arange(50), labels]
    np.testing.assert_allclose(given.losses, expected, rtol=1e-12)
    assert (given.losses > 0).all()


def test_margins_are_the_log_odds_of_the_labels_probability() -> None:
    given = random_predictions(50, 1)
    labels = given.labels.numpy()
    expected = logit(softmax(given.after.numpy(), 1)[np.arange(50), labels])
    np.testing.assert_allclose(given.margins, expected, rtol=1e-9)


@pytest.mark.parametrize("gap", [-800.0, -30.0, 0.0, 0.5, 40.0, 800.0])
def test_the_margin_of_two_classes_is_the_difference_of_their_logits(gap: float) -> None:
    logits = [[3.0 + gap, 3.0]]
    assert predictions_of(logits, [0]).margins[0] == pytest.approx(gap, abs=1e-9)
    assert predictions_of(logits, [1]).margins[0] == pytest.approx(-gap, abs=1e-9)


def test_the_order_of_the_margins_is_that_of_minus_the_losses() -> None:
    given = random_predictions(200, 2)
    ranks = rankdata(given.margins)
    np.testing.assert_array_equal(ranks, rankdata(-given.losses))


def test_confident_rows_do_not_tie_though_single_precision_logits_are_given() -> None:
    logits = torch.tensor([[20.0, 0.0], [25.0, 0.0]])  # both losses are 0 in float32
    labels = torch.tensor([0, 0])
    given = Predictions(logits, logits, labels, np.arange(2))
    weaker, stronger = given.losses
    assert weaker > stronger > 0
    assert given.margins == pytest.approx([20, 25])


def test_rows_are_training_rows_and_then_test_rows(memory: Dataset, overfitted: nn.Module) -> None:
    parent = mlp(10, CLASSES)
    given = predict(overfitted, memory.train, memory.test, parent=parent)
    for found, model in ((given.after, overfitted), (given.before, parent)):
        expected = np.concatenate([forward(model, memory.train), forward(model, memory.test)])
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    assert given.labels.tolist() == [*memory.train.labels.tolist(), *memory.test.labels.tolist()]
    assert given.rows.tolist() == list(range(400))
    assert {given.after.dtype, given.before.dtype} == {torch.float64}


def test_without_a_parent_a_model_is_its_own(memory: Dataset, overfitted: nn.Module) -> None:
    given = predict(overfitted, memory.train, memory.test)
    assert torch.equal(given.before, given.after)
    alone = predict(overfitted, memory.test)
    assert torch.equal(alone.before, alone.after)
    np.testing.assert_allclose(alone.after.numpy(), forward(overfitted, memory.test), atol=1e-5)
    assert alone.rows.tolist() == list(range(200))
    assert torch.equal(alone.labels, memory.test.labels)


@pytest.mark.parametrize("training", [True, False])
def test_predicting_leaves_the_model_as_it_was(memory: Dataset, training: bool) -> None:
    model = nn.Sequential(mlp(10, CLASSES), nn.Dropout(0.5)).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert torch.equal(
        predict(model, memory.train, memory.test).after,
        predict(model, memory.train, memory.test).after,
    )
    assert all(module.training is training for module in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("as_tensor", [True, False])
def test_at_takes_everything_of_the_chosen_rows(as_tensor: bool) -> None:
    whole = random_predictions(9, 3)
    chosen = np.array([7, 2, 2, 0])
    part = whole.at(torch.from_numpy(chosen) if as_tensor else chosen).at(np.array([1, 3]))
    assert len(part) == 2
    assert part.rows.tolist() == [2, 0]
    assert torch.equal(part.labels, whole.labels[[2, 0]])
    assert torch.equal(part.after, whole.after[[2, 0]])
    assert torch.equal(part.before, whole.before[[2, 0]])


def test_of_parent_is_the_state_before() -> None:
    given = random_predictions(5, 4)
    parent = given.of_parent()
    assert torch.equal(parent.after, given.before)
    assert torch.equal(parent.before, given.before)
    assert torch.equal(parent.labels, given.labels)
    assert parent.rows.tolist() == given.rows.tolist()
    assert not torch.equal(given.after, given.before)  # which is itself as it was


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("version", "name"), [(0, "parent"), (1, "audited version")])
def test_broken_logits_are_refused(value: float, version: int, name: str) -> None:
    logits = [np.zeros((3, 2)), np.zeros((3, 2))]
    logits[version][1:, 0] = value
    with pytest.raises(AuditError, match=f"the {name} predicts NaN or infinity for 2 of 3 rows"):
        predictions_of(logits[1], [0, 1, 0], logits[0])


@pytest.mark.parametrize(
    ("before", "after", "n"),
    [((3, 2), (4, 2), 4), ((4, 3), (4, 2), 4), ((4, 2), (4, 2), 3), ((4,), (4,), 4)],
    ids=["rows", "classes", "labels", "one dimension"],
)
def test_shapes_that_disagree_are_refused(
    before: tuple[int, ...], after: tuple[int, ...], n: int
) -> None:
    with pytest.raises(AuditError, match=rf"logits of both versions for n = {n} labels"):
        Predictions(torch.zeros(before), torch.zeros(after), torch.zeros(n).long(), np.arange(n))


def test_a_label_without_a_logit_is_refused() -> None:
    with pytest.raises(AuditError, match="a label is 2, but the model predicts 2 classes"):
        predictions_of(np.zeros((3, 2)), [0, 1, 2])


def test_repr_holds_no_value_of_a_single_row() -> None:
    assert repr(random_predictions(7, 5)) == "Predictions(n=7, classes=4)"
