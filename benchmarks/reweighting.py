"""Time the solvers of Eq. 10 side by side, with the objective each one reached.

    OMP_NUM_THREADS=1 python benchmarks/reweighting.py --examples 150 450 10000 --criteria 1 10

SLSQP is left out above --slsqp-limit unknowns: its time grows with their cube.
"""

from __future__ import annotations

import argparse
import time
import warnings

import torch

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, nargs="+", default=[150, 450, 10_000])
    parser.add_argument("--criteria", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--l1", type=float, default=0.1)
    parser.add_argument("--l2", type=float, default=1e-3)
    parser.add_argument("--slsqp-limit", type=int, default=500)
    options = parser.parse_args()

    print(f"l1 = {options.l1:g}, l2 = {options.l2:g}, bounds -1 and 1")
    print(f"{'K':>3} {'n':>8} {'solver':>7} {'seconds':>9} {'objective':>20} {'KKT residual':>13}")
    for criteria in options.criteria:
        for examples in options.examples:
            problem = random_problem(criteria, examples, options.l1, options.l2)
            unknowns = examples if criteria == 1 else 2 * examples
            for name, solver in SOLVERS.items():
                place = f"{criteria:>3} {examples:>8} {name:>7}"
                if name == "slsqp" and unknowns > options.slsqp_limit:
                    print(f"{place}   left out, {unknowns} unknowns")
                    continue
                seconds, objective, residual = timed(solver, problem)
                print(f"{place} {seconds:>9.4f} {objective:>20.12g} {residual:>13.1e}", flush=True)


if __name__ == "__main__":
    main()
