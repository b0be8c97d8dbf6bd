"""Every solver against one table of problems and operators; then what is particular to each."""

from __future__ import annotations

import pytest
import torch

from puma.errors import ModelError, SettingsError, SolverError
from puma.influence import (
    SOLVERS,
    ConjugateGradients,
    Dense,
    Dual,
    FlatModel,
    GaussNewton,
    Hessian,
    LiSSA,
    Shifted,
    Woodbury,
    resolve_solver,
)
from tests.cases import (
    DOUBLE,
    PROBLEMS,
    Matrix,
    linear,
    mlp,
    problem,
    random_examples,
    spectrum,
)
from tests.oracles import dense_gauss_newton, dense_hessian, per_example_gradients

DAMPING = 0.05


def matrix_case(values):
    matrix = spectrum(values)
    return Matrix(matrix), matrix


OPERATORS = {
    "one by one": lambda: matrix_case(torch.tensor([3.0])),
    "well conditioned": lambda: matrix_case(torch.linspace(1, 2, 30)),
    "condition 1e5": lambda: matrix_case(torch.logspace(-5, 0, 30)),
    "two clusters": lambda: matrix_case(torch.tensor([1.0] * 10 + [1e4] * 10)),
    "tiny scale": lambda: matrix_case(1e-150 * torch.linspace(1, 2, 10, dtype=torch.float64)),
}
# Solvers of any operator, by their names in SOLVERS: as exact as they get.
SHARP = {
    "cg": ConjugateGradients(tolerance=1e-11),
    "dense": Dense(),
    # In whole-operator steps the error falls by (1 - smallest/scale) a step.
    "lissa": LiSSA(steps=40, scale=2.0, batch_size=None, tolerance=1e-9),
}
# Their steps are as many as the condition number.
FIXED_POINT = {"lissa"}
# As a user would set them in single precision, where SHARP's tolerances cannot be reached.
LOOSE = {
    "cg": ConjugateGradients(tolerance=1e-5),
    "dense": Dense(),
    "lissa": LiSSA(steps=100, batch_size=None, tolerance=1e-3),
}
MATRIX_CASES = [
    (solver, case)
    for solver in SHARP
    for case in OPERATORS
    if solver not in FIXED_POINT or case == "well conditioned"
]
# Matrices that are not of a model, which woodbury and dual cannot use.
ANY_OPERATOR = sorted(SHARP)

KINDS = {"gauss_newton": (GaussNewton, dense_gauss_newton), "hessian": (Hessian, dense_hessian)}
# Solver, the operators it takes, and the relative error of its answer that its method allows.
MODEL_CASES = {
    "cg": (ConjugateGradients(tolerance=1e-12), KINDS, 1e-10),
    "cg with woodbury": (
        ConjugateGradients(tolerance=1e-12, preconditioner=Woodbury(rows=4)),
        ["gauss_newton"],
        1e-10,
    ),
    "dense": (Dense(), KINDS, 1e-12),
    "dual": (Dual(tolerance=1e-12), ["gauss_newton"], 1e-10),
    "woodbury, all rows": (Woodbury(rows=None), ["gauss_newton"], 1e-10),
    # Batches differ widely: noise.
    "lissa, batches": (LiSSA(steps=60, batch_size=5, tolerance=0.9), ["gauss_newton"], 0.5),
    "lissa, whole": (LiSSA(steps=60, batch_size=None, tolerance=1e-2), ["gauss_newton"], 1e-2),
}


# What sees only products is held against one model; the others look into every kind of layer.
COVERED = [
    (solver, kind, name)
    for solver, (_, kinds, _) in MODEL_CASES.items()
    for kind in kinds
    for name in (PROBLEMS if solver == "dual" or "woodbury" in solver else ["mlp"])
]


