"""``python -m benchmarks``: the comparisons behind docs/results.md, one command each."""

from __future__ import annotations

from collections.abc import Callable

import typer

from benchmarks import (
    command_times,
    commands,
    figures,
    fuzz,
    kills,
    mnist_pool,
    mnist_removal,
    own_tables,
    paper,
    peers,
    psi_memory,
    ranks,
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
COMMANDS: dict[str, Callable[..., None]] = {
    "removals": commands.removal_benchmark,
    "audits": commands.audit_benchmark,
    "preserved": commands.preserved_benchmark,
    "label-errors": commands.label_errors_benchmark,
    "label-errors-runtime": commands.label_errors_runtime,
    "calibration": commands.calibration_benchmark,
    "step-size": commands.step_size_benchmark,
    "request-sequence": request_sequence.main,
    "kills": kills.main,
    "mnist-pool": mnist_pool.main,
    "mnist-removal": mnist_removal.main,
    "reweighting": reweighting.main,
    "peers": peers.main,
    "psi-memory": psi_memory.main,
    "ranks": ranks.main,
    "figures": figures.main,
    "commands": command_times.main,
    "fuzz": fuzz.main,
    "tables": own_tables.main,
    "paper": paper.main,
}
for name, command in COMMANDS.items():
    app.command(name, cls=Command)(command)

if __name__ == "__main__":
    app()
