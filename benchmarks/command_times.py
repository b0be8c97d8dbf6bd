"""Seconds of what people type every day, each with its parts, one CSV row a part.

    python -m benchmarks commands

In a new project of ``puma init`` (German Credit): the pipeline stage by stage, the pipeline when
nothing changed, a removal of six people on a registered version, and the commands that only read.
Beside them what is part of all: starting Python, importing PyTorch and MLflow, an empty notebook.
CPU seconds are of all processes of a command, and mean something on a busy machine, too.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from tqdm import tqdm

from puma.cli.tables import print_table
from puma.data import Dataset
from puma.project.files import require_writable, write_text
from puma.project.workspace import Workspace

DATASET = "german_credit"  # what `puma init` begins with
PEOPLE = 6
PUMA = ("-m", "puma.cli")
# Python's arguments, for what every command or stage waits for.
BASICS = {
    "start Python": ("-c", ""),
    "import torch": ("-c", "import torch"),
    "import mlflow": ("-c", "import mlflow"),
    "import puma.audit": ("-c", "import puma.audit"),
    "an empty notebook": ("-m", "papermill", "-k", "python3", "empty.ipynb", "done.ipynb"),
}
EMPTY = """\
{"cells": [{"cell_type": "code", "id": "one", "metadata": {}, "outputs": [], "source": ["1"],
"execution_count": null}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
"""
# What DVC calls by name: the command itself, and its seconds into a file.
TIMED = """\
#!/bin/sh
exec {python} -m benchmarks.timed_stage {log} {module} "$@"
"""


def spent(arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """Wall and CPU seconds of Python with ``arguments``, and its exit code.

    Raises:
        RuntimeError: It ended with an error. What it printed is told.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):  # 1: another answer than the hoped-for one
        raise RuntimeError(f"{' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {
        "seconds": seconds,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def measured(folder: Path, *, progress: bool = True) -> pd.DataFrame:
    """Time everything in a new project in ``folder``; columns command, part, seconds, cpu_seconds.

    A row without a part is the whole command.
    """
    project, log = folder / "project", folder / "stages.jsonl"
    (folder / "empty.ipynb").write_text(EMPTY)
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    (folder / "bin").mkdir()
    for name, module in (("papermill", "papermill"), ("puma", PUMA[1])):
        path = folder / "bin" / name
        quoted = {"python": shlex.quote(sys.executable), "log": shlex.quote(str(log))}
        path.write_text(TIMED.format(module=module, **quoted))
        path.chmod(0o755)
    removal = ("remove", "--model", f"models:/puma-{DATASET}/1", "--deletions", "six.csv")
    steps: dict[str, tuple[str, ...]] = {
        "puma init": (*PUMA, "init", "project"),
        "dvc repro": ("-m", "dvc", "repro"),
        "dvc repro, nothing changed": ("-m", "dvc", "repro"),
        f"puma remove, {PEOPLE} people": (*PUMA, *removal),
        "puma versions": (*PUMA, "versions", DATASET),
        "puma compare": (*PUMA, "compare"),
        "puma verify": (*PUMA, "verify", DATASET, "3"),
        "puma --help": (*PUMA, "--help"),
    }
    rows = []
    with tqdm(total=len(BASICS) + len(steps), disable=not progress) as bar:
        for name, arguments in BASICS.items():
            bar.set_description(name)
            rows.append({"command": name, "part": ""} | spent(arguments, folder, environment))
            bar.update()
        for name, arguments in steps.items():
            bar.set_description(name)
            log.write_text("")
            at = project if project.exists() else folder
            rows.append({"command": name, "part": ""} | spent(arguments, at, environment))
            parts = [json.loads(line) for line in log.read_text().splitlines()]
            rows += [{"command": name} | part for part in parts]
            if name == "dvc repro":
                _write_request(project)
            bar.update()
    return pd.DataFrame(rows).round(2)


def _write_request(project: Path) -> None:
    subjects = Dataset.load(Workspace(project).data(DATASET)).train.subject_ids
    people = list(dict.fromkeys(subjects))[:PEOPLE]
    (project / "six.csv").write_text("\n".join(["subject_id", *map(str, people)]) + "\n")


def main(
    output: Annotated[
        Path | None,
        typer.Option("--output", "--out", help="CSV; docs/results/commands.csv if absent."),
    ] = None,
) -> None:
    """Time the commands of every day and the parts of each, in a new project."""
    target = output or Workspace.find().root / "docs" / "results" / "commands.csv"
    require_writable(target)
    with tempfile.TemporaryDirectory() as name:
        frame = measured(Path(name))
    write_text(target, frame.to_csv(index=False))
    lines = [[str(cell) for cell in row] for row in frame.itertuples(index=False)]
    print_table("seconds", tuple(map(str, frame.columns)), lines)
    typer.echo(f"{len(frame)} rows: {target}")
