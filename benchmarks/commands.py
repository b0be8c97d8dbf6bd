"""The commands whose settings are those of params.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from benchmarks.audits import REQUESTS, run_audits, verdicts
from benchmarks.calibration import run_calibration
from benchmarks.calibration_models import VARIANTS, Problem
from benchmarks.calibration_tables import calibration_table
from benchmarks.label_errors import run_label_errors
from benchmarks.label_errors_runtime import Limits, run_runtime
from benchmarks.label_errors_tables import label_errors_table, runtime_table
from benchmarks.preserved import preserved_table, run_preserved
from benchmarks.removals import ALL_RUNS, RUNS, run_removals, scenarios
from benchmarks.step_size import run_step_sizes, step_size_table
from benchmarks.tables import SHORT, cluster_table
from puma.cli.tables import print_table
from puma.errors import SettingsError
from puma.project.files import require_writable, write_text
from puma.project.workspace import Workspace
from puma.settings import Settings

SHORTER = {
    "indistinguishable": "not told apart",
    "forgetting_incomplete": "incomplete",
    "over_forgotten": "over",
    "utility_lost": "lost",
}
Output = Annotated[
    Path | None,
    typer.Option("--output", "--out", help="CSV; the command's own in docs/results/ if absent."),
]
Datasets = Annotated[str, typer.Option(help="Names, separated by commas.")]
Seeds = Annotated[int, typer.Option(min=1, help="0 to SEEDS - 1.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes, each with one thread.")]


def removal_benchmark(
    datasets: Datasets = "radial,rectangular,german_credit,breast_cancer",
    seeds: Seeds = 5,
    output: Output = None,
    jobs: Jobs = 2,
    fractions: Annotated[
        str, typer.Option(help="Shares of the rows that ordered and random removals take.")
    ] = "0.2,0.4,0.6,0.8",
    methods: Annotated[str, typer.Option(help=f"Of {', '.join(ALL_RUNS)}.")] = ",".join(RUNS),
    requests: Annotated[
        str, typer.Option(help="Of cluster, ordered and random.")
    ] = "cluster,ordered,random",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of every training, in place of params.yaml's.")
    ] = None,
) -> None:
    """Measure every removal method on the same requests, one CSV row a run.

    Methods and training are as params.yaml says; its datasets, marking.name, marking.fraction
    and seed are not read.
    """
    workspace = Workspace.find()
    settings = _settings(workspace)
    if epochs is not None:
        training = settings.training.model_copy(update={"epochs": epochs})
        settings = settings.model_copy(update={"training": training})
    target = _target(workspace, output, "removal")
    try:
        shares = [float(share) for share in fractions.split(",")]
    except ValueError:
        raise SettingsError(f"--fractions {fractions!r} is no list such as 0.2,0.4") from None

    names, runs = _names(datasets), _names(methods)
    cases, asked = scenarios(shares), _names(requests)
    if unknown := sorted(set(asked) - {case.name for case in cases}):
        raise SettingsError(f"unknown requests {unknown}; there are cluster, ordered and random")
    cases = [case for case in cases if case.name in asked]
    frame = run_removals(names, settings=settings, seeds=seeds, cases=cases, runs=runs, jobs=jobs)
    _write(frame, target)
    for name in dict.fromkeys(names if "cluster" in frame["scenario"].values else ()):
        heading, lines = cluster_table(frame, name, SHORT, deviations=False)
        print_table(f"{name}: one cluster of every class removed", tuple(heading), lines)
    _print_counts(frame, target)


def audit_benchmark(
    datasets: Datasets = "german_credit,breast_cancer",
    seeds: Seeds = 10,
    output: Output = None,
    jobs: Jobs = 2,
    requests: Annotated[
        str, typer.Option(help="Who is removed: N people, N clusters, or category.")
    ] = ",".join(REQUESTS),
    again: Annotated[
        bool, typer.Option("--again", help="Audit by a second set of retrained models, too.")
    ] = False,
) -> None:
    """Audit every removal method, and the unmodified originals, one CSV row a version.

    Methods, training and limits are as params.yaml says; its datasets, marking and seed are not
    read. The verdict of retrain should be passed, that of an original never.
    """
    workspace = Workspace.find()
    settings = _settings(workspace)
    target = _target(workspace, output, "audit")
    cases = [case.strip() for case in requests.split(",")]

    frame = run_audits(
        _names(datasets), settings=settings, seeds=seeds, requests=cases, again=again, jobs=jobs
    )
    _write(frame, target)
    table = verdicts(frame)
    lines = [[str(cell) for cell in row] for row in table.itertuples(index=False)]
    columns = tuple(SHORTER.get(name, name) for name in map(str, table.columns))
    print_table("verdicts, in seeds", columns, lines)
    typer.echo(f"{len(frame)} rows: {target}")


def preserved_benchmark(
    datasets: Datasets = "german_credit,two_moons",
    seeds: Seeds = 5,
    output: Output = None,
    jobs: Jobs = 2,
) -> None:
    """Keep the calibration error or a group's loss beside the retained loss, and do not keep it.

    Methods, training and limits are as params.yaml says; its datasets, data.validation_fraction,
    puma.preserve, marking and seed are not read.
    """
    workspace = Workspace.find()
    settings = _settings(workspace)
    target = _target(workspace, output, "preserved")
    frame = run_preserved(_names(datasets), settings=settings, seeds=seeds, jobs=jobs)
    _write(frame, target)
    heading, lines = preserved_table(frame)
    print_table("drift of the criterion, verdicts, accuracy", tuple(heading), lines)
    typer.echo(f"{len(frame)} rows: {target}")


def label_errors_benchmark(
    datasets: Datasets = "two_moons,radial,rectangular,spiral,german_credit,breast_cancer",
    seeds: Seeds = 5,
    output: Output = None,
    jobs: Jobs = 2,
    permutations: Annotated[int, typer.Option(min=2, help="Of G-Shapley, at most.")] = 200,
) -> None:
    """Flip a tenth of the training labels and let every ranker look for them, one CSV row each.

    Model and training are as params.yaml says; its datasets and seed are not read. The curves go
    to OUTPUT's name with _curves.
    """
    workspace = Workspace.find()
    settings = _settings(workspace)
    target = _target(workspace, output, "debugging")

    frame, curves = run_label_errors(
        _names(datasets), settings=settings, seeds=seeds, permutations=permutations, jobs=jobs
    )
    _write(frame, target)
    _write(curves, _beside(target, "curves"))
    heading, lines = label_errors_table(frame)
    print_table("share of flipped labels in the most suspect tenth", tuple(heading), lines)
    _print_counts(frame, target)


def label_errors_runtime(
    datasets: Datasets = "two_moons,radial,rectangular,spiral,german_credit,breast_cancer",
    output: Output = None,
    points: Annotated[int, typer.Option(min=20, help="Of two_moons and spiral.")] = 5000,
    repeats: Annotated[int, typer.Option(min=1, help="Runs, of which the median counts.")] = 3,
    permutations: Annotated[int, typer.Option(min=2, help="Of G-Shapley, at most.")] = 400,
) -> None:
    """Time every ranker in one thread, one CSV row each, on an otherwise idle machine.

    Model, training and seed are as params.yaml says.
    """
    workspace = Workspace.find()
    settings = _settings(workspace)
    target = _target(workspace, output, "debugging_runtime")

    frame = run_runtime(
        _names(datasets),
        settings=settings,
        points=points,
        limits=Limits(repeats=repeats, permutations=permutations),
    )
    _write(frame, target)
    heading, lines = runtime_table(frame)
    print_table("seconds, and how many times psi's", tuple(heading), lines)
    typer.echo(f"{len(frame)} rows: {target}")


def step_size_benchmark(
    datasets: Datasets = "german_credit",
    seeds: Seeds = 5,
    output: Output = None,
    jobs: Jobs = 2,
) -> None:
    """Remove at the paper's rates η, and with the dose that each budget allows, one CSV row each.

    Methods and training are as params.yaml says; its datasets, marking.name and seed are not
    read, nor are puma_paper.eta and, but for the method puma, puma.budget.
    """
    workspace = Workspace.find()
    settings = _settings(workspace)
    target = _target(workspace, output, "step_size")
    names = _names(datasets)
    frame = run_step_sizes(names, settings=settings, seeds=seeds, jobs=jobs)
    _write(frame, target)
    for name in dict.fromkeys(names):
        heading, lines = step_size_table(frame, name)
        print_table(f"{name}: one cluster of every class removed", tuple(heading), lines)
    _print_counts(frame, target)


def calibration_benchmark(
    seeds: Seeds = 5,
    output: Output = None,
    jobs: Jobs = 2,
    points: Annotated[int, typer.Option(min=20, help="Of two moons, in all.")] = 5000,
    flipped: Annotated[int, typer.Option(min=0, help="Wrong labels for training.")] = 100,
    few: Annotated[int, typer.Option(min=4, help="Rows of the over-fitted model.")] = 300,
) -> None:
    """Repair the calibration of models of two moons in every way, one CSV row each.

    Model and training are as params.yaml says; its seed is not read. The reliability of seed 0
    goes to OUTPUT's name with _reliability.
    """
    workspace = Workspace.find()
    settings = _settings(workspace)
    target = _target(workspace, output, "calibration")

    problem = Problem(points=points, flipped=flipped, few=few)
    frame, bins = run_calibration(settings=settings, seeds=seeds, problem=problem, jobs=jobs)
    _write(frame, target)
    _write(bins, _beside(target, "reliability"))
    for variant in VARIANTS:
        heading, lines = calibration_table(frame, variant)
        print_table(f"two moons, {variant}", tuple(heading), lines)
    _print_counts(frame, target)


def _target(workspace: Workspace, output: Path | None, name: str) -> Path:
    """Where the results go, which is checked before the work that makes them."""
    target = output or workspace.root / "docs" / "results" / f"{name}.csv"
    require_writable(target)
    return target


def _write(frame: pd.DataFrame, target: Path) -> None:
    write_text(target, frame.to_csv(index=False))


def _beside(target: Path, what: str) -> Path:
    return target.with_name(f"{target.stem}_{what}{target.suffix}")


def _print_counts(frame: pd.DataFrame, target: Path) -> None:
    typer.echo(f"{len(frame)} rows, {int((frame['note'] != '').sum())} of them notes: {target}")


def _settings(workspace: Workspace) -> Settings:
    """params.yaml's, with a data folder that does not depend on where the command runs."""
    settings, folder = workspace.settings, workspace.source_folder
    if folder is None:
        return settings
    data = settings.data.model_copy(update={"folder": str(folder)})
    return settings.model_copy(update={"data": data})


def _names(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]
