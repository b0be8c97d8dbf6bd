from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from puma.errors import DataError, SettingsError
from puma.influence import reweight
from tests.oracles import kkt_residual, reweighting_objective

INF = math.inf
BOUNDS = [(-1.0, 1.0), (-0.3, 2.0), (0.0, 0.7), (-1.5, 0.0), (-INF, INF), (-0.5, INF), (-INF, 0.1)]


def problems(count, *, largest, seed=0):
    """Random (scores, target, l1, l2, bounds), from far below the bounds to far beyond them."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        n = int(random.integers(1, largest))
        scores = random.normal(size=n) * 10.0 ** random.uniform(-2, 2)
        kind = random.integers(4)
        if kind == 0:
            scores = np.round(scores)  # ties and zeros
        elif kind == 1:
            scores *= 10.0 ** random.uniform(-4, 4, size=n)  # huge ranges
        top = np.abs(scores).max()
        if top == 0:
            continue
        target = random.normal() * np.abs(scores).sum() * 10.0 ** random.uniform(-2, 0.5)
        l1 = random.choice([0, 1]) * 2 * abs(target) * top * 10.0 ** random.uniform(-6, 0.1)
        l2 = random.choice([0, 1]) * top**2 * 10.0 ** random.uniform(-12, 2)
        yield scores, target, l1, l2, BOUNDS[random.integers(len(BOUNDS))]


def solve(scores, target, l1=0.0, l2=0.0, bounds=(-1.0, 1.0)):
    scores = torch.as_tensor(scores, dtype=torch.float64)
    return reweight(scores, target, l1=l1, l2=l2, bounds=bounds).numpy()


def test_optimality_conditions_hold_to_round_off():
    for scores, target, l1, l2, bounds in problems(500, largest=60):
        weights = solve(scores, target, l1, l2, bounds)
        assert (weights >= bounds[0]).all()
        assert (weights <= bounds[1]).all()
        assert kkt_residual(weights, scores, target, l1, l2, bounds) < 1e-12


@pytest.mark.parametrize("method", ["L-BFGS-B", "SLSQP"])
def test_never_worse_than_a_general_optimiser(method):
    compared = 0
    for scores, target, l1, l2, bounds in problems(60, largest=10, seed=1):
        ours = reweighting_objective(solve(scores, target, l1, l2, bounds), scores, target, l1, l2)
        theirs = reweighting_objective(
            general_optimiser(method, scores, target, l1, l2, bounds), scores, target, l1, l2
        )
        assert ours <= theirs + 1e-12 * target**2
        compared += theirs < (1 + 1e-3) * ours + 1e-9 * target**2
    assert compared > 20  # often the same: the comparison is not with a solver that fails


def general_optimiser(method, scores, target, l1, l2, bounds):
    """λ = plus − minus with both >= 0, where the objective is smooth."""
    n, (lower, upper) = len(scores), bounds

    def objective(both):
        gap = scores @ (both[:n] - both[n:]) - target
        value = gap**2 + l1 * both.sum() + l2 * both @ both
        slope = 2 * gap * np.concatenate([scores, -scores]) + l1 + 2 * l2 * both
        return value / target**2, slope / target**2

    limits = [(0, None if math.isinf(upper) else upper)] * n
    limits += [(0, None if math.isinf(lower) else -lower)] * n
    found = minimize(objective, np.zeros(2 * n), jac=True, bounds=limits, method=method)
    both = np.clip(found.x, 0, np.repeat([upper, -lower], n))
    return both[:n] - both[n:] if np.isfinite(both).all() else np.zeros(n)


def test_by_hand():
    # One example: (2λ − 3)² + 4|λ| + λ² has its minimum where 8λ − 12 + 4 + 2λ = 0.
    assert solve([2.0], 3.0, 4.0, 1.0) == pytest.approx([0.8], abs=1e-15)
    # l2 = 0: the strongest example first, up to its bound; the next takes what pays.
    # After λ_0 = 1: (2λ_1 + 5 − 8)² + 4|λ_1|, so 8λ_1 − 12 + 4 = 0, and less for the last.
    assert solve([-5.0, 2.0, 1.0], 8.0, 4.0, 0.0, (-1, 2)) == pytest.approx([-1, 1, 0], abs=1e-15)
    # Sum out of reach: everything at its bound, except a score of zero, which stays at zero.
    assert solve([1.0, -2.0, 0.0], 9.0, 0.0, 0.0, (-0.5, 0.25)).tolist() == [0.25, -0.5, 0]


def test_the_sign_of_the_target():
    for scores, target, l1, l2, _ in problems(60, largest=30, seed=2):
        up = solve(scores, target, l1, l2, (-0.7, 0.7))
        assert np.array_equal(solve(scores, -target, l1, l2, (-0.7, 0.7)), -up)
        assert np.array_equal(solve(-scores, target, l1, l2, (-0.7, 0.7)), -up)
        assert (np.sign(up) * np.sign(scores) * np.sign(target) >= 0).all()


@pytest.mark.parametrize("l2", [0.0, 1e-12, 1.0])
@pytest.mark.parametrize("target", [-3.7, 0.013])
def test_zero_exactly_from_the_threshold_on(target, l2):
    scores = [0.3, -1.9, 1.1, 0.0]
    threshold = 2 * abs(target) * 1.9
    assert not solve(scores, target, threshold, l2).any()
    assert not solve(scores, target, 2 * threshold, l2).any()
    below = solve(scores, target, np.nextafter(threshold, 0), l2)
    assert np.flatnonzero(below).tolist() == [1]


def test_least_norm_without_penalties():
    scores = np.array([1.0, -2.0, 3.0, 0.5])
    free = solve(scores, 7.0, bounds=(-INF, INF))
    assert free == pytest.approx(7 * scores / (scores @ scores), rel=1e-14)
    for bounds in BOUNDS:
        for target in (0.2, -0.3, 1.5, 30.0):
            weights = solve(scores, target, bounds=bounds)
            limit = solve(scores, target, 0.0, 1e-10, bounds)
            assert weights == pytest.approx(limit, abs=1e-8)
            if abs(scores @ weights - target) > 1e-9:
                continue  # out of reach
            constraint = {"type": "eq", "fun": lambda w, t=target: scores @ w - t}
            reference = minimize(
                lambda w: w @ w, weights * 0, bounds=[bounds] * 4, constraints=constraint
            )
            assert weights @ weights == pytest.approx(reference.fun, abs=1e-6)
            assert weights == pytest.approx(reference.x, abs=1e-4)


def test_a_tiny_ridge_loses_no_digits():
    # One moving example: λ = (2·S·t − l1) / (2·(t² + l2)) whatever the size of l2.
    for l2 in (1e-3, 1e-9, 1e-12, 1e-15):
        weights = solve([1.0, 0.25], 1.0, 0.6, l2)
        assert weights == pytest.approx([1.4 / (2 * (1 + l2)), 0], rel=1e-15)
    # Equal scores share one solution, however close the kinks lie.
    weights = solve([1.0, 1.0, -1.0], 1.0, 0.6, 1e-12)
    assert weights == pytest.approx(np.array([1, 1, -1]) * 0.7 / 3, rel=1e-11)


def test_scores_that_nearly_tie_under_a_ridge_below_round_off():
    random = np.random.default_rng(4)
    for _ in range(300):
        n = int(random.integers(2, 40))
        spread = 10.0 ** random.uniform(-16, -10) * random.integers(0, 4, n)
        scores = random.choice([1.0, 1.0, 2.0], n) * (1 + spread) * random.choice([-1, 1], n)
        target = random.uniform(0.1, 0.8) * np.abs(scores).sum()
        l1, l2 = target * 10.0 ** random.uniform(-3, 0), 10.0 ** random.uniform(-20, -8)
        bounds = BOUNDS[random.choice([0, 1, 4, 5])]
        weights = solve(scores, target, l1, l2, bounds)
        assert kkt_residual(weights, scores, target, l1, l2, bounds) < 1e-12


def test_ties_without_a_ridge():
    l1 = 2 * 0.5 * 2  # the group of |ψ| = 2 fills until the gap is 0.5
    # Same fraction of each one's own bound: 3 in all from bounds 1, 1 and 2.
    weights = solve([2.0, 2.0, -2.0, 1.0], 6.5, l1, 0.0, (-2.0, 1.0))
    assert weights == pytest.approx([0.75, 0.75, -1.5, 0], abs=1e-14)
    # Equal shares where bounds are infinite.
    weights = solve([2.0, -2.0, 2.0, 1.0], 6.5, l1, 0.0, (-INF, INF))
    assert weights == pytest.approx([1, -1, 1, 0], abs=1e-14)


def test_permuting_the_scores_permutes_the_weights():
    random = np.random.default_rng(3)
    for scores, target, l1, l2, bounds in problems(100, largest=30, seed=3):
        order = random.permutation(len(scores))
        weights = solve(scores, target, l1, l2, bounds)
        scale = max(1e-300, np.abs(weights).max())
        moved = solve(scores[order], target, l1, l2, bounds)
        # The spread of λ is 1/l2 times that of the residual: compare what is well determined.
        assert moved @ scores[order] == pytest.approx(weights @ scores, rel=1e-11)
        if l2 == 0 or l2 > 1e-6 * max(l1, np.abs(scores).max() ** 2):
            assert np.abs(moved - weights[order]).max() <= 1e-9 * scale


def test_nothing_to_do():
    assert solve([], 3.0, 0.1, 0.1).shape == (0,)
    assert not solve([0.0, 0.0], 3.0).any()
    assert not solve([1.0, -2.0], 0.0).any()
    assert not solve([1.0, -2.0], 5.0, bounds=(0.0, 0.0)).any()


def test_scores_and_target_as_tensors_of_single_precision():
    scores = torch.tensor([1.0, -2.0], requires_grad=True)
    weights = reweight(scores, torch.tensor(0.5), l1=0.0, l2=0.0)
    assert weights.dtype == torch.float32
    assert not weights.requires_grad
    torch.testing.assert_close(weights, torch.tensor([0.1, -0.2]))


@pytest.mark.slow
@pytest.mark.parametrize(("l1", "l2"), [(0.1, 1e-6), (0.1, 0.0), (0.0, 0.0)])
def test_a_million_scores(l1, l2):
    scores = torch.randn(10**6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = time.perf_counter()
    weights = reweight(scores, 3e5, l1=l1, l2=l2)
    assert time.perf_counter() - start < 5  # measured: 0.4 s
    assert kkt_residual(weights.numpy(), scores.numpy(), 3e5, l1, l2, (-1, 1)) < 1e-12


@pytest.mark.parametrize("bounds", [(0.1, 1.0), (-1.0, -0.1), (math.nan, 1.0), (1.0, -1.0)])
def test_bounds_must_contain_zero(bounds):
    with pytest.raises(SettingsError, match="bounds must contain 0"):
        solve([1.0], 1.0, bounds=bounds)


@pytest.mark.parametrize("bad", [-1e-9, math.inf, math.nan])
def test_penalties_are_checked(bad):
    with pytest.raises(SettingsError, match="l1 must be finite and >= 0, got"):
        solve([1.0], 1.0, l1=bad)
    with pytest.raises(SettingsError, match="l2 must be finite and >= 0, got"):
        solve([1.0], 1.0, l2=bad)


def test_bad_requests_are_refused():
    with pytest.raises(DataError, match="1 bad scores"):
        solve([1.0, math.nan], 1.0)
    with pytest.raises(DataError, match="target inf"):
        solve([1.0], math.inf)
    with pytest.raises(DataError, match=r"got shape \(1, 1, 1\)"):
        solve([[[1.0]]], 1.0)
    with pytest.raises(DataError, match=r"got shape \(0, 3\)"):
        solve(np.zeros((0, 3)), [])
    with pytest.raises(DataError, match=r"target must be one number, got shape \(1,\)"):
        solve([1.0], [1.0])
    with pytest.raises(DataError, match=r"target must be \(2,\), one per row of scores, got"):
        solve([[1.0], [2.0]], [1.0, 2.0, 3.0])
    with pytest.raises(DataError, match=r"of torch\.int64"):
        reweight(torch.tensor([1, 2]), 1.0, l1=0.0, l2=0.0)
    with pytest.raises(
        SettingsError, match=r"unknown reweighting solver 'lbfgs'; choose .* lbfgsb"
    ):
        reweight(torch.ones(1), 1.0, l1=0.0, l2=0.0, solver="lbfgs")


@pytest.mark.parametrize("solver", ["exact", "lbfgsb", "slsqp"])
@pytest.mark.parametrize("scale", [1e-300, 1e-158, 1e150, 1e300])
def test_a_common_scale_changes_no_weight(solver, scale):
    scores = torch.tensor([0.5, -1.5, 2.0, -0.1], dtype=torch.float64)
    # Eq. 10 without penalties has the least-norm solution scores·target/‖scores‖².
    expected = scores * 0.4 / scores.square().sum()
    found = reweight(scores * scale, 0.4 * scale, l1=0.0, l2=0.0, solver=solver)
    assert found @ scores == pytest.approx(0.4, rel=1e-3)
    if solver == "exact":
        torch.testing.assert_close(found, expected)


def test_a_number_as_target_is_taken_in_double_precision() -> None:
    scores = torch.linspace(-1, 1, 9, dtype=torch.float64)
    for target in (0.1, 1e-40, 0.3):  # none of which float32 holds
        exact = torch.tensor(target, dtype=torch.float64)
        found = reweight(scores, target, l1=0.0, l2=0.0)
        assert torch.equal(found, reweight(scores, exact, l1=0.0, l2=0.0))
        assert float(scores @ found) == pytest.approx(target, rel=1e-14)
