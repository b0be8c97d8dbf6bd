"""How far to step: accuracy and attack rate against the paper's η, and where a budget stops.

The paper's Algorithm 1 steps by a rate η on sums over the removed rows. The first-order step of
this package is of the same form, with its own curvature and λ; its dose τ is η·n, for n training
rows, and it is the largest that a budget allows. So both have a place on the axis of η.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from benchmarks.removals import Row, Runs, Scenario, check, rows_of
from benchmarks.tables import read_rows, spread
from puma.errors import SettingsError
from puma.models.parallel import run_all
from puma.removal.puma.method import ONE_STEP
from puma.settings import Settings

ETAS = (0.0001, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
BUDGETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
ADVISED = (0.01, 0.1)  # the paper's range of η
PRINTED, ONE = "puma_paper", "puma_one_step"
UNSTEPPED: Runs = {"retrain": ("retrain", {"schedule": "equal_epochs"}), "puma": ("puma", {})}
STEP_COLUMNS = (
    "dataset",
    "method",
    "seed",
    "eta",
    "budget",
    "dose",
    "original_accuracy",
    "accuracy",
    "removed_rate_before",
    "removed_rate",
    "unseen_rate",
    "loss_auc",
    "drift",
    "note",
)


def run_step_sizes(
    datasets: Sequence[str] = ("german_credit",),
    *,
    settings: Settings,
    seeds: int = 5,
    etas: Sequence[float] = ETAS,
    budgets: Sequence[float] = BUDGETS,
    jobs: int = 1,
    progress: bool = True,
) -> pd.DataFrame:
    """One removal of one cluster of every class a row: :data:`STEP_COLUMNS`.

    ``puma_paper`` at each of ``etas``, the first-order step ``puma_one_step`` at each of
    ``budgets`` (nats), and ``retrain`` and ``puma`` of ``settings``, which have no η. Numbers are
    those of :func:`benchmarks.removals.run_removals`. eta: dose / n. dose: of ``puma`` in units of
    its own, whose 1 is the whole way to the target margins.

    Raises SettingsError for an unknown dataset, fewer than one seed or job, or an η or a budget
    that is not above zero.
    """
    names = check(datasets, seeds, jobs)
    if wrong := [each for each in (*etas, *budgets) if not each > 0]:
        raise SettingsError(f"every η and every budget must be above 0, got {wrong}")
    runs: Runs = {
        **{f"{PRINTED} {eta:g}": (PRINTED, {"eta": eta}) for eta in etas},
        **{f"{ONE} {budget:g}": ("puma", {**ONE_STEP, "budget": budget}) for budget in budgets},
        **UNSTEPPED,
    }
    tasks = [
        (name, seed, settings, [Scenario("cluster")], runs)
        for name, seed in product(names, range(seeds))
    ]
    rows: list[Row] = []
    with tqdm(total=len(tasks), desc="step sizes", unit="seed", disable=not progress) as bar:
        for _, found in run_all(rows_of, tasks, jobs=jobs):
            rows += [_placed(row, runs) for row in found]
            bar.update()
    order = list(runs)
    rows.sort(key=lambda row: (names.index(row["dataset"]), order.index(row["run"]), row["seed"]))
    return pd.DataFrame(rows, columns=list(STEP_COLUMNS))


def _placed(row: Row, runs: Runs) -> Row:
    """With the method's name, its budget, and η."""
    run = row["method"]
    method = run.split()[0]
    placed: Row = {**row, "run": run, "method": method}
    changed = runs[run][1]
    if method == PRINTED:
        placed["eta"] = changed["eta"]
    if method == ONE:
        placed["budget"] = changed["budget"]
        if not row["note"]:
            placed["eta"] = row["dose"] / row["train_rows"]
    return placed


def read_step_sizes(path: Path) -> pd.DataFrame:
    """The rows that ``python -m benchmarks step-size`` wrote.

    Raises DataError when the file is absent or has other columns.
    """
    return read_rows(path, STEP_COLUMNS, "step-size")


def step_size_table(frame: pd.DataFrame, dataset: str) -> tuple[list[str], list[list[str]]]:
    """Heading and lines: mean ± std over seeds at every η, and at every budget."""
    rows = frame[frame["dataset"] == dataset]
    key = [rows["eta"].where(rows["method"] == PRINTED), rows["budget"]]
    groups = rows.groupby(["method", *key], sort=False, dropna=False)
    lines = []
    for (method, *_), found in groups:
        budget, stepped = found["budget"].mean(), found["eta"].mean()
        lines.append(
            [
                str(method),
                "" if math.isnan(budget) else f"{budget:g}",
                "" if math.isnan(stepped) else f"{stepped:.2g}",
                *(spread(100 * found[name], 1) for name in ("accuracy", "removed_rate")),
                spread(found["drift"], 3),
            ]
        )
    return ["method", "budget", "η", "accuracy %", "removed %", "drift (nats)"], lines
