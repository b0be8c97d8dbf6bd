from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from puma.data import Dataset, Examples
from puma.errors import DataError, ModelError, SettingsError
from puma.influence import (
    ConjugateGradients,
    Dense,
    FlatModel,
    GaussNewton,
    MeanLoss,
    Shifted,
    influence_scores,
    sampled,
    weighted_gradient,
)
from tests.cases import DOUBLE, MODELS, logistic, mlp, normalised, random_examples
from tests.oracles import (
    LogisticRegression,
    dense_gauss_newton,
    dense_hessian,
    per_example_gradients,
)
from tests.states import state_of

DECAY = 0.05
CLASSES = 3
SHARP = ConjugateGradients(tolerance=1e-13)


@pytest.fixture(scope="module")
def regression():
    """(training examples, validation examples, closed form, its optimum)."""
    train, validation = random_examples(60, 4), random_examples(40, 4, seed=1)
    closed = LogisticRegression(train, decay=DECAY)
    return train, validation, closed, closed.optimum()


@pytest.fixture(scope="module")
def psi(regression):
    train, validation, _, optimum = regression
    return influence_scores(
        logistic(optimum, CLASSES),
        train,
        criterion=MeanLoss(validation),
        solver=SHARP,
        damping=DECAY,
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("solver", [SHARP, Dense()], ids=["cg", "dense"])
def test_scores_equal_explicit_inverse_and_gradients(name, solver):
    model, train, held_out = MODELS[name](), random_examples(13, 3), random_examples(5, 3, seed=1)
    gradients = per_example_gradients(model, train)
    matrix = dense_gauss_newton(model, train)
    matrix = matrix + 0.1 * torch.eye(len(matrix), dtype=torch.float64)
    inverse = torch.linalg.solve(matrix, per_example_gradients(model, held_out).mean(0))
    scores = influence_scores(model, train, criterion=MeanLoss(held_out), solver=solver)
    torch.testing.assert_close(scores, gradients @ inverse, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sample", [None, 6])
@pytest.mark.parametrize("curvature", ["gauss_newton", "gauss_newton_rows", "hessian"])
def test_scores_with_another_curvature(curvature, sample):
    model, train, held_out = mlp(), random_examples(13, 3), random_examples(5, 3, seed=1)
    used = train if sample is None else sampled(train, sample, seed=3)
    matrix = (dense_hessian if curvature == "hessian" else dense_gauss_newton)(model, used)
    top = torch.linalg.eigvalsh(matrix).max()
    scores = influence_scores(
        model,
        train,
        criterion=MeanLoss(held_out),
        solver="dense",
        damping=2 * float(top),
        curvature=curvature,
        sample=sample,
        seed=3,
    )
    matrix = matrix + 2 * top * torch.eye(len(matrix), dtype=DOUBLE)
    inverse = torch.linalg.solve(matrix, per_example_gradients(model, held_out).mean(0))
    expected = per_example_gradients(model, train) @ inverse
    torch.testing.assert_close(scores, expected, rtol=1e-10, atol=1e-12)


def test_upweighting_changes_the_criterion_by_minus_psi(regression, psi):
    train, validation, closed, optimum = regression
    before = closed.mean_loss(optimum, validation)
    example = int(psi.abs().argmax())
    ratios = []
    for epsilon in (0.2, 0.1, 0.05, 0.025):
        weights = torch.ones(len(train), dtype=DOUBLE)
        weights[example] += epsilon
        actual = closed.mean_loss(closed.optimum(weights), validation) - before
        predicted = -epsilon / len(train) * psi[example].item()
        ratios.append((actual - predicted) / epsilon**2)
    # Quadratic remainder: halving epsilon halves the distance of this ratio to its limit.
    changes = [abs(b - a) for a, b in pairwise(ratios)]
    assert changes[1] == pytest.approx(changes[0] / 2, rel=0.1)
    assert changes[2] == pytest.approx(changes[1] / 2, rel=0.1)
    assert abs(ratios[-1]) * 0.025 < 0.1 * abs(psi[example].item()) / len(train)


def test_leaving_one_out_changes_the_criterion_by_psi(regression, psi):
    train, validation, closed, optimum = regression
    before = closed.mean_loss(optimum, validation)
    changes = []
    for example in range(len(train)):
        weights = torch.ones(len(train), dtype=DOUBLE)
        weights[example] = 0
        changes.append(closed.mean_loss(closed.optimum(weights), validation) - before)
    actual, predicted = torch.tensor(changes, dtype=DOUBLE), psi / len(train)
    assert torch.corrcoef(torch.stack([actual, predicted]))[0, 1] > 0.99
    slope = (actual @ predicted / (predicted @ predicted)).item()
    assert slope == pytest.approx(1, abs=0.1)


def test_scores_are_zero_for_the_training_loss_at_its_optimum(regression):
    train, _, _, _ = regression
    optimum = LogisticRegression(train, decay=0).optimum()
    at_optimum = influence_scores(logistic(optimum, CLASSES), train)
    beside = influence_scores(logistic(optimum + 0.1 * optimum.sign(), CLASSES), train)
    assert at_optimum.abs().max() < 1e-11
    assert beside.abs().max() > 1e-2


def test_projections_of_all_examples_sum_to_the_pull_of_weight_decay(regression):
    train, _, closed, optimum = regression
    flat = FlatModel(logistic(optimum, CLASSES))
    total = weighted_gradient(flat, train, torch.ones(len(train), dtype=DOUBLE))
    curvature = Shifted(GaussNewton(flat, train, batch_size=7), DECAY)
    expected = -len(train) * DECAY * torch.linalg.solve(closed.hessian(optimum), optimum)
    torch.testing.assert_close(SHARP.solve(curvature, total).value, expected, rtol=1e-9, atol=1e-10)


@dataclass(frozen=True)
class Combined:
    """2·first − 3·second."""

    first: MeanLoss
    second: MeanLoss

    def value(self, flat, vector):
        return 2 * self.first.value(flat, vector) - 3 * self.second.value(flat, vector)

    def gradient(self, flat):
        return 2 * self.first.gradient(flat) - 3 * self.second.gradient(flat)


def test_scores_are_linear_in_the_criterion():
    model, train = mlp(), random_examples(13, 3)
    first, second = (MeanLoss(random_examples(6, 3, seed=seed)) for seed in (1, 2))

    def scores(criterion):
        return influence_scores(model, train, criterion=criterion, solver="dense")

    torch.testing.assert_close(
        scores(Combined(first, second)),
        2 * scores(first) - 3 * scores(second),
        rtol=1e-11,
        atol=1e-13,
    )


def test_permuting_the_data_permutes_the_scores():
    model, train = mlp(), random_examples(13, 3)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        influence_scores(model, train.subset(order), solver=SHARP),
        influence_scores(model, train, solver=SHARP)[order],
        rtol=1e-11,
        atol=1e-13,
    )


def test_a_dataset_is_scored_on_its_training_rows_with_the_training_loss():
    model, train, test = mlp(), random_examples(13, 3), random_examples(5, 3, seed=1)
    dataset = Dataset("tiny", train, test, ("a", "b", "c"))
    scores = influence_scores(model, dataset)
    assert scores.shape == (13,)
    assert torch.equal(scores, influence_scores(model, train, criterion=MeanLoss(train)))


class Failing(MeanLoss):
    def gradient(self, flat):
        weighted_gradient(flat, random_examples(4, 3), torch.ones(4))
        raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("fails", [False, True], ids=["success", "exception"])
def test_the_model_is_left_as_it_was(fails):
    model, train = normalised().train(), random_examples(13, 3)
    model[1].eval()  # a mode of its own
    model[0].bias.requires_grad_(False)
    model[4].weight.grad = torch.ones_like(model[4].weight)
    before = state_of(model)
    if fails:
        with pytest.raises(ZeroDivisionError):
            influence_scores(model, train, criterion=Failing(train))
        broken = Examples.of(train.features, train.labels + 7)
        with pytest.raises(ModelError):
            influence_scores(model, broken)
    else:
        influence_scores(model, train)
    torch.testing.assert_close(state_of(model), before, rtol=0, atol=0)


def test_bad_requests_are_refused():
    model, train = mlp(), random_examples(5, 3)
    with pytest.raises(DataError, match="at least one example, got 0"):
        influence_scores(model, train.subset(torch.tensor([], dtype=torch.long)))
    with pytest.raises(SettingsError, match="damping must be finite and >= 0, got -1"):
        influence_scores(model, train, damping=-1)
    with pytest.raises(SettingsError, match="unknown curvature 'fisher'"):
        influence_scores(model, train, curvature="fisher")
    with pytest.raises(SettingsError, match="sample must be >= 1, got 0"):
        influence_scores(model, train, sample=0)
    with pytest.raises(SettingsError, match="unknown solver"):
        influence_scores(model, train, solver="exact")
