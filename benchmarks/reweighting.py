"""Time the solvers of Eq. 10 side by side, with the objective each one reached.

    OMP_NUM_THREADS=1 python -m benchmarks reweighting --examples 150 --examples 450

SLSQP is left out above --slsqp-limit unknowns: its time grows with their cube.
"""

from __future__ import annotations

import time
import warnings
from typing import Annotated

import torch
import typer

from puma.influence.reweighting import LBFGSB, SLSQP, Exact, Problem, Reweighter

SOLVERS: dict[str, Reweighter] = {
    "exact": Exact(),
    "lbfgsb": LBFGSB(require_convergence=False),
    "slsqp": SLSQP(require_convergence=False),
}


def random_problem(criteria: int, examples: int, l1: float, l2: float) -> Problem:
    """Normal scores; sums that take about a third of what the bounds allow."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(criteria, examples, generator=generator, dtype=torch.float64)
    target = torch.randn(criteria, generator=generator, dtype=torch.float64).sign()
    return Problem(scores, target * 0.25 * examples / criteria**0.5, l1, l2, (-1.0, 1.0))


def timed(solver: Reweighter, problem: Problem) -> tuple[float, float, float]:
    """(seconds, objective, relative KKT residual)"""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table shows the residual
        weights = solver.weights(problem)
    seconds = time.perf_counter() - start
    return seconds, problem.objective(weights), problem.residual(weights)


def main(
    n_examples: Annotated[list[int], typer.Option("--examples")] = [150, 450, 10_000],  # noqa: B006
    n_criteria: Annotated[list[int], typer.Option("--criteria")] = [1, 10],  # noqa: B006
    l1: float = 0.1,
    l2: float = 1e-3,
    slsqp_limit: Annotated[int, typer.Option(help="Unknowns that SLSQP is run with.")] = 500,
) -> None:
    """Time the solvers of Eq. 10 side by side."""
    print(f"l1 = {l1:g}, l2 = {l2:g}, bounds -1 and 1")
    print(f"{'K':>3} {'n':>8} {'solver':>7} {'seconds':>9} {'objective':>20} {'KKT residual':>13}")
    for criteria in n_criteria:
        for examples in n_examples:
            problem = random_problem(criteria, examples, l1, l2)
            unknowns = examples if criteria == 1 else 2 * examples
            for name, solver in SOLVERS.items():
                place = f"{criteria:>3} {examples:>8} {name:>7}"
                if name == "slsqp" and unknowns > slsqp_limit:
                    print(f"{place}   left out, {unknowns} unknowns")
                    continue
                seconds, objective, residual = timed(solver, problem)
                print(f"{place} {seconds:>9.4f} {objective:>20.12g} {residual:>13.1e}", flush=True)
