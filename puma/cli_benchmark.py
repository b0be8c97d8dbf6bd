"""``puma removal-benchmark``; imports what takes seconds only when it runs, as puma.cli does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from puma.console import print_table
from puma.errors import SettingsError
from puma.workspace import Workspace


def removal_benchmark(
    datasets: Annotated[
        str, typer.Option(help="Names, separated by commas.")
    ] = "radial,rectangular,german_credit,breast_cancer",
    seeds: Annotated[int, typer.Option(min=1, help="0 to SEEDS - 1.")] = 5,
    output: Annotated[
        Path | None, typer.Option(help="CSV; docs/results/removal.csv of the project if absent.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, each with one thread.")] = 2,
    fractions: Annotated[
        str, typer.Option(help="Shares of the rows that ordered and random removals take.")
    ] = "0.2,0.4,0.6,0.8",
) -> None:
    """Measure every removal method on the same requests, one CSV row a run.

    Methods and training are as params.yaml says; its datasets, marking.name, marking.fraction
    and seed are not read.
    """
    workspace = Workspace.find()
    settings, folder = workspace.settings, workspace.source_folder
    if folder is not None:
        data = settings.data.model_copy(update={"folder": str(folder)})
        settings = settings.model_copy(update={"data": data})
    try:
        shares = [float(share) for share in fractions.split(",")]
    except ValueError:
        raise SettingsError(f"--fractions {fractions!r} is no list such as 0.2,0.4") from None
    from puma.benchmark import SHORT, cluster_table, run_benchmark, scenarios
    from puma.files import write_text

    names = [name.strip() for name in datasets.split(",")]
    cases = scenarios(shares)
    frame = run_benchmark(names, settings=settings, seeds=seeds, cases=cases, jobs=jobs)
    target = output or workspace.root / "docs" / "results" / "removal.csv"
    write_text(target, frame.to_csv(index=False))
    for name in dict.fromkeys(names):
        heading, lines = cluster_table(frame, name, SHORT, deviations=False)
        print_table(f"{name}: one cluster of every class removed", tuple(heading), lines)
    typer.echo(f"{len(frame)} rows, {int((frame['note'] != '').sum())} of them notes: {target}")
