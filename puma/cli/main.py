"""The command line: arguments in, tables out. The package computes; this room only prints.

MLflow and PyTorch take seconds to import. So every command imports what it needs itself, and
``puma --help`` answers at once.
"""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from puma.cli.common import INTERRUPTED, REFUSED, SHOWN_IDS, may_show_ids
from puma.cli.diagnostics import suspects
from puma.cli.evidence import audit, verify
from puma.cli.requests import remove, request
from puma.cli.ui import ui
from puma.cli.versions import compare, erase, promote, registered, versions
from puma.errors import DeletionError, PumaError


class CommandGroup(TyperGroup):
    """Commands whose PUMA errors are a paragraph on stderr, and Ctrl-C a line.

    All other errors keep their traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit with 2 after an error that PUMA raised on purpose."""
        try:
            return super().invoke(ctx)
        except PumaError as error:
            typer.echo(f"puma: {error}", err=True)
            if isinstance(error, DeletionError) and error.unknown_ids:
                typer.echo(_unknown(error.unknown_ids), err=True)
            raise typer.Exit(REFUSED) from error
        except KeyboardInterrupt as error:
            typer.echo("\npuma: interrupted; run the same command again", err=True)
            raise typer.Exit(INTERRUPTED) from error


def _unknown(ids: tuple[str, ...]) -> str:
    """The first of ``ids``, where they may be shown."""
    if not may_show_ids(sys.stderr):
        return "puma: which ids is shown in a terminal alone: run the command there"
    more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
    return f"puma: unknown: {', '.join(map(repr, ids[:SHOWN_IDS]))}{more}"


app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Remove people's rows from trained models, and read the evidence.",
)
for command in (
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
    app.command()(command)
