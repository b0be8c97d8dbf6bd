"""The user's own code, by "package.module:name"."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from puma.errors import PumaError, SettingsError
from puma.project.workspace import Workspace


def imported(
    name: str, what: str, form: str, error: type[PumaError], *, folder: Path | None = None
) -> Any:
    """Import what ``name`` names.

    THIS RUNS THE USER'S CODE: importing the module executes it. Take such a name from a
    params.yaml that you trust, as you would a program.

    Args:
        name: "package.module:name"; the second part may have dots.
        what: It is, for the message.
        form: Of such a name, for the message.
        error: What to raise.
        folder: Where its module is looked for first; the project around the working directory
            if None.

    Raises:
        PumaError: The module or the name in it cannot be imported; of the type ``error``.
    """
    module, _, attribute = name.partition(":")
    try:
        with importable_from(folder):
            return attrgetter(attribute)(importlib.import_module(module))
    except Exception as problem:  # a module may raise anything while it is imported
        raise error(
            f"{what} {name!r} cannot be imported ({type(problem).__name__}: {problem}); write "
            f'"{form}", and put the module beside params.yaml, install the package, or add its '
            "folder to PYTHONPATH"
        ) from problem


def code_digest(
    name: str, what: str, form: str, error: type[PumaError], *, folder: Path | None = None
) -> bytes:
    """SHA-256 of the file of the module of ``name``; what else it imports is not looked at.

    Args:
        name: See :func:`imported`, also for the rest.
        what: It is, for the message.
        form: Of such a name, for the message.
        error: What to raise.
        folder: Where its module is looked for first.

    Raises:
        PumaError: There is no such file, or it cannot be read; of the type ``error``.
    """
    module = name.partition(":")[0]
    reason = ""
    try:
        with importable_from(folder):
            found = importlib.util.find_spec(module)
    except Exception as problem:  # of a package, which is imported to look into it
        found, reason = None, f" ({type(problem).__name__}: {problem})"
    if found is None or not found.has_location or found.origin is None:
        raise error(
            f"{what} {name!r}: there is no module {module!r}{reason}; write "
            f'"{form}", and put the module beside params.yaml, install it, or add '
            "its folder to PYTHONPATH"
        )
    try:
        with Path(found.origin).open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as problem:
        raise error(f"{found.origin!r}: cannot be read ({problem})") from problem


@contextlib.contextmanager
def importable_from(folder: Path | None = None) -> Iterator[None]:
    """Look for modules in ``folder`` first, for the time being.

    Args:
        folder: The project around the working directory if None; nowhere else if there is none.
    """
    first = _project() if folder is None else str(folder)
    if first is None:
        yield
        return
    sys.path.insert(0, first)
    try:
        yield
    finally:
        sys.path.remove(first)


def _project() -> str | None:
    try:
        return str(Workspace.find().root)
    except SettingsError:
        return None