@pytest.mark.parametrize(("solver", "kind", "name"), COVERED)
def test_every_solver_equals_the_dense_oracle(solver, kind, name):
    solve, _, tolerance = MODEL_CASES[solver]
    model, examples = problem(name)
    make, oracle = KINDS[kind]
    matrix = oracle(model, examples)
    # The Hessian is indefinite: damp it above its lowest eigenvalue.
    damping = max(DAMPING, 0.1 - 2 * torch.linalg.eigvalsh(matrix).min().item())
    if solver.startswith("lissa"):  # its steps are as many as the condition number
        damping += 0.3 * torch.linalg.eigvalsh(matrix).max().item()
    # Batches of 5 and one left over; damping in two parts, as damping and weight decay are.
    base = make(FlatModel(model), examples, batch_size=5)
    operator = Shifted(Shifted(base, damping / 2), damping / 2)
    matrix = matrix + damping * torch.eye(len(matrix), dtype=DOUBLE)
    assert len(matrix) < 200
    rhs = per_example_gradients(model, examples)[0]
    expected = torch.linalg.solve(matrix, rhs)
    solution = solve.solve(operator, rhs)
    assert solution.converged
    assert (solution.value - expected).norm() <= tolerance * expected.norm()
    residual = ((matrix @ solution.value - rhs).norm() / rhs.norm()).item()
    assert solution.residual_of == "operator"
    assert solution.residual == pytest.approx(residual, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize(("solver", "case"), MATRIX_CASES)
def test_solvers_of_any_operator_equal_the_dense_solve(case, solver):
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


def descent(operator, rhs, value):
    """How far ½xᵀAx − xᵀb falls along ``value``, at its best length."""
    return float(value @ rhs) ** 2 / (2 * float(value @ (operator @ value)))


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_keeps_the_contract_with_its_default_settings(solver):
    model, examples = mlp(), random_examples(40, 3)
    operator = Shifted(GaussNewton(FlatModel(model), examples), 0.5)
    rhs, before = per_example_gradients(model, examples).mean(0), torch.get_rng_state()
    quick = {"steps": 150} if solver == "lissa" else {}  # by default 1000
    solution, again = (SOLVERS[solver](**quick).solve(operator, rhs) for _ in range(2))
    assert torch.equal(solution.value, again.value)
    assert torch.equal(torch.get_rng_state(), before)
    assert solution.converged
    assert (solution.value.shape, solution.value.dtype) == (rhs.shape, rhs.dtype)
    assert not solution.value.requires_grad
    assert 0 <= solution.residual < 0.5
    best = descent(operator, rhs, Dense().solve(operator, rhs).value)
    assert 0.8 * best < descent(operator, rhs, solution.value) <= best * (1 + 1e-12)
    zero = resolve_solver(solver).solve(operator, torch.zeros_like(rhs))
    assert torch.equal(zero.value, torch.zeros_like(rhs))
    assert (zero.converged, zero.iterations, zero.residual) == (True, 0, 0.0)
    with pytest.raises(SolverError, match="has 1 entries that are NaN or infinite"):
        resolve_solver(solver).solve(operator, rhs.index_fill(0, torch.tensor([3]), float("nan")))
    with pytest.raises(SolverError, match=r"\(38,\) of torch.float64, got \(2,\)"):
        resolve_solver(solver).solve(operator, torch.ones(2))


def test_what_needs_a_model_says_so():
    flat, examples = FlatModel(mlp()), random_examples(5, 3)
    for solver in (Woodbury(), Dual()):
        with pytest.raises(SolverError, match=r"got Matrix; pass Shifted\(GaussNewton.*'cg'"):
            solver.solve(Shifted(Matrix(torch.eye(3)), 1), torch.ones(3))
        with pytest.raises(SolverError, match=r"got Hessian; pass Shifted\(GaussNewton"):
            solver.solve(Shifted(Hessian(flat, examples), 1), flat.vector)
        with pytest.raises(SolverError, match=r"not positive definite.*raise damping above 0"):
            solver.solve(GaussNewton(flat, examples), flat.vector)


@pytest.mark.parametrize("solver", ANY_OPERATOR)
def test_an_operator_that_is_not_positive_definite_is_refused(solver):
    indefinite = Matrix(spectrum(torch.tensor([1.0, 2.0, -0.5])))
    with pytest.raises(SolverError, match=r"not positive definite.*raise damping"):
        SHARP[solver].solve(indefinite, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("solver", ANY_OPERATOR)
def test_single_precision_at_extreme_scales_of_the_right_hand_side(solver, scale):
    matrix = spectrum(torch.linspace(1, 5, 20))
    rhs = torch.linspace(-1, 2, 20, dtype=torch.float64)
    solution = LOOSE[solver].solve(Matrix(matrix.float()), (rhs * scale).float())
    expected = torch.linalg.solve(matrix, rhs)
    assert solution.value.dtype == torch.float32
    torch.testing.assert_close(solution.value.double() / scale, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_single_precision_of_a_model(scale):
    examples, double = random_examples(11, 3, dtype=torch.float32), random_examples(11, 3)
    flat = FlatModel(linear().float())
    rhs = torch.linspace(-1, 2, 9)
    solution = Woodbury().solve(Shifted(GaussNewton(flat, examples), 0.1), rhs * scale)
    assert solution.value.dtype == torch.float32
    reference = Woodbury().solve(
        Shifted(GaussNewton(FlatModel(linear()), double), 0.1), rhs.double()
    )
    torch.testing.assert_close(
        solution.value.double() / scale, reference.value, rtol=1e-3, atol=1e-4
    )


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
    with pytest.raises(SettingsError, match="unknown solver 'exact'; choose one of cg, dense, "):
        resolve_solver("exact")
    for name, solver in SOLVERS.items():
        assert resolve_solver(name) == solver()


def test_a_preconditioner_saves_iterations():
    model, examples = mlp(), random_examples(40, 3)
    operator = Shifted(GaussNewton(FlatModel(model), examples), 1e-4)
    rhs = per_example_gradients(model, examples).mean(0)
    plain = ConjugateGradients(tolerance=1e-8).solve(operator, rhs)
    for helper, most in ((Woodbury(rows=60), 0.8), (Woodbury(rows=None), 0.1)):
        helped = ConjugateGradients(tolerance=1e-8, preconditioner=helper).solve(operator, rhs)
        assert helped.residual < 1e-8
        assert helped.iterations <= most * plain.iterations
    with pytest.raises(SettingsError, match=r"must have an inverse\(operator\).*got Dense"):
        ConjugateGradients(preconditioner=Dense())


class Negating:
    def inverse(self, _operator):
        return torch.neg


class Identity:
    def inverse(self, _operator):
        return torch.clone


def test_a_preconditioned_solve_still_sees_negative_curvature():
    indefinite = Matrix(spectrum(torch.tensor([1.0, 2.0, -0.5])))
    rhs = torch.ones(3, dtype=DOUBLE)
    with pytest.raises(SolverError, match=r"operator is not positive definite: curvature"):
        ConjugateGradients(preconditioner=Identity()).solve(indefinite, rhs)
    with pytest.raises(SolverError, match=r"preconditioner is not positive definite: -1 along"):
        ConjugateGradients(preconditioner=Negating()).solve(Matrix(torch.eye(3).double()), rhs)


def test_woodbury_names_the_layers_it_does_not_know():
    flat = FlatModel(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.PReLU()).double())
    operator = Shifted(GaussNewton(flat, random_examples(5, 3)), 1)
    with pytest.raises(ModelError, match=r"woodbury knows.*Linear, Conv2d.*PReLU '1'.*'cg'"):
        Woodbury().solve(operator, flat.vector)
