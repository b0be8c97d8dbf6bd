"""The command line: arguments in, tables out. The package computes; this room only prints.

MLflow and PyTorch take seconds to import. So every command imports what it needs itself, and
``puma --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from puma.cli.adoption import adopt
from puma.cli.common import REFUSED, SHOWN_IDS, may_show_ids, several_ranks
from puma.cli.diagnostics import suspects
from puma.cli.evidence import audit, verify
from puma.cli.project import init
from puma.cli.requests import remove, request, source
from puma.cli.signals import (
    INTERRUPTED,
    UNREAD,
    discard_output,
    interrupts_noted,
    output_is_unread,
    quiet_interrupts,
)
from puma.cli.ui import ui
from puma.cli.versions import compare, erase, promote, registered, versions
from puma.errors import DeletionError, PumaError, SettingsError
from puma.garbage import collect_rarely

COMPLETED_BY_REPEATING = ("remove", "promote", "erase")
SHARED = "remove"  # by the processes that torchrun starts
COMPLETED = "; the same command completes what was begun"
ENDED_WITHIN = 30  # seconds that a rank waits for torchrun to end it


class Commands(TyperGroup):
    """All commands, whose output may end unread, as in ``puma versions german_credit | head -1``.

    That is no answer, and no error either.
    """

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Read the arguments; shows the help where it is asked for."""
        with _may_go_unread():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        with _may_go_unread():
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()  # at the very end of Python, it would fail with 120


@contextlib.contextmanager
def _may_go_unread() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        if not output_is_unread():
            raise
        discard_output()
        raise typer.Exit(UNREAD) from error
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # Rich, which shows the help
            raise typer.Exit(UNREAD) from error
        raise


class App(typer.Typer):
    """The command line, quiet on Ctrl-C from its start to its end."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run it and exit."""
        collect_rarely()
        with quiet_interrupts():
            return super().__call__(*arguments, **named)


class Command(TyperCommand):
    """A command whose PUMA errors are a paragraph on stderr; Ctrl-C and a full disk are a line.

    All other errors keep their traceback. None ends with exit code 1, which is an answer.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit with 2 after an error, and with 130 after Ctrl-C."""
        with interrupts_noted() as interrupts:
            try:
                self._refuse_ranks()
                return super().invoke(ctx)
            except typer.Exit:
                raise
            except (Exception, KeyboardInterrupt) as error:
                if isinstance(error, BrokenPipeError) and output_is_unread():
                    raise
                if interrupts or isinstance(error, KeyboardInterrupt):
                    advice = COMPLETED if self.name in COMPLETED_BY_REPEATING else ""
                    typer.echo(f"\npuma: interrupted{advice}", err=True)
                    raise typer.Exit(INTERRUPTED) from error
                _show(error)
                raise typer.Exit(REFUSED) from error

    def _refuse_ranks(self) -> None:
        if self.name == SHARED or not several_ranks():
            return
        if int(os.environ["RANK"]) > 0:
            # The first rank that ends makes torchrun end the others: rank 0, before it says why.
            time.sleep(ENDED_WITHIN)
            raise typer.Exit(REFUSED)
        raise SettingsError(f"puma {self.name} is for one process; run it without torchrun")


def _show(error: Exception) -> None:
    if isinstance(error, OSError):
        from puma.registry.store_errors import disk_remedy, first_line

        if (advice := disk_remedy(error)) is not None:
            typer.echo(f"puma: {first_line(error)}; {advice} and run the command again", err=True)
            return
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


def _in_paragraphs(command: Callable[..., Any]) -> str:
    """What ``command`` does, each paragraph as one line, which any terminal's width can break."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(command) or "")


app = App(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Remove people's rows from trained models, and read the evidence.",
)
# In the order in which a newcomer meets them.
GROUPS = {
    "Project": (init, adopt, ui),
    "Requests": (remove,),
    "Versions": (compare, versions, promote, erase),
    "Evidence": (audit, verify),
    "Diagnostics": (suspects,),
    "What the pipeline calls": (source, request, registered),
}
for group, commands in GROUPS.items():
    for command in commands:
        app.command(cls=Command, rich_help_panel=group, help=_in_paragraphs(command))(command)
