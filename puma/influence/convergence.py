"""What an iteration that did not converge comes to: an error, or a warning where asked for."""

from __future__ import annotations

import warnings

from puma.errors import SolverError


def not_converged(message: str, *, required: bool, stacklevel: int) -> None:
    """Raise SolverError(``message``) if convergence is ``required``, else warn with it.

    ``stacklevel``: of warnings.warn, as if it were called in place of this.
    """
    if required:
        raise SolverError(message)
    warnings.warn(message, stacklevel=stacklevel + 1)
