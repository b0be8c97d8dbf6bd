"""The command line: arguments in, tables out. The package computes; this room only prints.

MLflow and PyTorch take seconds to import. So every command imports what it needs itself, and
``puma --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand

from puma.cli.common import INTERRUPTED, REFUSED, SHOWN_IDS, may_show_ids
from puma.cli.diagnostics import suspects
from puma.cli.evidence import audit, verify
from puma.cli.requests import remove, request, source
from puma.cli.ui import ui
from puma.cli.versions import compare, erase, promote, registered, versions
from puma.errors import DeletionError, PumaError

COMPLETED_BY_REPEATING = ("remove", "promote", "erase")
COMPLETED = "; the same command completes what was begun"


class Command(TyperCommand):
    """A command whose PUMA errors are a paragraph on stderr, and Ctrl-C a line.

    All other errors keep their traceback. None ends with exit code 1, which is an answer.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit with 2 after an error, and with 130 after Ctrl-C."""
        with _interrupts_noted() as interrupts:
            try:
                return super().invoke(ctx)
            except (typer.Exit, BrokenPipeError):
                raise
            except (Exception, KeyboardInterrupt) as error:
                if interrupts or isinstance(error, KeyboardInterrupt):
                    advice = COMPLETED if self.name in COMPLETED_BY_REPEATING else ""
                    typer.echo(f"\npuma: interrupted{advice}", err=True)
                    raise typer.Exit(INTERRUPTED) from error
                _show(error)
                raise typer.Exit(REFUSED) from error


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """List the interrupts as they come.

    PyTorch goes on without NumPy when one comes while it imports that, and another error follows.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted  # ignored, as of a job in the background
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _show(error: Exception) -> None:
    if not isinstance(error, PumaError):
        traceback.print_exception(error)
        return
    typer.echo(f"puma: {error}", err=True)
    if isinstance(error, DeletionError) and error.unknown_ids:
        typer.echo(_unknown(error.unknown_ids), err=True)


def _unknown(ids: tuple[str, ...]) -> str:
    """The first of ``ids``, where they may be shown."""
    if not may_show_ids(sys.stderr):
        return "puma: which ids is shown in a terminal alone: run the command there"
    more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
    return f"puma: unknown: {', '.join(map(repr, ids[:SHOWN_IDS]))}{more}"


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Remove people's rows from trained models, and read the evidence.",
)
for command in (
    source,
    request,
    remove,
    versions,
    compare,
    promote,
    erase,
    registered,
    ui,
    audit,
    verify,
    suspects,
):
    app.command(cls=Command)(command)
