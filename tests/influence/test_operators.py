from __future__ import annotations

import pytest
import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator
from torch import nn

from puma.errors import DataError, ModelError, SettingsError, SolverError
from puma.influence import FlatModel, GaussNewton, Hessian, MarginGaussNewton, Shifted
from puma.influence.solvers.cholesky import materialise
from tests.cases import PROBLEMS, Matrix, linear, mlp, problem, random_examples, spectrum
from tests.oracles import dense_gauss_newton, dense_hessian, dense_margin_gradients

EXACT = {"rtol": 1e-12, "atol": 1e-13}


@pytest.mark.parametrize("cache_bytes", [0, 2**28], ids=["recomputed", "linearised"])
@pytest.mark.parametrize("batch_size", [4])
@pytest.mark.parametrize("name", PROBLEMS)
def test_gauss_newton_equals_the_dense_matrix(name, batch_size, cache_bytes):
    model, examples = problem(name)
    flat = FlatModel(model)
    operator = GaussNewton(flat, examples, batch_size=batch_size, cache_bytes=cache_bytes)
    matrix = materialise(operator)
    torch.testing.assert_close(matrix, dense_gauss_newton(model, examples), **EXACT)
    assert (operator.size, operator.dtype) == (flat.size, torch.float64)


@pytest.mark.parametrize("cache_bytes", [0, 2**28], ids=["recomputed", "linearised"])
def test_gauss_newton_equals_curvlinops(cache_bytes):
    model, examples = mlp(), random_examples(11, 3)
    data = list(zip(examples.features.split(4), examples.labels.split(4), strict=True))
    theirs = GGNLinearOperator(
        model, nn.CrossEntropyLoss(), [p for p in model.parameters() if p.requires_grad], data
    )
    ours = GaussNewton(FlatModel(model), examples, batch_size=4, cache_bytes=cache_bytes)
    identity = torch.eye(ours.size, dtype=torch.float64)
    torch.testing.assert_close(materialise(ours), theirs @ identity, **EXACT)


def test_gauss_newton_is_the_hessian_of_a_linear_model_only():
    examples = random_examples(11, 3)
    model = linear()
    ours = materialise(GaussNewton(FlatModel(model), examples))
    torch.testing.assert_close(ours, dense_hessian(model, examples), **EXACT)
    curved = mlp()
    ours = materialise(GaussNewton(FlatModel(curved), examples))
    assert (ours - dense_hessian(curved, examples)).abs().max() > 1e-3
    assert torch.linalg.eigvalsh(ours).min() > -1e-15


@pytest.mark.parametrize("batch_size", [5])
@pytest.mark.parametrize("name", PROBLEMS)
def test_hessian_equals_the_dense_matrix(name, batch_size):
    model, examples = problem(name)  # in batches of 5, the last has one example
    operator = Hessian(FlatModel(model), examples, batch_size=batch_size)
    matrix = materialise(operator)
    torch.testing.assert_close(matrix, dense_hessian(model, examples), **EXACT)
    assert (operator.size, operator.dtype) == (len(matrix), torch.float64)


def test_hessian_equals_curvlinops():
    model, examples = mlp(), random_examples(11, 3)
    data = [(examples.features, examples.labels)]
    theirs = HessianLinearOperator(model, nn.CrossEntropyLoss(), list(model.parameters()), data)
    ours = Hessian(FlatModel(model), examples, batch_size=4)
    identity = torch.eye(ours.size, dtype=torch.float64)
    torch.testing.assert_close(materialise(ours), theirs @ identity, **EXACT)


@pytest.mark.parametrize(
    ("kind", "oracle"), [(GaussNewton, dense_gauss_newton), (Hessian, dense_hessian)]
)
def test_an_operator_over_some_of_its_examples(kind, oracle):
    model, examples = mlp(), random_examples(11, 3)
    rows = torch.tensor([7, 2, 3])
    part = kind(FlatModel(model), examples, batch_size=2).over(rows)
    torch.testing.assert_close(materialise(part), oracle(model, examples.subset(rows)), **EXACT)


class RandomInEvalMode(nn.Linear):
    def forward(self, features):
        return nn.functional.dropout(super().forward(features))


