"""Linear solvers by name. A new one is one file and one row of SOLVERS."""

from __future__ import annotations

from puma.errors import SettingsError
from puma.influence.solvers.cg import ConjugateGradients
from puma.influence.solvers.cholesky import Dense
from puma.influence.solvers.dual import Dual, RowsInverse
from puma.influence.solvers.lissa import LiSSA
from puma.influence.solvers.solver import Preconditioner, Solution, Solver
from puma.influence.solvers.woodbury import Woodbury

SOLVERS: dict[str, type[Solver]] = {
    "cg": ConjugateGradients,
    "dense": Dense,
    "dual": Dual,
    "lissa": LiSSA,
    "woodbury": Woodbury,
}


def resolve_solver(solver: str | Solver | None = None) -> Solver:
    """Return a solver by name with its default settings, or as given; None: conjugate gradients.

    Raises:
        SettingsError: An unknown name, or no solver.
    """
    if solver is None:
        return ConjugateGradients()
    if not isinstance(solver, str):
        if isinstance(solver, type) or not callable(getattr(solver, "solve", None)):
            raise SettingsError(
                f"solver must be a name or a value such as ConjugateGradients(), got {solver!r}; "
                f"choose one of {', '.join(sorted(SOLVERS))}"
            )
        return solver
    if solver not in SOLVERS:
        raise SettingsError(
            f"unknown solver {solver!r}; choose one of {', '.join(sorted(SOLVERS))}"
        )
    return SOLVERS[solver]()


__all__ = [
    "SOLVERS",
    "ConjugateGradients",
    "Dense",
    "Dual",
    "LiSSA",
    "Preconditioner",
    "RowsInverse",
    "Solution",
    "Solver",
    "Woodbury",
    "resolve_solver",
]
