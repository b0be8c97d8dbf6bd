"""``python -m benchmarks``: the comparisons behind docs/results.md, one command each."""

from __future__ import annotations

import typer

from benchmarks import (
    commands,
    figures,
    fuzz,
    kills,
    mnist_removal,
    psi_memory,
    request_sequence,
    reweighting,
)
from puma.cli.main import CommandGroup

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run a comparison behind docs/results.md.",
)
app.command("removals")(commands.removal_benchmark)
app.command("audits")(commands.audit_benchmark)
app.command("label-errors")(commands.label_errors_benchmark)
app.command("label-errors-runtime")(commands.label_errors_runtime)
app.command("calibration")(commands.calibration_benchmark)
app.command("request-sequence")(request_sequence.main)
app.command("kills")(kills.main)
app.command("mnist-removal")(mnist_removal.main)
app.command("reweighting")(reweighting.main)
app.command("psi-memory")(psi_memory.main)
app.command("figures")(figures.main)
app.command("fuzz")(fuzz.main)

if __name__ == "__main__":
    app()
