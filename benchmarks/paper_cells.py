"""Every cell of the paper's three tables beside ours, with a verdict.

What is compared with what:

- Table 1 (test accuracy, per cent): the removals of a share of the rows. Table 2 (share of the
  removed rows that the shadow attack calls members, per cent): the removals of one cluster of
  every class, which is how the paper marks rows (Appendix A). Table 3 (seconds of a ranking): how
  many times PUMA's own, since the seconds are those of two machines.
- The paper's PUMA is compared twice: with ``puma_paper``, its Algorithm 1 as printed, and with
  ``puma``, the method of this package. Its Amnesiac ML has no repair (``amnesiac_unrepaired``);
  its SISA has an ordered request in as few shards as it fills (``sisa_ordered``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from benchmarks.agreement import (
    INCOMPARABLE,
    Measured,
    deviations_apart,
    joint_deviation,
    pattern_holds,
    verdict,
)
from benchmarks.label_errors_tables import read_runtime
from benchmarks.removals import BASELINE
from benchmarks.tables import read
from puma.errors import DataError

COLUMNS = (
    "table",
    "scenario",
    "dataset",
    "column",
    "method",
    "run",
    "paper_mean",
    "paper_std",
    "our_mean",
    "our_std",
    "our_runs",
    "our_removed_rate",
    "our_unseen_rate",
    "our_loss_auc_gap",
    "joint_deviation",
    "deviations_apart",
    "pattern",
    "verdict",
    "reason",
)
REFERENCE = Path("paper") / "reference"
RESULTS = Path("docs") / "results"
SECONDS = "table3_debugging_seconds"  # of the paper
REMOVALS = "removal.csv"
AS_IN_PAPER = "removal_as_in_paper.csv"
SHORTER = "removal_15_epochs.csv"  # of Radial, trained for fewer epochs
RUNTIME = "debugging_runtime.csv"
STEPS = "step_size.csv"
DATASETS = {
    "Radial": "radial",
    "Rectangular": "rectangular",
    "German": "german_credit",
    "Breast Cancer": "breast_cancer",
    "MNIST": "mnist",
    "Two Moons": "two_moons",
    "Spiral": "spiral",
    "Rectangulars": "rectangular",
    "German Credit": "german_credit",
}
PUMA = "PUMA"
PUMA_RUNS = ("puma_paper", "puma")
RUN_OF = {
    ("ordered", "Retrain Model"): "retrain",
    ("ordered", "SISA"): "sisa_ordered",
    ("random", "Retrain Model"): "retrain",
    ("random", "SISA"): "sisa",
    ("random", "Amnesiac ML"): "amnesiac_unrepaired",
}
# Whose original a method's run has removed from, where not its own alone.
SAME_ORIGINAL = {
    ("original", PUMA): BASELINE,
    ("original", "Amnesiac ML"): "amnesiac",
    ("before", PUMA): BASELINE,
    ("before", "Amnesiac ML"): "amnesiac_unrepaired",
}
TIMED = {
    "GShapley": "g_shapley",
    "NTK": "ntk_per_example",
    "SelfInfluence": "self_influence_per_point",
    "RSP": "representer",
    PUMA: "psi",
}
PRINTED = ("Two Moons", "Spiral", "Radial", "Rectangulars")  # the rest of Table 3 is a comment
RANGE_OF_3 = 1.6926  # mean range of three normal draws, in standard deviations (Tippett, 1925)

BATCHES = (
    "the training shuffles its batches in every epoch, so that no request lies in a few of them"
)
SCATTERED = (
    "no run has the rows of the marked clusters side by side in the shards, as the paper's "
    "ordered scenario has them"
)
NO_MNIST = (
    "not run on MNIST: the DenseNet has one seed, and no removal of a share of the rows "
    "(docs/results/mnist.csv has its clusters)"
)
ONE = Measured(1.0, 0.0)
UNIT = "seconds of another machine: PUMA's own are the unit of the others' ratios"
NOT_RUN = "not run yet: python -m benchmarks {command}"
BLANK = (
    "{number} is blank in removal.csv, which was written before it was measured: "
    "run python -m benchmarks removals again"
)
FAILED = "{answered} of {runs} seeds have a number, and a deviation needs two"
# What stands beside an accuracy: the column, that of the removals, and its factor.
FORGETTING = {
    "our_removed_rate": ("removed_rate", 100.0),
    "our_unseen_rate": ("unseen_rate", 100.0),
    "our_loss_auc_gap": ("loss_auc_gap_to_retrain", 1.0),
}


@dataclass(frozen=True)
class Ours:
    """Our number for a cell, or the reason why there is none."""

    number: Measured | None
    runs: int = 0
    reason: str = ""
    forgetting: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One number of the paper, and the run of ours that it is compared with."""

    table: int
    scenario: str
    dataset: str
    column: str
    method: str
    run: str
    paper: Measured
    ours: Ours


