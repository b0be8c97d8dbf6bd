"""Every solver against one table of operators; then what is particular to each."""

from __future__ import annotations

import pytest
import torch

from puma.errors import SettingsError, SolverError
from puma.influence import (
    SOLVERS,
    ConjugateGradients,
    Dense,
    FlatModel,
    GaussNewton,
    Shifted,
    resolve_solver,
)
from tests.cases import Matrix, linear, mlp, normalised, random_examples, spectrum
from tests.oracles import dense_gauss_newton

DAMPING = 0.05


def matrix_case(values):
    matrix = spectrum(values)
    return Matrix(matrix), matrix


def model_case(build):
    model, examples = build(), random_examples(13, 3)
    operator = Shifted(GaussNewton(FlatModel(model), examples, batch_size=4), DAMPING)
    identity = torch.eye(operator.size, dtype=torch.float64)
    return operator, dense_gauss_newton(model, examples) + DAMPING * identity


OPERATORS = {
    "one by one": lambda: matrix_case(torch.tensor([3.0])),
    "well conditioned": lambda: matrix_case(torch.linspace(1, 2, 30)),
    "condition 1e5": lambda: matrix_case(torch.logspace(-5, 0, 30)),
    "two clusters": lambda: matrix_case(torch.tensor([1.0] * 10 + [1e4] * 10)),
    "tiny scale": lambda: matrix_case(1e-150 * torch.linspace(1, 2, 10, dtype=torch.float64)),
    "logistic regression": lambda: model_case(linear),
    "mlp": lambda: model_case(mlp),
    "normalised": lambda: model_case(normalised),
}
SHARP = {"cg": ConjugateGradients(tolerance=1e-11), "dense": Dense()}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("case", OPERATORS)
def test_every_solver_equals_the_dense_solve(case, solver):
    operator, matrix = OPERATORS[case]()
    rhs = torch.linspace(-1, 2, operator.size, dtype=torch.float64)
    expected = torch.linalg.solve(matrix, rhs)
    solution = SHARP[solver].solve(operator, rhs)
    assert solution.converged
    residual = ((matrix @ solution.value - rhs).norm() / rhs.norm()).item()
    assert residual < 1.1e-11
    assert solution.residual == pytest.approx(residual, rel=0.01, abs=2e-12)
    error = (solution.value - expected).norm() / expected.norm()
    assert error < 2e-11 * torch.linalg.cond(matrix)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_zero_right_hand_side_has_the_solution_zero(solver):
    solution = SHARP[solver].solve(Matrix(torch.eye(3)), torch.zeros(3))
    assert torch.equal(solution.value, torch.zeros(3))
    assert (solution.converged, solution.iterations, solution.residual) == (True, 0, 0.0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_operator_that_is_not_positive_definite_is_refused(solver):
    indefinite = Matrix(spectrum(torch.tensor([1.0, 2.0, -0.5])))
    with pytest.raises(SolverError, match=r"not positive definite.*raise damping"):
        SHARP[solver].solve(indefinite, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_right_hand_side_that_is_not_finite_is_refused(solver, bad):
    with pytest.raises(SolverError, match="has 1 entries that are NaN or infinite"):
        SHARP[solver].solve(Matrix(torch.eye(3)), torch.tensor([1.0, bad, 0.0]))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_right_hand_side_of_another_kind_is_refused(solver):
    with pytest.raises(SolverError, match=r"\(3,\) of torch.float32, got \(2,\)"):
        SHARP[solver].solve(Matrix(torch.eye(3)), torch.ones(2))
    with pytest.raises(SolverError, match=r"of torch\.float32, got .* of torch\.float64"):
        SHARP[solver].solve(Matrix(torch.eye(3)), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("solver", SOLVERS)
def test_single_precision_at_extreme_scales_of_the_right_hand_side(solver, scale):
    matrix = spectrum(torch.linspace(1, 50, 20))
    rhs = torch.linspace(-1, 2, 20, dtype=torch.float64)
    solve = {"cg": ConjugateGradients(tolerance=1e-5), "dense": Dense()}[solver].solve
    solution = solve(Matrix(matrix.float()), (rhs * scale).float())
    expected = torch.linalg.solve(matrix, rhs)
    assert solution.value.dtype == torch.float32
    torch.testing.assert_close(solution.value.double() / scale, expected, rtol=1e-3, atol=1e-5)


def test_cg_takes_one_iteration_per_distinct_eigenvalue():
    operator, _ = OPERATORS["two clusters"]()
    solution = ConjugateGradients(tolerance=1e-8).solve(operator, torch.ones(20).double())
    assert solution.iterations == 2
    assert operator.products == 3  # the last one measures the residual


def test_cg_that_stops_too_early_says_what_to_turn():
    operator, matrix = OPERATORS["condition 1e5"]()
    rhs = torch.ones(30, dtype=torch.float64)
    message = (
        r"did not converge: relative residual [\d.e+-]+ after 5 iterations, tolerance 1e-08 "
        r"\(max_iterations reached\); raise damping or max_iterations, or loosen tolerance"
    )
    with pytest.raises(SolverError, match=message):
        ConjugateGradients(tolerance=1e-8, max_iterations=5).solve(operator, rhs)
    lenient = ConjugateGradients(tolerance=1e-8, max_iterations=5, require_convergence=False)
    with pytest.warns(UserWarning, match=message):
        solution = lenient.solve(operator, rhs)
    assert (solution.converged, solution.iterations) == (False, 5)
    true = ((matrix @ solution.value - rhs).norm() / rhs.norm()).item()
    assert solution.residual == pytest.approx(true, rel=1e-6)


def test_cg_in_single_precision_reports_the_true_residual():
    # Textbook conjugate gradients believe in 8e-7 here after 289 iterations, and have 1e-4.
    matrix, rhs = spectrum(torch.logspace(-4, 0, 50)).float(), torch.ones(50)
    lenient = ConjugateGradients(tolerance=1e-6, require_convergence=False)
    with pytest.warns(UserWarning, match="round-off allows no more"):
        solution = lenient.solve(Matrix(matrix), rhs)
    true = (matrix.double() @ solution.value.double() - rhs.double()).norm() / rhs.double().norm()
    assert not solution.converged
    assert solution.residual > 1e-6
    assert solution.residual == pytest.approx(true.item(), rel=0.3)


def test_cg_names_products_that_are_not_finite():
    with pytest.raises(SolverError, match="not finite in iteration 1; check the model"):
        ConjugateGradients().solve(Matrix(torch.full((2, 2), float("nan"))), torch.ones(2))


def test_dense_refuses_what_would_not_fit():
    with pytest.raises(SolverError, match=r"3 x 3 matrix, its limit is 2; use solver 'cg'"):
        Dense(max_size=2).solve(Matrix(torch.eye(3)), torch.ones(3))


def test_settings_are_checked_when_built():
    for tolerance in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(SettingsError, match="tolerance must be between 0 and 1, got"):
            ConjugateGradients(tolerance=tolerance)
    with pytest.raises(SettingsError, match="max_iterations must be >= 1, got 0"):
        ConjugateGradients(max_iterations=0)
    with pytest.raises(SettingsError, match="max_size must be >= 1, got 0"):
        Dense(max_size=0)


def test_solvers_by_name():
    assert resolve_solver() == resolve_solver("cg") == ConjugateGradients()
    assert resolve_solver("dense") == Dense()
    own = ConjugateGradients(tolerance=0.5)
    assert resolve_solver(own) is own
    with pytest.raises(SettingsError, match="unknown solver 'lissa'; choose one of cg, dense"):
        resolve_solver("lissa")
