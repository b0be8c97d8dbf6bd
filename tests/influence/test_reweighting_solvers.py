"""The other rows of REWEIGHTERS, held against the exact one."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from puma.errors import DataError, SettingsError, SolverError
from puma.influence import REWEIGHTERS, reweight
from puma.influence.reweighting import LBFGSB, SLSQP, Problem
from tests.influence.test_reweighting_criteria import BOUNDS, INF, objective, solve

NAMES = {"slsqp": "SLSQP", "lbfgsb": "L-BFGS-B"}


def moderate_problems(count, rows):
    """Well-scaled random problems, on which a general optimiser should succeed."""
    random = np.random.default_rng(rows)
    for _ in range(count):
        scores = random.normal(size=(rows, int(random.integers(2, 25))))
        target = random.normal(size=rows) * np.abs(scores).sum(1) * 0.3
        l1 = random.choice([0, 1]) * 2 * np.abs(scores.T @ target).max() * random.uniform(0.01, 0.5)
        yield scores, target, l1, random.uniform(0.01, 2), BOUNDS[random.integers(len(BOUNDS))]


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("rows", [1, 3])
def test_agrees_with_the_exact_solution(name, rows):
    for scores, target, l1, l2, bounds in moderate_problems(15, rows):
        exact = solve(scores, target, l1, l2, bounds)
        weights = solve(scores, target, l1, l2, bounds, solver=name)
        assert (weights >= bounds[0]).all()
        assert (weights <= bounds[1]).all()
        best = objective(exact, scores, target, l1, l2)
        reached = objective(weights, scores, target, l1, l2)
        assert best - 1e-12 * target @ target <= reached <= best + 1e-5 * target @ target
        # Strong convexity: the objective grows by l2·‖λ − λ*‖² at least.
        assert l2 * np.square(weights - exact).sum() <= reached - best + 1e-12 * target @ target


@pytest.mark.parametrize("name", sorted(NAMES))
def test_zero_from_the_threshold_on(name):
    assert not solve([0.3, -1.9], 1.0, 3.8, solver=name).any()
    assert solve([0.3, -1.9], 1.0, 3.7, solver=name)[1] < 0
    assert not solve([0.0, 0.0], 1.0, solver=name).any()
    assert solve([], 1.0, solver=name).shape == (0,)


@pytest.mark.parametrize(("name", "kind"), [("slsqp", SLSQP), ("lbfgsb", LBFGSB)])
def test_missing_convergence_is_an_error_or_a_warning(name, kind):
    scores = torch.randn(2, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = (scores, np.array([9.0, -4.0]), 0.5, 1e-3)
    message = (
        f"{NAMES[name]} did not converge on 60 weights: relative violation of the "
        r"optimality conditions .*, tolerance 0.001 \(.* after \d+ iterations\); use solver='exact'"
    )
    with pytest.raises(SolverError, match=message):
        solve(*problem, solver=kind(max_iterations=2))
    with pytest.warns(UserWarning, match=message) as caught:
        weights = solve(*problem, solver=kind(max_iterations=2, require_convergence=False))
    assert caught[0].filename.endswith("test_reweighting_criteria.py")  # where solve() is
    assert np.isfinite(weights).all()
    assert np.abs(weights).max() <= 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(*problem, solver=LBFGSB())


@pytest.mark.parametrize("kind", [SLSQP, LBFGSB])
def test_settings_are_checked(kind):
    with pytest.raises(SettingsError, match="tolerance must be between 0 and 1, got nan"):
        kind(tolerance=float("nan"))
    with pytest.raises(SettingsError, match="max_iterations must be >= 1, got 0"):
        kind(max_iterations=0)


@pytest.mark.parametrize(("rows", "size"), [(1, "5.25e+04"), (3, "2.1e+05")])
def test_slsqp_refuses_before_it_allocates(rows, size):
    scores = torch.ones(rows, 25_000)
    tracemalloc.start()
    try:
        with pytest.raises(SolverError) as caught:
            reweight(scores, torch.ones(rows), l1=0.1, l2=0.1, solver="slsqp")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert f"of 25000 points take {size} MB, max_bytes allows 2147 MB" in message
    assert "use the reweighter 'exact'" in message
    assert peak < 20e6
    weights = reweight(scores, torch.ones(rows), l1=0.1, l2=0.1, solver="exact")
    assert weights.shape == (25_000,)
    with pytest.raises(SettingsError, match="max_bytes must be >= 1, got 0"):
        SLSQP(max_bytes=0)


def test_slsqp_runs_up_to_its_limit():
    """scipy's workspace, as tracemalloc sees it, is within the estimate, and most of it."""
    scores = torch.rand(1, 300, generator=torch.Generator().manual_seed(0))
    few = {"max_iterations": 1, "require_convergence": False}
    tracemalloc.start()
    try:
        with pytest.warns(UserWarning, match="did not converge"):
            reweight(
                scores, torch.ones(1), l1=0.1, l2=0.1, solver=SLSQP(max_bytes=84 * 300**2, **few)
            )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.9 < peak / (84 * 300**2) < 1.1
    with pytest.raises(SolverError, match="300 unknowns for the weights of 300 points"):
        reweight(
            scores, torch.ones(1), l1=0.1, l2=0.1, solver=SLSQP(max_bytes=84 * 300**2 - 1, **few)
        )


def test_the_certificate_by_hand():
    # (2λ − 3)² + 4|λ| + λ²: slope −12 + 4 to the right of 0, 0 at 0.8, and 6 at 1.4.
    double = {"dtype": torch.float64}
    scores, target = torch.tensor([[2.0]], **double), torch.tensor([3.0], **double)
    problem = Problem(scores, target, 4.0, 1.0, (-2.0, 2.0))
    zero, least, beyond, half, bad = torch.tensor(
        [[0.0], [0.8], [1.4], [0.5], [math.nan]], **double
    )
    assert problem.violation(zero) == pytest.approx(8)
    assert problem.residual(zero) == pytest.approx(8 / 12)
    assert problem.violation(least) == pytest.approx(0, abs=1e-14)
    assert problem.violation(beyond) == pytest.approx(6)
    assert math.isnan(problem.violation(bad))
    # At a bound only the way back counts; above the threshold nothing is left to gain at 0.
    assert replace(problem, bounds=(0.0, 0.5)).violation(half) == 0
    assert replace(problem, l1=12.1).violation(zero) == 0


def test_none_is_zero_for_checked_input():
    assert solve([1.0, -2.0], 3.0, solver="none").tolist() == [0, 0]
    assert solve([[1.0, -2.0]] * 2, [3.0, 4.0], solver="none").tolist() == [0, 0]
    weights = reweight(torch.ones(2), 1.0, l1=0.0, l2=0.0, solver="none")
    assert weights.dtype == torch.float32


@pytest.mark.parametrize("name", sorted(REWEIGHTERS))
def test_every_solver_refuses_bad_requests(name):
    with pytest.raises(DataError, match="1 bad scores"):
        solve([1.0, INF], 1.0, solver=name)
    with pytest.raises(DataError, match=r"target must be \(2,\), one per row of scores"):
        solve([[1.0], [2.0]], 1.0, solver=name)
    with pytest.raises(SettingsError, match="l2 must be finite and >= 0, got -1"):
        solve([1.0], 1.0, l2=-1.0, solver=name)
    with pytest.raises(SettingsError, match="bounds must contain 0"):
        solve([1.0], 1.0, bounds=(0.5, 1.0), solver=name)
