"""One removal by one process, and by several that share its rows by torchrun.

    python -m benchmarks ranks

PUMA's first-order step with λ, solved by conjugate gradients, for a twentieth of the rows of a
drawn table: the passes over rows are nearly all of it. Each process has one thread. Runs with one
and with several processes alternate. CPU seconds are of the busiest process: on a machine with
other work they say how the work is divided, where wall seconds say who else was there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import typer

from puma.data import Dataset, Examples
from puma.influence import rows_shared
from puma.influence.sharding import gathered
from puma.models import new_model
from puma.project.files import require_writable, write_text
from puma.removal import PUMA, Removal, Trained
from puma.requests.deletion_set import DeletionSet
from puma.settings import ModelSettings

MEASURED = ("seconds", "cpu_seconds")
CLASSES = ("a", "b", "c")
FEATURES = 30
MODEL = ModelSettings(hidden=(256, 128))  # 41,219 parameters


def drawn(n: int, seed: int) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, FEATURES, generator=generator)
    noise = torch.randn(n, len(CLASSES), generator=generator)
    return Examples.of(features, (features[:, : len(CLASSES)] + noise).argmax(1))


def removal(n: int) -> Removal:
    """Remove the first twentieth of ``n`` rows, on as many processes as share them."""
    data = Dataset("drawn", drawn(n, 0), drawn(1000, 1), CLASSES)
    model = new_model(MODEL, (FEATURES,), len(CLASSES), seed=0).eval()
    people = DeletionSet.of([str(row) for row in range(max(1, n // 20))], data)
    method = PUMA(steps=1, reference_models=0, solver="cg")
    return method.remove(Trained(model, data, model), people, progress=False)


def measure(n: int) -> None:
    """As one of several processes: remove, and let rank 0 print the seconds."""
    torch.distributed.init_process_group("gloo")
    with rows_shared():
        removal(100)  # what PyTorch imports on first use
        started = time.process_time()
        seconds = removal(n).seconds
        spent = torch.tensor([time.process_time() - started], dtype=torch.float64)
        busiest = gathered(spent, torch.distributed.get_world_size()).max()
    if torch.distributed.get_rank() == 0:
        print(f"seconds {seconds} {float(busiest)}")
    torch.distributed.destroy_process_group()


def measured(n: int, processes: int) -> tuple[float, float]:
    """Wall seconds of the removal, and CPU seconds of the busiest process."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(processes), "-m", "benchmarks.ranks", str(n)),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("seconds")]
    seconds, cpu_seconds = map(float, line.split()[1:])
    return seconds, cpu_seconds


def main(
    rows: Annotated[int, typer.Option(min=100, help="Of the table.")] = 50_000,
    processes: Annotated[int, typer.Option(min=2, help="That share the rows.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Of each measurement.")] = 3,
    output: Annotated[Path, typer.Option(help="The CSV file.")] = Path("docs/results/ranks.csv"),
) -> None:
    """Time one removal by one process and by several, in turn."""
    require_writable(output)
    found = [
        {"rows": rows, "processes": count, **dict(zip(MEASURED, took, strict=True))}
        for _ in range(repeats)
        for count in (1, processes)
        for took in [measured(rows, count)]
    ]
    table = pd.DataFrame(found)
    write_text(output, table.to_csv(index=False, float_format="%.2f"))
    medians = table.groupby("processes")[list(MEASURED)].median()
    medians["ratio"] = medians["seconds"].iloc[0] / medians["seconds"]
    medians["cpu_ratio"] = medians["cpu_seconds"].iloc[0] / medians["cpu_seconds"]
    print(medians.round(2).to_string())


if __name__ == "__main__":
    measure(int(sys.argv[1]))
