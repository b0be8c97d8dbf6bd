"""What is particular to the solvers that replace the operator by something cheaper."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from puma.errors import ModelError, SettingsError, SolverError
from puma.influence import (
    EKFAC,
    Dense,
    FlatModel,
    GaussNewton,
    GaussNewtonRows,
    LiSSA,
    Shifted,
    Woodbury,
)
from tests.cases import (
    DOUBLE,
    Matrix,
    convolutional,
    mlp,
    problem,
    random_examples,
    spectrum,
)
from tests.oracles import dense_gauss_newton, per_example_gradients

DAMPING = 0.05


class Counting(nn.Identity):
    """Counts the forward passes of every copy of itself."""

    calls = 0

    def forward(self, features):
        Counting.calls += 1
        return features


def test_woodbury_keeps_its_rows_for_every_damping_and_right_hand_side():
    model, examples = nn.Sequential(*mlp(), Counting()), random_examples(11, 3)
    matrix, rhs = dense_gauss_newton(model, examples), per_example_gradients(model, examples)
    base, solver = GaussNewton(FlatModel(model), examples), Woodbury(rows=None)
    calls = None
    for damping in (1e-3, 1.0):
        for b in rhs[:2]:
            value = solver.solve(Shifted(base, damping), b).value
            damped = matrix + damping * torch.eye(38, dtype=DOUBLE)
            torch.testing.assert_close(value, torch.linalg.solve(damped, b), rtol=1e-9, atol=1e-9)
            assert calls in (None, Counting.calls)  # only the first solve looks at the examples
            calls = Counting.calls
    del base
    gc.collect()
    assert len(solver._known) == 0


def test_woodbury_with_sampled_rows_solves_their_matrix_and_says_so():
    model, examples = mlp(), random_examples(60, 3)
    flat, rhs = FlatModel(model), per_example_gradients(model, examples).mean(0)
    whole = Shifted(GaussNewton(flat, examples), DAMPING)
    rows = Shifted(GaussNewtonRows(flat, examples, rows=30, seed=4), DAMPING)
    expected = Dense().solve(rows, rhs).value
    cheap = Woodbury(rows=30, seed=4).solve(whole, rhs)
    torch.testing.assert_close(cheap.value, expected, rtol=1e-10, atol=1e-12)
    assert (cheap.residual_of, cheap.residual < 1e-12) == ("approximation", True)
    few = Shifted(GaussNewton(flat, examples.subset(torch.arange(25))), DAMPING)
    checked = Woodbury(rows=30, seed=4).solve(few, rhs)  # 50 rows in all, of 25 examples
    actual = ((few @ checked.value - rhs).norm() / rhs.norm()).item()
    assert (checked.residual_of, checked.residual) == ("operator", pytest.approx(actual))
    assert actual > 0.01
    given = Woodbury().solve(rows, rhs)
    assert (given.residual_of, given.residual < 1e-12) == ("operator", True)
    torch.testing.assert_close(given.value, expected, rtol=1e-10, atol=1e-12)


def test_woodbury_refuses_what_does_not_fit():
    operator = Shifted(GaussNewton(FlatModel(mlp()), random_examples(100, 3)), 1)
    with pytest.raises(SolverError, match=r"200 rows of 38 parameters.*lower rows to"):
        Woodbury(rows=None, max_bytes=10_000).solve(operator, torch.ones(38, dtype=DOUBLE))
    with pytest.raises(SettingsError, match="rows must be >= 1, or None"):
        Woodbury(rows=0)
    with pytest.raises(SettingsError, match="batch_size must be >= 1, got 0"):
        Woodbury(batch_size=0)


def test_lissa_is_the_truncated_neumann_series():
    matrix = spectrum(torch.linspace(0.5, 2, 10))
    rhs, identity = torch.ones(10, dtype=DOUBLE), torch.eye(10, dtype=DOUBLE)
    solver = LiSSA(steps=3, scale=3.0, tolerance=0.999)
    step = identity - matrix / 3
    series = identity + step @ (identity + step @ (identity + step))
    torch.testing.assert_close(solver.solve(Matrix(matrix), rhs).value, series @ rhs / 3)


def test_lissa_that_diverges_or_is_too_slow_says_what_to_turn():
    operator, rhs = Matrix(spectrum(torch.linspace(1e-4, 2, 10))), torch.ones(10, dtype=DOUBLE)
    with pytest.raises(
        SolverError, match=r"LiSSA diverged in step \d+ at scale 0\.9: .*raise scale"
    ):
        LiSSA(scale=0.9).solve(operator, rhs)
    message = r"LiSSA did not converge: relative residual .* after 5 steps.*raise damping or steps"
    with pytest.raises(SolverError, match=message):
        LiSSA(steps=5).solve(operator, rhs)
    with pytest.warns(UserWarning, match=message):
        solution = LiSSA(steps=5, require_convergence=False).solve(operator, rhs)
    assert (solution.converged, solution.iterations) == (False, 5)
    assert solution.residual > 0.1
    for settings, named in (
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"scale": 0.0}, "scale must be finite and > 0, got 0"),
        ({"tolerance": 0.0}, "tolerance must be between 0 and 1, got 0"),
    ):
        with pytest.raises(SettingsError, match=named):
            LiSSA(**settings)


def uniform_predictions():
    """A linear layer that predicts the same for everybody: its curvature is one Kronecker
    product, weight and bias together."""
    model = nn.Linear(3, 3).double()
    nn.init.zeros_(model.weight)
    return model, random_examples(11, 3)


def one_example():
    torch.manual_seed(0)
    return nn.Linear(3, 3).double(), random_examples(1, 3)


@pytest.mark.parametrize("case", [uniform_predictions, one_example])
def test_ekfac_is_exact_where_the_curvature_is_one_kronecker_product(case):
    model, examples = case()
    operator = Shifted(GaussNewton(FlatModel(model), examples, batch_size=4), DAMPING)
    rhs = torch.linspace(-1, 2, 12, dtype=DOUBLE)
    solution = EKFAC(batch_size=4).solve(operator, rhs)
    matrix = dense_gauss_newton(model, examples) + DAMPING * torch.eye(12, dtype=DOUBLE)
    torch.testing.assert_close(
        solution.value, torch.linalg.solve(matrix, rhs), rtol=1e-10, atol=1e-11
    )
    assert (solution.residual_of, solution.residual < 1e-10) == ("operator", True)


def test_ekfac_keeps_the_trace_of_every_block_and_measures_the_true_residual():
    model, examples = mlp(), random_examples(11, 3)
    operator = Shifted(GaussNewton(FlatModel(model), examples), DAMPING)
    inverse = EKFAC().inverse(operator)
    blocks = torch.stack([inverse(unit) for unit in torch.eye(38, dtype=DOUBLE)])
    approximation = torch.linalg.inv(blocks) - DAMPING * torch.eye(38, dtype=DOUBLE)
    matrix = dense_gauss_newton(model, examples)
    for part in (slice(0, 20), slice(20, 38)):
        ours, true = approximation[part, part].trace(), matrix[part, part].trace()
        assert ours == pytest.approx(true.item(), rel=1e-9)
    assert approximation[:20, 20:].abs().max() < 1e-9
    rhs = per_example_gradients(model, examples).mean(0)
    solution = EKFAC().solve(operator, rhs)
    assert solution.residual == pytest.approx(
        ((operator @ solution.value - rhs).norm() / rhs.norm()).item()
    )


def test_ekfac_names_the_layers_it_does_not_know():
    model, examples = nn.Sequential(*list(convolutional())), random_examples(11, 1, 4, 4)
    model[4] = nn.Conv2d(4, 2, 2, stride=2).double()
    flat = FlatModel(model)
    operator, rhs = Shifted(GaussNewton(flat, examples), DAMPING), flat.vector
    with pytest.raises(ModelError, match=r"ekfac knows.*Linear, Conv2d.*BatchNorm2d '1'.*'cg'"):
        EKFAC().solve(operator, rhs)
    with pytest.raises(SettingsError, match="batch_size must be >= 1, got 0"):
        EKFAC(batch_size=0)


@pytest.mark.parametrize(
    ("layers", "shape", "message"),
    [
        (lambda: [nn.Linear(3, 3), nn.Tanh(), None], (3,), "'0' is called 2 times"),
        (lambda: [nn.Conv2d(2, 2, 1, groups=2), nn.Flatten()], (2, 2, 1), "convolution '0', which"),
        (
            lambda: [nn.Conv2d(1, 2, 2, padding=1, padding_mode="circular"), nn.Flatten()],
            (1, 3, 1),
            "convolution '0', which is grouped or pads",
        ),
    ],
)
def test_ekfac_refuses_by_name_what_its_factors_get_wrong(layers, shape, message):
    stack = layers()
    stack = [stack[0] if layer is None else layer for layer in stack]
    flat, examples = FlatModel(nn.Sequential(*stack).double()), random_examples(5, *shape)
    with pytest.raises(ModelError, match=message):
        EKFAC().solve(Shifted(GaussNewton(flat, examples), 1), flat.vector)


def test_ekfac_refuses_tied_weights():
    model, examples = problem("tied")
    flat = FlatModel(model)
    with pytest.raises(ModelError, match="'first' is tied; use solver 'woodbury'"):
        EKFAC().solve(Shifted(GaussNewton(flat, examples), 1), flat.vector)


def test_ekfac_of_what_it_covers_ignores_what_is_frozen():
    model, examples = problem("frozen")
    flat = FlatModel(model)
    solution = EKFAC().solve(Shifted(GaussNewton(flat, examples), 1), flat.vector)
    assert solution.value.shape == (18,)
