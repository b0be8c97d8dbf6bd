"""Seconds and memory of the prepare stage on a table of one's own, one CSV row a table.

    OMP_NUM_THREADS=1 python -m benchmarks tables

Each measurement runs the stage's notebook as the pipeline does, in processes of its own. Most
columns are numbers, with gaps; the others are texts, dates and truth values. People own two or
three rows each.
"""

from __future__ import annotations

import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from puma.cli.tables import print_table
from puma.data import Dataset
from puma.project.files import require_writable, write_text
from puma.project.workspace import Workspace

NAME = "own"
KINDS = ("csv", "csv.gz", "parquet")
PARAMS = """\
datasets: [own]
sources:
  own: {{path: table.{kind}, target: left, subject: customer_id}}
"""


def made_table(rows: int, columns: int, seed: int = 0) -> pd.DataFrame:
    """A table of so many rows and columns, the class and the id among them."""
    draw = np.random.default_rng(seed)
    table = {
        "customer_id": np.char.zfill(draw.integers(0, max(rows * 2 // 5, 2), rows).astype(str), 9),
        "left": draw.choice(["no", "yes"], rows),
    }
    for number in range(columns - 2):
        name, kind = f"column_{number}", number % 7
        if kind == 0:
            table[name] = draw.choice([f"kind {each}" for each in range(2 + number)], rows)
        elif kind == 1:
            days = draw.integers(0, 1000, rows).astype("timedelta64[D]")
            table[name] = np.datetime64("2024-01-01", "ns") + days
        elif kind == 2:
            table[name] = draw.random(rows) < 0.5
        else:
            table[name] = np.where(
                draw.random(rows) < 0.05, np.nan, draw.normal(size=rows).round(4)
            )
    return pd.DataFrame(table)


def prepared(folder: Path, project: Path) -> tuple[float, float, float]:
    """Seconds of wall and of CPU, and GB of the largest process, of the stage in ``folder``."""
    start = time.perf_counter()
    subprocess.run(
        [
            sys.executable, "-m", "papermill", "-k", "python3", "--no-progress-bar",
            str(project / "notebooks" / "prepare.ipynb"), "prepare.ipynb",
            "-p", "dataset", NAME, "-p", "record", "True",
        ],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9


def measured(rows: int, columns: int, kind: str, project: Path) -> dict[str, object]:
    """One row of the results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = made_table(rows, columns)
        path = folder / f"table.{kind}"
        if kind == "parquet":
            table.to_parquet(path, index=False)
        else:
            table.to_csv(path, index=False)
        del table
        (folder / "params.yaml").write_text(PARAMS.format(kind=kind))
        # A process of its own: what the largest child took is known of all children together.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, busy, gigabytes = pool.apply(prepared, (folder, project))
        data = Dataset.load(Workspace(folder).data(NAME))
        return {
            "format": kind,
            "rows": len(data.rows),
            "columns": columns,
            "features": data.train.features.shape[1],
            "file_mb": round(path.stat().st_size / 1e6, 1),
            "seconds": round(seconds, 1),
            "cpu_seconds": round(busy, 1),
            "peak_gb": round(gigabytes, 2),
        }


def main(
    rows: Annotated[int, typer.Option(min=100)] = 1_000_000,
    columns: Annotated[int, typer.Option(min=4, help="The class and the id among them.")] = 30,
    output: Annotated[
        Path | None,
        typer.Option("--output", "--out", help="CSV; docs/results/tables.csv if absent."),
    ] = None,
) -> None:
    """Measure seconds and memory of the prepare stage on tables of one's own."""
    workspace = Workspace.find()
    target = output or workspace.root / "docs" / "results" / "tables.csv"
    require_writable(target)
    frame = pd.DataFrame([measured(rows, columns, kind, workspace.root) for kind in KINDS])
    write_text(target, frame.to_csv(index=False))
    lines = [[str(cell) for cell in row] for row in frame.itertuples(index=False)]
    print_table("the prepare stage", tuple(map(str, frame.columns)), lines)
    typer.echo(f"{len(frame)} rows: {target}")
