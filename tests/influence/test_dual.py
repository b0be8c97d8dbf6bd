"""The solve through the rows that matter: what is left out, and when it is not used at all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from puma.errors import SolverError
from puma.influence import ConjugateGradients, Dual, FlatModel, GaussNewton, RowsInverse, Shifted
from puma.influence.gauss_newton_rows import gauss_newton_rows
from puma.influence.solvers.dual import LEFT_OUT, significant
from tests.cases import DOUBLE, Tied, mlp, random_examples
from tests.oracles import dense_gauss_newton, per_example_gradients


def certain() -> nn.Module:
    """A network that is sure of most examples: few rows matter."""
    model = mlp()
    model[2].weight.data *= 20  # type: ignore[index,operator,union-attr]
    return model


def test_what_is_left_out_changes_the_inverse_by_a_twentieth_at_most():
    model, examples, damping = certain(), random_examples(60, 3), 3.0
    rows = gauss_newton_rows(FlatModel(model), examples)
    used = significant(rows, damping)
    assert len(used) < 90 < rows.count == 120
    squares = rows.squares()
    missing = torch.ones(120, dtype=torch.bool)
    missing[used] = False
    assert (
        squares[missing].sum() <= LEFT_OUT * damping < squares[missing].sum() + squares[used].min()
    )
    inverse = RowsInverse(rows, rows.at(used), damping)
    whole = dense_gauss_newton(model, examples) + damping * torch.eye(38, dtype=DOUBLE)
    # H⁻¹ is at most that of the used rows, and at least 1 − .05 of it.
    found = torch.stack([inverse(unit) for unit in torch.eye(38, dtype=DOUBLE)])
    factor = torch.linalg.cholesky(whole)
    relative = torch.linalg.eigvalsh(factor.T @ found @ factor)
    assert relative.min() >= 1 - 1e-9
    assert 1 + 1e-4 < relative.max() <= 1 / (1 - LEFT_OUT) + 1e-9
    vector = torch.linspace(-1, 1, 38, dtype=DOUBLE)
    torch.testing.assert_close(inverse.product(vector), whole @ vector)
    # The solution itself is as exact as asked for.
    operator, rhs = Shifted(GaussNewton(FlatModel(model), examples), damping), vector
    solution = Dual(tolerance=1e-11).solve(operator, rhs)
    torch.testing.assert_close(
        solution.value, torch.linalg.solve(whole, rhs), rtol=1e-9, atol=1e-11
    )
    assert solution.rows == len(used)


class PReLUs(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (mlp(), {"max_bytes": 1_000}),  # to find the rows
        (mlp(), {"max_bytes": 10_000}),  # for the rows
        (mlp(), {"max_bytes": 20_000}),  # for the factor
        (PReLUs().double(), {}),
    ],
)
def test_conjugate_gradients_solve_where_the_rows_are_not_few(model, settings):
    examples = random_examples(40, 3)
    operator = Shifted(GaussNewton(FlatModel(model), examples), 0.5)
    rhs = per_example_gradients(model, examples).mean(0)
    found = Dual(tolerance=1e-10, **settings).solve(operator, rhs)
    assert found.rows == 0
    assert found.iterations > 0
    assert torch.equal(found.value, ConjugateGradients(tolerance=1e-10).solve(operator, rhs).value)


def test_one_factor_serves_all_right_hand_sides_of_a_matrix():
    examples, passes = random_examples(40, 3), []

    class Counted(nn.Sequential):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            passes.append(len(features))
            return super().forward(features)

    matrix = GaussNewton(FlatModel(Counted(*mlp())), examples)
    solver, rhs = Dual(), torch.linspace(-1, 1, 38, dtype=DOUBLE)
    solver.solve(Shifted(matrix, 0.5), rhs)
    passes.clear()
    solver.solve(Shifted(matrix, 0.5), rhs.flip(0))
    assert not passes
    stronger = solver.solve(Shifted(matrix, 50.0), rhs)  # another matrix
    expected = dense_gauss_newton(mlp(), examples) + 50 * torch.eye(38, dtype=DOUBLE)
    torch.testing.assert_close(stronger.value, torch.linalg.solve(expected, rhs), rtol=1e-3, atol=0)


def test_a_tolerance_below_round_off_says_what_to_turn():
    examples = random_examples(40, 3, dtype=torch.float32)
    operator = Shifted(GaussNewton(FlatModel(Tied().float()), examples), 1e-6)
    with pytest.raises(SolverError, match=r"stops at a relative residual of .*raise damping or"):
        Dual(tolerance=1e-7).solve(operator, torch.linspace(-1, 1, operator.size))
