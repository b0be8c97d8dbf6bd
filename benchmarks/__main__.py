"""``python -m benchmarks``: the comparisons behind docs/results.md, one command each."""

from __future__ import annotations

import typer

from benchmarks import commands
from puma.cli.main import CommandGroup

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Measure removals, audits, label-error rankings and calibration repairs.",
)
app.command("removals")(commands.removal_benchmark)
app.command("audits")(commands.audit_benchmark)
app.command("label-errors")(commands.label_errors_benchmark)
app.command("label-errors-runtime")(commands.label_errors_runtime)
app.command("calibration")(commands.calibration_benchmark)

if __name__ == "__main__":
    app()