@pytest.mark.parametrize("kind", [GaussNewton, Hessian, MarginGaussNewton])
def test_a_model_that_is_random_in_eval_mode_is_refused(kind):
    flat, before = FlatModel(RandomInEvalMode(3, 3).double()), torch.get_rng_state()
    with pytest.raises(ModelError, match=r"random in eval mode.*training=self\.training"):
        kind(flat, random_examples(11, 3))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("cache_bytes", [0, 2**28], ids=["recomputed", "linearised"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_margin_curvature_equals_the_dense_matrix(name, cache_bytes):
    model, examples = problem(name)
    gradients = dense_margin_gradients(model, examples)
    operator = MarginGaussNewton(FlatModel(model), examples, batch_size=4, cache_bytes=cache_bytes)
    n = len(examples)
    torch.testing.assert_close(materialise(operator), gradients.T @ gradients / n, **EXACT)
    weights = torch.linspace(-1, 2, n, dtype=torch.float64)
    torch.testing.assert_close(operator.pulled(weights), gradients.T @ weights / n, **EXACT)


def test_a_bounded_cache_keeps_some_batches_and_changes_nothing():
    flat, examples = FlatModel(mlp()), random_examples(10, 3)
    probe = GaussNewton(flat, examples, batch_size=4)
    one = probe._linearised_bytes(*next(iter(probe._parts(examples))))
    operator = GaussNewton(flat, examples, batch_size=4, cache_bytes=2 * one)
    kept = [hasattr(product, "__closure__") for product in operator._products]
    assert kept == [True, True, False]
    vector = torch.ones(flat.size, dtype=torch.float64)
    whole = GaussNewton(flat, examples, cache_bytes=0)
    torch.testing.assert_close(operator @ vector, whole @ vector, **EXACT)


def test_products_repeat_exactly_and_need_no_grad_mode():
    operator = GaussNewton(FlatModel(mlp()), random_examples(11, 3))
    vector = torch.ones(operator.size, dtype=torch.float64)
    first = operator @ vector
    with torch.no_grad():
        second = operator @ vector
        built_inside = GaussNewton(FlatModel(mlp()), random_examples(11, 3)) @ vector
    assert torch.equal(first, second)
    assert torch.equal(first, built_inside)
    assert not first.requires_grad


def test_single_precision():
    examples = random_examples(11, 3)
    single = random_examples(11, 3, dtype=torch.float32)
    product = GaussNewton(FlatModel(mlp().float()), single) @ torch.ones(38)
    reference = dense_gauss_newton(mlp(), examples) @ torch.ones(38, dtype=torch.float64)
    assert product.dtype == torch.float32
    torch.testing.assert_close(product.double(), reference, rtol=1e-4, atol=1e-6)


def test_shift_adds_to_the_diagonal():
    matrix = spectrum(torch.tensor([1.0, 2.0, 3.0]))
    shifted = Shifted(Matrix(matrix), 0.25)
    expected = matrix + 0.25 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(materialise(shifted), expected, **EXACT)
    assert (shifted.size, shifted.dtype) == (3, torch.float64)


@pytest.mark.parametrize("shift", [-1e-9, float("nan"), float("inf")])
def test_a_shift_that_is_no_damping_is_refused(shift):
    with pytest.raises(SettingsError, match="damping must be finite and >= 0, got"):
        Shifted(Matrix(torch.eye(2)), shift)


def test_misfits_are_refused():
    flat, examples = FlatModel(mlp()), random_examples(3, 3)
    none = examples.subset(torch.tensor([], dtype=torch.long))
    with pytest.raises(DataError, match="Gauss-Newton matrix needs at least one example, got 0"):
        GaussNewton(flat, none)
    with pytest.raises(DataError, match="the Hessian needs at least one example, got 0"):
        Hessian(flat, none)
    with pytest.raises(SettingsError, match="batch_size must be >= 1, got 0"):
        Hessian(flat, examples, batch_size=0)
    with pytest.raises(SolverError, match=r"shape \(38,\), got \(1,\)"):
        Hessian(flat, examples) @ torch.ones(1, dtype=torch.float64)
    with pytest.raises(SettingsError, match="cache_bytes must be >= 0"):
        GaussNewton(flat, examples, cache_bytes=-1)
    with pytest.raises(SolverError, match=r"shape \(38,\), got \(1,\)"):
        GaussNewton(flat, examples) @ torch.ones(1, dtype=torch.float64)
