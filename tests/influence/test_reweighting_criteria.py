"""Several criteria at once: Ψ (K, n), target (K,)."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear

from puma.errors import SettingsError, SolverError
from puma.influence import reweight
from puma.influence.reweighting import Exact
from tests.influence.test_reweighting import BOUNDS, INF


def problems(count, *, largest, seed=0):
    """Random (scores, target, l1, l2, bounds): ties, huge ranges, near repeats, K > n, l2 = 0."""
    random = np.random.default_rng(seed)
    for case in range(count):
        rows, n = int(random.integers(2, 9)), int(random.integers(1, largest))
        scores = random.normal(size=(rows, n)) * 10.0 ** random.uniform(-2, 2)
        if case % 5 == 1:
            scores = np.round(scores)
            scores[0, 0] = 1.0
        elif case % 5 == 2:
            scores *= 10.0 ** random.uniform(-2, 2, size=n)
        elif case % 5 == 3:
            scores *= 10.0 ** random.uniform(-2, 2, size=(rows, 1))
        elif case % 5 == 4:
            scores = scores[:1] + scores * 10.0 ** random.uniform(-4, -1)
        target = random.normal(size=rows) * np.abs(scores).sum(1) * 10.0 ** random.uniform(-2, 0.5)
        if random.random() < 0.3:
            target = scores @ random.uniform(-1, 1, size=n)  # within reach of the bounds
        top = np.abs(scores.T @ target).max()
        l1 = random.choice([0, 1]) * 2 * top * 10.0 ** random.uniform(-6, 0.1)
        l2 = random.choice([0, 1]) * np.abs(scores).max() ** 2 * 10.0 ** random.uniform(-9, 2)
        yield scores, target, l1, l2, BOUNDS[random.integers(len(BOUNDS))]


def solve(scores, target, l1=0.0, l2=0.0, bounds=(-1.0, 1.0), solver="exact"):
    scores = torch.as_tensor(scores, dtype=torch.float64)
    target = torch.as_tensor(target, dtype=torch.float64)
    return reweight(scores, target, l1=l1, l2=l2, bounds=bounds, solver=solver).numpy()


def objective(weights, scores, target, l1, l2):
    gap = scores @ weights - target
    return gap @ gap + l1 * np.abs(weights).sum() + l2 * weights @ weights


def kkt_residual(weights, scores, target, l1, l2, bounds):
    """Largest descent left to a side that the bounds allow, relative to the slope at λ = 0."""
    slope = 2 * scores.T @ (scores @ weights - target) + 2 * l2 * weights
    right = slope + np.where(weights >= 0, l1, -l1)
    left = slope + np.where(weights > 0, l1, -l1)
    upwards = np.where(weights < bounds[1], np.maximum(0, -right), 0)
    downwards = np.where(weights > bounds[0], np.maximum(0, left), 0)
    scale = 2 * np.linalg.norm(target) * np.linalg.norm(scores, axis=0).max()
    return np.maximum(upwards, downwards).max() / scale


def test_optimality_conditions_hold():
    worst = 0.0
    for scores, target, l1, l2, bounds in problems(80, largest=40):
        weights = solve(scores, target, l1, l2, bounds)
        assert (weights >= bounds[0]).all()
        assert (weights <= bounds[1]).all()
        worst = max(worst, kkt_residual(weights, scores, target, l1, l2, bounds))
    assert worst < 1e-10


def test_agrees_with_bounded_least_squares():
    """Without l1 Eq. 10 is a bounded least squares problem, for which scipy has active sets."""
    for scores, target, _, l2, bounds in problems(60, largest=12, seed=1):
        if bounds[0] == bounds[1]:
            continue
        l2 = max(l2, 1e-6 * np.abs(scores).max() ** 2)
        n = scores.shape[1]
        stacked = np.vstack([scores, math.sqrt(l2) * np.eye(n)])
        found = lsq_linear(stacked, np.append(target, np.zeros(n)), bounds, method="bvls")
        ours = solve(scores, target, 0.0, l2, bounds)
        assert objective(ours, scores, target, 0, l2) <= 2 * found.cost * (1 + 1e-9)
        assert ours == pytest.approx(found.x, abs=1e-5 * np.abs(found.x).max())


def test_one_row_is_the_vector_form():
    for scores, target, l1, l2, bounds in problems(50, largest=30, seed=2):
        row = solve(scores[:1], target[:1], l1, l2, bounds)
        assert np.array_equal(row, solve(scores[0], target[0], l1, l2, bounds))


@pytest.mark.parametrize("copies", [2, 5])
def test_repeated_rows_are_one_row_with_smaller_penalties(copies):
    """K·(ψ·λ − t)² + l1·‖λ‖₁ + l2·‖λ‖² is K times the problem with l1/K and l2/K."""
    for scores, target, l1, l2, bounds in problems(20, largest=30, seed=3):
        l2 = max(l2, 1e-4 * np.abs(scores).max() ** 2)
        repeated = np.repeat(scores[:1], copies, axis=0)
        several = solve(repeated, np.repeat(target[0], copies), l1, l2, bounds)
        one = solve(scores[0], target[0], l1 / copies, l2 / copies, bounds)
        assert several == pytest.approx(one, rel=1e-5, abs=1e-7 * max(1e-9, np.abs(one).max()))


def test_rows_on_separate_examples_are_separate_problems():
    random = np.random.default_rng(4)
    left, right = random.normal(size=7), random.normal(size=5)
    scores = np.zeros((2, 12))
    scores[0, :7], scores[1, 7:] = left, right
    weights = solve(scores, [2.0, -9.0], 0.3, 0.1)
    apart = [solve(left, 2.0, 0.3, 0.1), solve(right, -9.0, 0.3, 0.1)]
    assert weights == pytest.approx(np.concatenate(apart), abs=1e-10)


def test_least_norm_by_hand():
    # Without penalties or bounds in the way: λ = Ψᵀ(ΨΨᵀ)⁻¹·target.
    scores, target = np.array([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0]]), np.array([0.4, 0.2])
    expected = scores.T @ np.linalg.solve(scores @ scores.T, target)
    assert solve(scores, target) == pytest.approx(expected, abs=1e-10)


def test_the_sign_of_the_target():
    for scores, target, l1, l2, _ in problems(10, largest=20, seed=5):
        up = solve(scores, target, l1, l2, (-0.7, 0.7))
        assert np.array_equal(solve(scores, -target, l1, l2, (-0.7, 0.7)), -up)
        assert np.array_equal(solve(-scores, target, l1, l2, (-0.7, 0.7)), -up)


@pytest.mark.parametrize("l2", [0.0, 1e-9, 1.0])
def test_zero_exactly_from_the_threshold_on(l2):
    scores, target = np.array([[0.3, -1.9, 1.1], [1.0, 0.2, -0.4]]), np.array([1.5, -0.5])
    gains = scores.T @ target
    threshold = 2 * np.abs(gains).max()
    assert not solve(scores, target, threshold * (1 + 1e-15), l2).any()
    below = solve(scores, target, threshold * (1 - 1e-6), l2)
    assert np.flatnonzero(below).tolist() == [np.abs(gains).argmax()]
    # The strongest may only grow towards the other side: the next one decides.
    held = (0.0, 1.0) if gains[np.abs(gains).argmax()] < 0 else (-1.0, 0.0)
    lower_threshold = 2 * np.abs(gains[np.sign(gains) == (1 if held[1] else -1)]).max()
    assert not solve(scores, target, lower_threshold * (1 + 1e-15), l2, held).any()
    assert solve(scores, target, lower_threshold * (1 - 1e-6), l2, held).any()


def test_permutations_permute_the_weights():
    random = np.random.default_rng(6)
    for scores, target, l1, l2, bounds in problems(15, largest=20, seed=6):
        l2 = max(l2, 1e-3 * np.abs(scores).max() ** 2)
        columns, rows = random.permutation(scores.shape[1]), random.permutation(len(scores))
        weights = solve(scores, target, l1, l2, bounds)
        moved = solve(scores[rows][:, columns], target[rows], l1, l2, bounds)
        assert moved == pytest.approx(weights[columns], abs=1e-7 * max(1, np.abs(weights).max()))


def test_more_criteria_than_one_are_kept():
    """One criterion's weights miss the other target; both rows together meet both."""
    scores = torch.randn(2, 200, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    target = np.array([20.0, -30.0])
    both = solve(scores, target, l2=1e-6)
    assert scores.numpy() @ both == pytest.approx(target, rel=1e-6)
    first = solve(scores[0], target[0], l2=1e-6)
    assert abs(scores[1].numpy() @ first - target[1]) > 20


def test_nothing_to_do():
    assert solve(np.zeros((2, 0)), [1.0, 2.0]).shape == (0,)
    assert not solve(np.zeros((2, 3)), [1.0, 2.0]).any()
    assert not solve([[1.0, 2.0], [3.0, 4.0]], [0.0, 0.0]).any()
    assert not solve([[1.0], [2.0]], [3.0, 4.0], bounds=(0.0, 0.0)).any()


def test_extreme_units():
    scores, target = np.array([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0]]), np.array([4.0, 2.0])
    expected = solve(scores, target, 0.1, 0.2)
    for unit in (1e-150, 1e150):
        squared = unit * unit
        weights = solve(scores * unit, target * unit, 0.1 * squared, 0.2 * squared)
        assert weights == pytest.approx(expected, abs=1e-9)


