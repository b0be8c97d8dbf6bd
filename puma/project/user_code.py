"""The user's own code, by "package.module:name"."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from puma.errors import PumaError


def imported(name: str, what: str, form: str, error: type[PumaError]) -> Any:
    """Import what ``name`` names.

    THIS RUNS THE USER'S CODE: importing the module executes it. Take such a name from a
    params.yaml that you trust, as you would a program.

    Args:
        name: "package.module:name"; the second part may have dots.
        what: It is, for the message.
        form: Of such a name, for the message.
        error: What to raise.

    Raises:
        PumaError: The module or the name in it cannot be imported; of the type ``error``.
    """
    module, _, attribute = name.partition(":")
    try:
        return attrgetter(attribute)(importlib.import_module(module))
    except Exception as problem:  # a module may raise anything while it is imported
        raise error(
            f"{what} {name!r} cannot be imported ({type(problem).__name__}: {problem}); write "
            f'"{form}", and install the package or add its folder to PYTHONPATH'
        ) from problem


@contextlib.contextmanager
def importable_from(folder: Path) -> Iterator[None]:
    """Look for modules in ``folder`` first, for the time being."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
