"""What is particular to the solvers that replace the operator by something cheaper."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from puma.errors import SettingsError, SolverError
from puma.influence import (
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
    mlp,
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
    with pytest.raises(SettingsError, match=r"seed must be a whole number.*got -1"):
        Woodbury(seed=-1)
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
        ({"seed": -1}, "seed must be a whole number.*got -1"),
        ({"scale": 0.0}, "scale must be finite and > 0, got 0"),
        ({"tolerance": 0.0}, "tolerance must be between 0 and 1, got 0"),
    ):
        with pytest.raises(SettingsError, match=named):
            LiSSA(**settings)
