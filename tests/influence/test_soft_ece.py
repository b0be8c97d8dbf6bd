"""The soft calibration error against its definition, written out bin by bin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from puma.calibration import hard_ece
from puma.data import Examples, Task
from puma.errors import DataError, SettingsError
from puma.influence import FlatModel, SoftECE, influence_scores
from tests.cases import DOUBLE, MODELS, logistic, mlp, random_examples
from tests.oracles import (
    dense_gauss_newton,
    flat_parameters,
    per_example_gradients,
)

EXACT = {"rtol": 1e-12, "atol": 1e-14}


def written_out(logits: Tensor, labels: Tensor, bins: int, temperature: float) -> Tensor:
    """Σ_b share_b·|accuracy_b − confidence_b|, one bin and one example after the other."""
    confidence = logits.softmax(1).max(1).values
    right = (logits.argmax(1) == labels).to(logits.dtype)
    error = torch.zeros((), dtype=logits.dtype)
    centres = [(number + 0.5) / bins for number in range(bins)]
    nearness = [torch.exp(-((confidence - centre) ** 2) / temperature) for centre in centres]
    for near in nearness:
        member = near / sum(nearness)
        share = member.sum() / len(labels)
        accuracy = (member * right).sum() / member.sum()
        error = error + share * ((accuracy - (member * confidence).sum() / member.sum()).abs())
    return error


def dense_gradient(model, examples: Examples, bins: int, temperature: float) -> Tensor:
    error = written_out(model.eval()(examples.features), examples.labels, bins, temperature)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(error, parameters)])


@pytest.mark.parametrize("batch_size", [None, 4, 23])
@pytest.mark.parametrize("name", MODELS)
def test_value_and_gradient_are_those_of_the_definition(name, batch_size):
    model, examples = MODELS[name](), random_examples(23, 3)
    flat, criterion = FlatModel(model), SoftECE(examples, 7, 0.02, batch_size)
    moved = flat.vector + 0.1
    expected = written_out(flat.module(moved)(examples.features), examples.labels, 7, 0.02)
    assert criterion.value(flat, moved) == pytest.approx(expected.item(), rel=1e-12)
    gradient = criterion.gradient(flat)
    torch.testing.assert_close(gradient, dense_gradient(model, examples, 7, 0.02), **EXACT)
    assert not gradient.requires_grad


def test_the_gradient_is_the_central_difference_of_the_value():
    model, examples = mlp(), random_examples(40, 3, seed=2)
    flat, criterion, step = FlatModel(model), SoftECE(examples), 1e-6
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        direction = torch.randn(flat.size, generator=generator, dtype=DOUBLE)
        ahead, behind = (
            criterion.value(flat, flat.vector + sign * step * direction) for sign in (1, -1)
        )
        slope = float(criterion.gradient(flat) @ direction)
        assert slope == pytest.approx((ahead - behind) / (2 * step), rel=1e-6)


def test_sharp_bins_give_the_hard_error():
    model, examples = mlp(), random_examples(60, 3)
    flat = FlatModel(model)
    probabilities = model(examples.features).softmax(1)
    sharp = SoftECE(examples, temperature=1e-6).value(flat, flat.vector)
    assert sharp == pytest.approx(hard_ece(probabilities, examples.labels), rel=1e-6)


def test_by_hand_one_bin_is_the_gap_of_the_means():
    logits = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9]], dtype=DOUBLE).log()
    labels = torch.tensor([0, 1, 1, 0])  # right, wrong, right, wrong
    # Features e_i pick the i-th column of the weights: its logits.
    examples = Examples.of(torch.eye(4, dtype=DOUBLE), labels)
    flat = FlatModel(logistic(logits.T.flatten(), 2))
    value = SoftECE(examples, bins=1).value(flat, flat.vector)
    assert value == pytest.approx(abs(0.5 - (0.8 + 0.6 + 0.7 + 0.9) / 4), rel=1e-12)


def test_the_gradient_of_a_perfect_model_is_nothing():
    # Bins whose sum is exactly 0 are kinks; they are left out.
    examples = Examples.of(torch.zeros(4, 3, dtype=DOUBLE), torch.tensor([0, 0, 1, 1]))
    flat = FlatModel(torch.nn.Linear(3, 2, dtype=DOUBLE))
    zero = torch.zeros(flat.size, dtype=DOUBLE)
    flat = FlatModel(flat.module(zero))
    criterion = SoftECE(examples)
    assert criterion.value(flat, zero) == 0
    assert torch.equal(criterion.gradient(flat), zero)


def test_it_is_a_criterion_for_the_influence_scores():
    model, train = mlp(), random_examples(13, 3)
    held_out = random_examples(20, 3, seed=1)
    matrix = dense_gauss_newton(model, train) + 0.1 * torch.eye(38, dtype=DOUBLE)
    inverse = torch.linalg.solve(matrix, dense_gradient(model, held_out, 15, 0.01))
    scores = influence_scores(model, train, criterion=SoftECE(held_out), solver="dense")
    expected = per_example_gradients(model, train) @ inverse
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-12)


def test_single_precision_is_good_to_single_precision():
    model, examples = mlp(), random_examples(50, 3)
    flat, single = FlatModel(model), FlatModel(mlp().float())
    rough = Examples.of(examples.features.float(), examples.labels)
    fine, coarse = SoftECE(examples), SoftECE(rough)
    expected = fine.value(flat, flat.vector)
    assert coarse.value(single, single.vector) == pytest.approx(expected, rel=1e-4)
    assert coarse.gradient(single).dtype == torch.float32
    torch.testing.assert_close(
        coarse.gradient(single).double(), fine.gradient(flat), rtol=1e-3, atol=1e-5
    )


def test_the_model_and_the_random_state_are_left_alone():
    model, examples = MODELS["normalised"]().train(), random_examples(9, 3)
    before, state = flat_parameters(model), torch.get_rng_state()
    flat, criterion = FlatModel(model), SoftECE(examples)
    criterion.gradient(flat)
    criterion.value(flat, flat.vector)
    assert model.training
    assert torch.equal(flat_parameters(model), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_misfits_are_refused():
    examples = random_examples(3, 3)
    with pytest.raises(DataError, match="soft calibration error needs at least one example, got 0"):
        SoftECE(examples.subset(torch.tensor([], dtype=torch.long)))
    with pytest.raises(SettingsError, match="bins must be >= 1, got 0"):
        SoftECE(examples, bins=0)
    for temperature in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(SettingsError, match="temperature must be finite and > 0, got"):
            SoftECE(examples, temperature=temperature)
    flat = FlatModel(mlp())
    with pytest.raises(SettingsError, match="batch_size"):
        SoftECE(examples, batch_size=0).gradient(flat)


def test_one_logit_is_that_of_the_second_class_against_none():
    examples = random_examples(31, 3, classes=2)
    one = nn.Linear(3, 1, dtype=DOUBLE)
    two = nn.Linear(3, 2, dtype=DOUBLE)
    with torch.no_grad():
        for parameter, single in ((two.weight, one.weight), (two.bias, one.bias)):
            parameter[0], parameter[1] = 0, single[0]
    binary, pair = FlatModel(one), FlatModel(two)
    found = SoftECE(examples.of_task(Task("binary")))
    expected = SoftECE(examples)
    assert found.value(binary, binary.vector) == pytest.approx(
        expected.value(pair, pair.vector), rel=1e-12
    )
    gradient = expected.gradient(pair)
    weight, bias = gradient[3:6], gradient[7:]
    torch.testing.assert_close(found.gradient(binary), torch.cat([weight, bias]), **EXACT)


def test_a_regression_has_no_calibration_error():
    rows = Examples.of(torch.zeros(3, 1), torch.zeros(3), task=Task("regression"))
    with pytest.raises(DataError, match="the soft calibration error needs classes, and these row"):
        SoftECE(rows)
