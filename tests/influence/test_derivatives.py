from __future__ import annotations

import pytest
import torch

from puma.data import Examples
from puma.data.task import REGRESSION
from puma.errors import DataError, SettingsError
from puma.influence import FlatModel, MeanLoss, directional_derivatives, weighted_gradient
from tests.cases import MODELS, mlp, random_examples
from tests.oracles import per_example_gradients, per_example_jacobians, per_example_losses

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def direction_for(flat, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(flat.size, generator=generator, dtype=flat.dtype)


@pytest.mark.parametrize("batch_size", [4, 100])
@pytest.mark.parametrize("name", MODELS)
def test_both_equal_the_per_example_gradients(name, batch_size):
    model, examples = MODELS[name](), random_examples(11, 3)
    flat, gradients = FlatModel(model), per_example_gradients(model, examples)
    weights, direction = direction_for(flat)[: len(examples)], direction_for(flat, seed=2)
    weights = torch.nn.functional.pad(weights, (0, len(examples) - len(weights)), value=0.5)
    torch.testing.assert_close(
        weighted_gradient(flat, examples, weights, batch_size=batch_size),
        gradients.T @ weights,
        **EXACT,
    )
    torch.testing.assert_close(
        directional_derivatives(flat, examples, direction, batch_size=batch_size),
        gradients @ direction,
        **EXACT,
    )


def test_directional_derivatives_are_central_differences():
    model, examples = mlp(), random_examples(20, 3)
    flat, step = FlatModel(model), 1e-6
    direction = direction_for(flat)
    ahead = per_example_losses(flat.module(flat.vector + step * direction), examples)
    behind = per_example_losses(flat.module(flat.vector - step * direction), examples)
    torch.testing.assert_close(
        directional_derivatives(flat, examples, direction),
        ((ahead - behind) / (2 * step)).detach(),
        rtol=1e-7,
        atol=1e-8,
    )


def test_they_work_inside_no_grad_and_give_plain_tensors():
    model, examples = mlp(), random_examples(5, 3)
    flat, ones = FlatModel(model), torch.ones(5, dtype=torch.float64)
    with torch.no_grad():
        total = weighted_gradient(flat, examples, ones)
    torch.testing.assert_close(total, per_example_gradients(model, examples).sum(0), **EXACT)
    assert not total.requires_grad
    assert not directional_derivatives(flat, examples, total).requires_grad


def test_examples_of_weight_zero_are_not_looked_at():
    model, examples = mlp(), random_examples(6, 3)
    flat, weights = FlatModel(model), torch.tensor([0.0, 1, 0, 2, 0, 0], dtype=torch.float64)
    labels = torch.where(weights == 0, 99, examples.labels)  # out of range: would raise
    unusable = Examples.of(examples.features, labels)
    expected = per_example_gradients(model, examples).T @ weights
    torch.testing.assert_close(weighted_gradient(flat, unusable, weights), expected, **EXACT)
    assert torch.equal(weighted_gradient(flat, examples, weights * 0), torch.zeros(flat.size))


@pytest.mark.parametrize("share", [0.01, 0.2, 0.9])
def test_as_many_negligible_examples_as_their_share_allows_are_left_out(share):
    model, examples = mlp(), random_examples(40, 3)
    flat = FlatModel(model)
    weights = torch.linspace(-2, 3, 40, dtype=torch.float64)
    with torch.no_grad():
        gaps = model(examples.features).softmax(1)
    gaps[torch.arange(40), examples.labels] -= 1  # of cross-entropy, in the logits
    sizes = gaps.norm(dim=1) * weights.abs()
    kept, left = torch.ones(40, dtype=torch.bool), 0.0
    for row in sizes.argsort().tolist():
        left += float(sizes[row])
        if left > share * float(sizes.sum()):
            break
        kept[row] = False
    assert 0 < int(kept.sum()) < 40
    gradients = per_example_gradients(model, examples)
    found = weighted_gradient(flat, examples, weights, batch_size=7, negligible=share)
    torch.testing.assert_close(found, gradients.T @ (weights * kept), **EXACT)
    jacobians = per_example_jacobians(model, examples)
    largest = float(torch.linalg.matrix_norm(jacobians, 2).max())
    error = float((found - gradients.T @ weights).norm())
    assert 0 < error <= share * largest * float(sizes.sum())


def test_examples_without_any_loss_are_all_negligible():
    model = torch.nn.Linear(3, 1).double()
    features = random_examples(9, 3).features
    with torch.no_grad():
        examples = Examples.of(features, model(features)[:, 0], task=REGRESSION)
    ones = torch.ones(9, dtype=torch.float64)
    found = weighted_gradient(FlatModel(model), examples, ones, batch_size=9, negligible=0.1)
    assert torch.equal(found, torch.zeros(4, dtype=torch.float64))


def test_no_examples_give_no_derivatives():
    flat, none = FlatModel(mlp()), random_examples(3, 3).subset(torch.tensor([], dtype=torch.long))
    assert directional_derivatives(flat, none, direction_for(flat)).shape == (0,)
    assert torch.equal(weighted_gradient(flat, none, torch.ones(0)), torch.zeros(flat.size))


def test_misfits_are_refused():
    flat, examples = FlatModel(mlp()), random_examples(3, 3)
    with pytest.raises(DataError, match=r"each of 3 examples, got shape \(2,\)"):
        weighted_gradient(flat, examples, torch.ones(2))
    with pytest.raises(DataError, match="with 1 not finite"):
        weighted_gradient(flat, examples, torch.tensor([1.0, float("nan"), 1.0]))
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(SettingsError, match="negligible must be >= 0 and < 1, got"):
            weighted_gradient(flat, examples, torch.ones(3), negligible=share)
    with pytest.raises(DataError, match=r"direction must have shape \(38,\), got \(3,\)"):
        directional_derivatives(flat, examples, torch.ones(3))


@pytest.mark.parametrize("batch_size", [4, 100])
def test_mean_loss_and_its_gradient(batch_size):
    model, examples = mlp(), random_examples(11, 3)
    flat, criterion = FlatModel(model), MeanLoss(examples, batch_size)
    moved = flat.vector + 0.1
    expected = per_example_losses(flat.module(moved), examples).mean().item()
    assert criterion.value(flat, moved) == pytest.approx(expected, rel=1e-14)
    torch.testing.assert_close(
        criterion.gradient(flat), per_example_gradients(model, examples).mean(0), **EXACT
    )


def test_mean_loss_of_nothing_is_refused():
    none = random_examples(3, 3).subset(torch.tensor([], dtype=torch.long))
    with pytest.raises(DataError, match="the mean loss needs at least one example, got 0"):
        MeanLoss(none)
