"""Linear solvers by name. A new one is one file and one row of this table."""

from __future__ import annotations

from collections.abc import Callable

from puma.errors import SettingsError
from puma.influence.solvers.cg import ConjugateGradients
from puma.influence.solvers.dense import Dense
from puma.influence.solvers.solution import Solution, Solver

SOLVERS: dict[str, Callable[..., Solver]] = {"cg": ConjugateGradients, "dense": Dense}


def resolve_solver(solver: str | Solver | None = None) -> Solver:
    """The solver itself: by name with its default settings, as given, or conjugate gradients.

    Raises SettingsError for an unknown name.
    """
    if solver is None:
        return ConjugateGradients()
    if not isinstance(solver, str):
        return solver
    if solver not in SOLVERS:
        raise SettingsError(
            f"unknown solver {solver!r}; choose one of {', '.join(sorted(SOLVERS))}"
        )
    return SOLVERS[solver]()


__all__ = ["SOLVERS", "ConjugateGradients", "Dense", "Solution", "Solver", "resolve_solver"]
