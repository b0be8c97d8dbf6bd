"""Does a number of ours agree with the paper's? By joint deviations, and by the order of methods.

Both sources give a mean and a standard deviation over runs. Their difference in joint deviations
is k = |m₁ − m₂| / √(s₁² + s₂²): the standard score of the difference of one run of each. It does
not grow with the number of runs, so that a large k says that the experiments differ, not merely
that both were measured often. Up to 2 of them is agreement; where the deviations are wide, that
says little, so they are shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from puma.errors import DataError

HOLDS, PATTERN, DIFFERS, INCOMPARABLE = (
    "holds",
    "pattern holds",
    "differs",
    "cannot be compared",
)
VERDICTS = (HOLDS, PATTERN, DIFFERS, INCOMPARABLE)
LIMIT = 2.0  # joint deviations up to which two numbers agree


@dataclass(frozen=True)
class Measured:
    """Mean and standard deviation over runs, in the unit of the table.

    Raises DataError unless the mean is finite and the deviation finite and not negative.
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std >= 0):
            raise DataError(
                f"a mean and its deviation must be finite, and the latter not negative; got "
                f"{self.mean} ± {self.std}"
            )

    def ratio(self, unit: Measured) -> Measured:
        """How many times ``unit`` this is, with the relative deviations added in quadrature.

        Raises DataError unless both means are above zero.
        """
        if self.mean <= 0 or unit.mean <= 0:
            raise DataError(f"a ratio needs means above zero, got {self.mean} and {unit.mean}")
        ratio = self.mean / unit.mean
        return Measured(ratio, ratio * math.hypot(self.std / self.mean, unit.std / unit.mean))


def joint_deviation(one: Measured, other: Measured) -> float:
    """√(s₁² + s₂²)."""
    return math.hypot(one.std, other.std)


def deviations_apart(one: Measured, other: Measured) -> float:
    """k = |m₁ − m₂| / √(s₁² + s₂²); infinite for different means without a deviation."""
    gap, joint = abs(one.mean - other.mean), joint_deviation(one, other)
    if gap == 0:
        return 0.0
    return gap / joint if joint else math.inf


def pattern_holds(paper: Mapping[str, Measured], ours: Mapping[str, Measured]) -> bool | None:
    """Whether the paper's order of the methods is found here, too.

    Every pair of methods that the paper tells apart, by more than :data:`LIMIT` joint deviations
    of its own two numbers, has to be told apart here by as much and in the same direction. Only
    methods with a number in both count. None if the paper tells no two of these apart: then it
    states no order that could fail.
    """
    checks = [
        (ours[low].mean < ours[high].mean) and deviations_apart(ours[low], ours[high]) > LIMIT
        for low, high in _told_apart({name: paper[name] for name in paper if name in ours})
    ]
    return all(checks) if checks else None


def _told_apart(numbers: Mapping[str, Measured]) -> Iterator[tuple[str, str]]:
    """(the lower, the higher) of every pair of methods that these numbers tell apart."""
    for one, other in combinations(numbers, 2):
        if deviations_apart(numbers[one], numbers[other]) > LIMIT:
            yield (one, other) if numbers[one].mean < numbers[other].mean else (other, one)


def verdict(apart: float, pattern: bool | None) -> str:
    """Of a cell that is ``apart`` joint deviations from the paper's, in a group of methods.

    Up to :data:`LIMIT` it holds. Beyond that, the pattern may (:func:`pattern_holds`).
    """
    if apart <= LIMIT:
        return HOLDS
    return PATTERN if pattern else DIFFERS
