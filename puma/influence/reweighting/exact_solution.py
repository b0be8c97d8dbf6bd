"""The exact minimiser of Eq. 10, and the choice of λ = 0.

The algorithms are in :mod:`.one_criterion` and :mod:`.several_criteria`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from puma.errors import SettingsError
from puma.influence.reweighting.one_criterion import single_weights
from puma.influence.reweighting.problem import Problem
from puma.influence.reweighting.several_criteria import several_weights


@dataclass(frozen=True)
class Exact:
    """The exact minimiser of Eq. 10.

    One criterion: directly, in O(n log n). Several: by semismooth Newton in K unknowns, and the
    answer is certified by its measured relative KKT residual.

    Attributes:
        tolerance: Of the KKT residual, for several criteria.
        max_rounds: More rounds than this are a SolverError.

    Raises:
        SettingsError: A tolerance outside (0, 1), or no rounds.
    """

    tolerance: float = 1e-10
    max_rounds: int = 100

    def __post_init__(self) -> None:
        check_limits(self.tolerance, max_rounds=self.max_rounds)

    def weights(self, problem: Problem) -> Tensor:
        """(n,) λ. Raises SolverError where the tolerance is missed."""
        if len(problem.target) == 1:
            scores, target = problem.scores[0], float(problem.target)
            return single_weights(scores, target, problem.l1, problem.l2, problem.bounds)
        return several_weights(
            problem.rescaled(), tolerance=self.tolerance, max_rounds=self.max_rounds
        )


@dataclass(frozen=True)
class NoReweighting:
    """λ = 0: plain influence removal, in which nothing compensates for the removed examples."""

    def weights(self, problem: Problem) -> Tensor:
        """(n,) zeros."""
        return torch.zeros(problem.size, dtype=torch.float64)


def check_limits(tolerance: float, **counts: int) -> None:
    """Raise SettingsError unless the tolerance is in (0, 1) and every count is >= 1."""
    if not (math.isfinite(tolerance) and 0 < tolerance < 1):
        raise SettingsError(f"tolerance must be between 0 and 1, got {tolerance}")
    for name, count in counts.items():
        if count < 1:
            raise SettingsError(f"{name} must be >= 1, got {count}")
