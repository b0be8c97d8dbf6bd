"""Derivatives and curvatures of every task, with class weights, against plain differentiation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from puma.data import Dataset, Examples
from puma.data.task import Task
from puma.errors import DataError
from puma.influence import (
    ConjugateGradients,
    Dual,
    FlatModel,
    GaussNewton,
    GaussNewtonRows,
    Hessian,
    MeanLoss,
    Shifted,
    SoftECE,
    directional_derivatives,
    influence_scores,
    weighted_gradient,
)
from puma.influence.gauss_newton_rows import gauss_newton_rows
from puma.influence.margin_gram import margin_gram
from tests.cases import DOUBLE

N, DAMPING = 13, 0.05
CASES = {
    "classification": Task(),
    "classification, weighted": Task(class_weights=(0.5, 2.0, 1.5)),
    "binary": Task("binary"),
    "binary, weighted": Task("binary", class_weights=(0.3, 1.7)),
    "regression": Task("regression"),
}


def network(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def problem(name: str) -> tuple[nn.Module, Examples]:
    task = CASES[name]
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(N, 3, generator=generator, dtype=DOUBLE)
    if task.is_regression:
        labels = features[:, 0] + torch.randn(N, generator=generator, dtype=DOUBLE)
    else:
        labels = torch.arange(N) % (2 if task.name == "binary" else 3)
    return network(3 if task.name == "classification" else 1), Examples.of(
        features, labels, task=task
    )


def loss_of(task: Task, output: Tensor, label: Tensor) -> Tensor:
    """One row's weighted loss by PyTorch's own functions."""
    if task.name == "regression":
        return mse_loss(output[0], label) / 2
    weight = 1.0 if task.class_weights is None else task.class_weights[int(label)]
    if task.name == "binary":
        return weight * binary_cross_entropy_with_logits(output[0], label.double())
    return weight * cross_entropy(output, label)


def flattened(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([each.reshape(-1) for each in gradients])


def dense(model: nn.Module, examples: Examples) -> tuple[Tensor, Tensor]:
    """((n, p) gradients, (p, p) mean Gauss-Newton matrix), entry by entry."""
    parameters, gradients = list(model.parameters()), []
    matrix: Tensor = torch.zeros((), dtype=DOUBLE)
    for features, label in zip(examples.features, examples.labels, strict=True):
        output = model(features[None])[0]
        jacobian = torch.stack(
            [
                flattened(torch.autograd.grad(entry, parameters, retain_graph=True))
                for entry in output
            ]
        )

        def loss(point: Tensor, label: Tensor = label) -> Tensor:
            return loss_of(examples.task, point, label)

        slope = torch.autograd.functional.jacobian(loss, output.detach())
        block = torch.autograd.functional.hessian(loss, output.detach())
        gradients.append(jacobian.T @ slope)
        matrix = matrix + jacobian.T @ block @ jacobian / len(examples)
    return torch.stack(gradients), matrix


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_every_gauss_newton_matrix_are_the_dense_ones(name: str) -> None:
    model, examples = problem(name)
    flat, (gradients, matrix) = FlatModel(model), dense(model, examples)
    units = torch.eye(flat.size, dtype=DOUBLE)
    weights = torch.linspace(-1, 2, N, dtype=DOUBLE)
    torch.testing.assert_close(weighted_gradient(flat, examples, weights), weights @ gradients)
    direction = torch.linspace(-1, 1, flat.size, dtype=DOUBLE)
    torch.testing.assert_close(
        directional_derivatives(flat, examples, direction), gradients @ direction
    )
    torch.testing.assert_close(MeanLoss(examples).gradient(flat), gradients.mean(0))
    for operator in (GaussNewton(flat, examples), GaussNewton(flat, examples, batch_size=4)):
        torch.testing.assert_close(torch.stack([operator @ unit for unit in units]), matrix)
    factor = GaussNewtonRows(flat, examples, rows=None).factor
    torch.testing.assert_close(factor.T @ factor, matrix)
    rows = gauss_newton_rows(flat, examples)
    assert rows.count == N * (2 if examples.task.name == "classification" else 1)
    product = torch.stack([rows.transposed(rows @ unit) for unit in units])
    torch.testing.assert_close(product, matrix)
    shifted = Shifted(GaussNewton(flat, examples), DAMPING)
    expected = torch.linalg.solve(matrix + DAMPING * units, direction)
    for solver in (Dual(tolerance=1e-11), ConjugateGradients(tolerance=1e-12)):
        found = solver.solve(shifted, direction).value
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["binary, weighted", "regression"])
def test_sampled_rows_of_one_output_are_unbiased(name: str) -> None:
    model, examples = problem(name)
    flat, (_, matrix) = FlatModel(model), dense(model, examples)
    total: Tensor = torch.zeros((), dtype=DOUBLE)
    for seed in range(400):
        factor = GaussNewtonRows(flat, examples, rows=6, seed=seed).factor
        assert len(factor) == 6
        total = total + factor.T @ factor / 400
    assert (total - matrix).norm() < 0.1 * matrix.norm()


@pytest.mark.parametrize("name", CASES)
def test_the_hessian_is_that_of_the_weighted_loss(name: str) -> None:
    model, examples = problem(name)
    flat = FlatModel(model)

    def mean(vector: Tensor) -> Tensor:
        outputs = flat.logits(vector, examples.features)
        pairs = zip(outputs, examples.labels, strict=True)
        return torch.stack([loss_of(examples.task, *pair) for pair in pairs]).mean()

    expected = torch.autograd.functional.hessian(mean, flat.vector)
    operator = Hessian(flat, examples)
    found = torch.stack([operator @ unit for unit in torch.eye(flat.size, dtype=DOUBLE)])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["binary", "regression"])
def test_the_kernel_of_the_margins(name: str) -> None:
    model, examples = problem(name)
    rows = []
    for features, label in zip(examples.features, examples.labels, strict=True):
        output = model(features[None])[0, 0]
        margin = 10 * output if name == "regression" else (2 * label - 1) * output
        rows.append(flattened(torch.autograd.grad(margin, list(model.parameters()))))
    gradients = torch.stack(rows)
    torch.testing.assert_close(margin_gram(model, examples), gradients @ gradients.T)


def test_influence_in_ridge_regression_is_its_closed_form() -> None:
    """By how much a test loss falls as a row's weight grows, from refits of scikit-learn."""
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(30, 3, generator=generator, dtype=DOUBLE)
    labels = features @ torch.tensor([1.0, -2.0, 0.5], dtype=DOUBLE)
    labels = labels + torch.randn(30, generator=generator, dtype=DOUBLE)
    rows = Examples.of(features, labels, task=Task("regression"))
    train, test = rows.subset(torch.arange(20)), rows.subset(torch.arange(20, 30))
    x, y, n = train.features.numpy(), train.labels.numpy(), 20

    def fit(weights: np.ndarray) -> np.ndarray:
        ridge = Ridge(alpha=DAMPING * n, fit_intercept=False, tol=1e-12)
        return np.asarray(ridge.fit(x, y, sample_weight=weights).coef_)

    def criterion(weights: np.ndarray) -> float:
        errors = test.features.numpy() @ fit(weights) - test.labels.numpy()
        return float(np.square(errors).mean() / 2)

    model = nn.Linear(3, 1, bias=False, dtype=DOUBLE)
    model.weight.data = torch.from_numpy(fit(np.ones(n)))[None]
    psi = influence_scores(
        model, Dataset("ridge", train, test, ()), criterion=MeanLoss(test), damping=DAMPING,
        solver=ConjugateGradients(tolerance=1e-12),
    )  # fmt: skip
    step = 1e-5
    for row in range(n):
        change = step * (np.arange(n) == row)
        slope = (criterion(np.ones(n) + change) - criterion(np.ones(n) - change)) / (2 * step)
        assert psi[row].item() / n == pytest.approx(-slope, rel=1e-5, abs=1e-9)


def test_the_calibration_error_of_one_logit_is_that_of_two() -> None:
    model, examples = problem("binary")

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = model

        def forward(self, features: Tensor) -> Tensor:
            logit = self.one(features)
            return torch.cat([torch.zeros_like(logit), logit], 1)

    one, two = FlatModel(model), FlatModel(Two())
    both = SoftECE(examples.of_task(Task()))
    assert SoftECE(examples).value(one, one.vector) == pytest.approx(both.value(two, two.vector))
    torch.testing.assert_close(SoftECE(examples).gradient(one), both.gradient(two))


def test_a_regression_has_no_calibration_error() -> None:
    _, examples = problem("regression")
    with pytest.raises(DataError, match="the soft calibration error needs classes, and these rows"):
        SoftECE(examples)