def test_missing_convergence_is_an_error_with_a_remedy():
    scores, target = np.array([[1.0, -2.0, 0.5], [0.3, 1.0, 1.0]]), np.array([1.0, 0.2])
    with pytest.raises(
        SolverError,
        match=r"weights of 2 criteria did not converge: relative KKT residual .* after 1 rounds, "
        r"tolerance 1e-10; raise l2 or max_rounds",
    ):
        solve(scores, target, 0.1, 1e-9, solver=Exact(max_rounds=1))
    with pytest.raises(SettingsError, match="tolerance must be between 0 and 1, got 0"):
        Exact(tolerance=0)
    with pytest.raises(SettingsError, match="max_rounds must be >= 1, got 0"):
        Exact(max_rounds=0)


def test_criteria_too_alike_to_tell_apart():
    """Without a ridge or bounds the weights run off to 1e9: too far to certify them as asked."""
    random = np.random.default_rng(7)
    row = random.normal(size=20)
    scores, target = np.stack([row, row + 1e-9 * random.normal(size=20)]), [1.0, -1.0]
    with pytest.raises(SolverError, match="or drop criteria whose scores nearly repeat another's"):
        solve(scores, target, bounds=(-INF, INF), solver=Exact(tolerance=1e-13))
    weights = solve(scores, target, l2=1e-6, bounds=(-INF, INF), solver=Exact(tolerance=1e-13))
    assert np.abs(weights).max() < 1


def test_ten_criteria_on_many_examples():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(10, 20_000, generator=generator, dtype=torch.float64)
    target = 4e3 * torch.randn(10, generator=generator, dtype=torch.float64)
    start = time.perf_counter()
    weights = reweight(scores, target, l1=0.1, l2=1e-6)
    assert time.perf_counter() - start < 10  # measured: 0.3 s
    residual = kkt_residual(weights.numpy(), scores.numpy(), target.numpy(), 0.1, 1e-6, (-1, 1))
    assert residual < 1e-10