def compared(root: Path, results: Path = RESULTS) -> pd.DataFrame:
    """One row per cell, :data:`COLUMNS`, from the CSV files in ``results``, a folder of ``root``.

    Numbers of Tables 1 and 2 are per cent; those of Table 3 are ratios to PUMA's seconds.
    our_removed_rate, our_unseen_rate: beside an accuracy after a removal, the shares of the removed
    and of the unseen rows that the shadow attack calls members, per cent. our_loss_auc_gap: how far
    the loss attack's AUC is from that after retraining, blank where that was not run with it.
    joint_deviation and deviations_apart: see ``benchmarks.agreement``. pattern: True, False, or
    blank where the paper tells no two methods of the dataset, scenario and column apart.

    Raises DataError where a file is absent or has other columns.
    """
    removals = all_removals(root / results)
    groups = [
        *_accuracies(reference(root, "table1_accuracy_after_removal"), removals),
        *_attacks(reference(root, "table2_membership_attack"), removals),
        *_seconds(
            reference(root, SECONDS),
            read_runtime(root / results / RUNTIME),
        ),
    ]
    return pd.DataFrame([row for group in groups for row in _judged(group)], columns=list(COLUMNS))


def all_removals(folder: Path) -> pd.DataFrame:
    """The rows of removal.csv, and of the runs as in the paper where these are there."""
    paths = [folder / REMOVALS]
    if (folder / AS_IN_PAPER).exists():
        paths.append(folder / AS_IN_PAPER)
    return pd.concat([read(path) for path in paths], ignore_index=True)


def reference(root: Path, name: str) -> pd.DataFrame:
    """A table of the paper as data. Raises DataError where the file is absent or no table."""
    path = root / REFERENCE / f"{name}.csv"
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no table of the paper ({error}); check the file out") from error


def _accuracies(table: pd.DataFrame, removals: pd.DataFrame) -> Iterable[list[Cell]]:
    shares = {f"removed{share}": share / 100 for share in (20, 40, 60, 80)}
    for (scenario, dataset), lines in table.groupby(["scenario", "dataset"], sort=False):
        rows = removals[removals["dataset"] == DATASETS[str(dataset)]]
        rows = rows[rows["scenario"] == scenario]
        first = rows[rows["fraction"] == min(shares.values())]  # every request has one original
        yield _cells(1, lines, "original", first, "original_accuracy")
        for column, share in shares.items():
            yield _cells(1, lines, column, rows[rows["fraction"] == share], "accuracy")


def _attacks(table: pd.DataFrame, removals: pd.DataFrame) -> Iterable[list[Cell]]:
    for (_, dataset), lines in table.groupby(["scenario", "dataset"], sort=False):
        rows = removals[removals["dataset"] == DATASETS[str(dataset)]]
        rows = rows[rows["scenario"] == "cluster"]
        yield _cells(2, lines, "before", rows, "removed_rate_before")
        yield _cells(2, lines, "after", rows, "removed_rate")


def _cells(
    table: int, lines: pd.DataFrame, column: str, rows: pd.DataFrame, number: str
) -> list[Cell]:
    """Of Table 1 or 2: one column of the paper's ``lines``, which are those of one dataset."""
    cells = []
    for _, line in lines.iterrows():
        scenario, dataset, method = line["scenario"], line["dataset"], line["method"]
        for run in _runs(scenario, method):
            measured = SAME_ORIGINAL.get((column, method), run)
            if dataset == "MNIST":
                ours = Ours(None, reason=NO_MNIST)
            elif not measured:
                ours = Ours(None, reason=BATCHES)
            elif (table, run) == (2, "sisa_ordered"):
                ours = Ours(None, reason=SCATTERED)
            else:
                ours = _over_seeds(rows, measured, number)
                if number == "accuracy":
                    ours = replace(ours, forgetting=_forgetting(rows, measured))
            named = run or measured
            cells.append(
                Cell(table, scenario, dataset, column, method, named, _stated(line, column), ours)
            )
    return cells


def _seconds(table: pd.DataFrame, runtime: pd.DataFrame) -> Iterable[list[Cell]]:
    for name, lines in table.groupby("dataset", sort=False):
        dataset = str(name)
        rows = runtime[runtime["dataset"] == DATASETS[dataset]]
        runs = {str(row["method"]): row for _, row in rows.iterrows()}
        stated = {str(line["method"]): _stated(line, "seconds") for _, line in lines.iterrows()}
        column = "seconds" if dataset in PRINTED else "seconds, not printed"
        yield [
            Cell(
                3, "", dataset, column, method, TIMED[method],
                ONE if method == PUMA else seconds.ratio(stated[PUMA]),
                _timed(runs, method),
            )
            for method, seconds in stated.items()
        ]  # fmt: skip


