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
from puma.cli.main import Command

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run a comparison behind docs/results.md.",
)
app.command("removals", cls=Command)(commands.removal_benchmark)
app.command("audits", cls=Command)(commands.audit_benchmark)
app.command("label-errors", cls=Command)(commands.label_errors_benchmark)
app.command("label-errors-runtime", cls=Command)(commands.label_errors_runtime)
app.command("calibration", cls=Command)(commands.calibration_benchmark)
app.command("request-sequence", cls=Command)(request_sequence.main)
app.command("kills", cls=Command)(kills.main)
app.command("mnist-removal", cls=Command)(mnist_removal.main)
app.command("reweighting", cls=Command)(reweighting.main)
app.command("psi-memory", cls=Command)(psi_memory.main)
app.command("figures", cls=Command)(figures.main)
app.command("fuzz", cls=Command)(fuzz.main)

if __name__ == "__main__":
    app()