def _stated(line: pd.Series, column: str) -> Measured:
    return Measured(float(line[f"{column}_mean"]), float(line[f"{column}_std"]))


def _runs(scenario: str, method: str) -> tuple[str, ...]:
    return PUMA_RUNS if method == PUMA else (RUN_OF.get((scenario, method), ""),)


def _over_seeds(rows: pd.DataFrame, run: str, number: str) -> Ours:
    """Mean and deviation (n − 1) over the seeds that have this number, in per cent."""
    mine = rows[rows["method"] == run]
    values = mine.dropna(subset=[number]).groupby("seed")[number].first()
    if mine.empty:
        command = f"removals --methods {run} --output FOLDER/{AS_IN_PAPER}"
        return Ours(None, reason=NOT_RUN.format(command=command))
    if values.empty and (mine["note"] == "").all():
        return Ours(None, reason=BLANK.format(number=number))
    if len(values) < 2:
        return Ours(None, reason=FAILED.format(answered=len(values), runs=mine["seed"].nunique()))
    return Ours(Measured(100 * values.mean(), 100 * values.std()), len(values))


def _forgetting(rows: pd.DataFrame, run: str) -> dict[str, float]:
    """The means over seeds that stand beside the accuracy of ``run``, those of FORGETTING."""
    seeds = rows[rows["method"] == run].groupby("seed")
    return {
        column: factor * float(seeds[name].first().mean())
        for column, (name, factor) in FORGETTING.items()
    }


def _timed(runs: Mapping[str, pd.Series], method: str) -> Ours:
    run, unit = TIMED[method], TIMED[PUMA]
    if missing := [name for name in (run, unit) if name not in runs]:
        command = f"label-errors-runtime has no row of {missing[0]}"
        return Ours(None, reason=NOT_RUN.format(command=command))
    if run == unit:
        return Ours(ONE, reason=UNIT)
    ratio = _median(runs[run]).ratio(_median(runs[unit]))
    return Ours(ratio, int(runs[run]["runs"]), _how(runs[run]))


def _median(row: pd.Series) -> Measured:
    """The median of three runs with the deviation that their range tells of; one run has none."""
    spread = (row["seconds_max"] - row["seconds_min"]) / RANGE_OF_3 if row["runs"] == 3 else 0.0
    return Measured(float(row["seconds"]), float(spread))


def _how(row: pd.Series) -> str:
    """What is to be known of a timing."""
    said = ["timed once: the deviation is PUMA's alone"] if row["runs"] == 1 else []
    if row["extrapolated"]:
        said.append(f"extrapolated from {row['rows_timed']} rows")
    if str(row["settled"]) == "False":
        said.append("stopped before its values had converged: at least so many times")
    return "; ".join(said)


def _judged(group: list[Cell]) -> Iterable[dict[str, object]]:
    """The rows of one dataset, scenario and column, in which the order of methods is tested.

    Each run of PUMA is tested with the other methods; their own rows have the first one's result.
    """
    others = [cell for cell in group if cell.method != PUMA]
    patterns = {
        cell.run: pattern_holds(*_both([*others, cell])) for cell in group if cell.method == PUMA
    }
    first = next(iter(patterns.values()))
    for cell in group:
        yield _row(cell, patterns.get(cell.run, first))


def _both(cells: list[Cell]) -> tuple[Mapping[str, Measured], Mapping[str, Measured]]:
    """(the paper's numbers, ours) by method."""
    return (
        {cell.method: cell.paper for cell in cells},
        {cell.method: cell.ours.number for cell in cells if cell.ours.number is not None},
    )


def _row(cell: Cell, pattern: bool | None) -> dict[str, object]:
    ours = cell.ours.number
    row: dict[str, object] = {
        "table": cell.table,
        "scenario": cell.scenario,
        "dataset": cell.dataset,
        "column": cell.column,
        "method": cell.method,
        "run": cell.run,
        "paper_mean": cell.paper.mean,
        "paper_std": cell.paper.std,
        "verdict": INCOMPARABLE,
        "reason": cell.ours.reason,
    }
    if ours is None:
        return row
    row |= {"our_mean": ours.mean, "our_std": ours.std, "our_runs": cell.ours.runs}
    row |= cell.ours.forgetting
    row["pattern"] = pattern
    if cell.ours.reason == UNIT:
        return row
    apart = deviations_apart(cell.paper, ours)
    return row | {
        "joint_deviation": joint_deviation(cell.paper, ours),
        "deviations_apart": apart,
        "verdict": verdict(apart, pattern),
    }
