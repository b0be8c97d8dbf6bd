"""What the rows amount to: means and deviations over seeds, and the tables that show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pandas as pd

from benchmarks.removals import COLUMNS, KEYS, NUMBERS
from puma.errors import DataError

GROUP = [key for key in KEYS if key != "seed"]
PERCENT = ("original_accuracy", "accuracy", "removed_rate", "unseen_rate")
REFERENCE = "table1_accuracy_after_removal.csv"
# How the paper's Table 1 calls what is compared here.
PAPER_DATASETS = {
    "radial": "Radial",
    "rectangular": "Rectangular",
    "german_credit": "German",
    "breast_cancer": "Breast Cancer",
    "mnist": "MNIST",
}
PAPER_METHODS = {
    "puma": "PUMA",
    "puma_paper": "PUMA",
    "retrain": "Retrain Model",
    "sisa": "SISA",
    "amnesiac": "Amnesiac ML",
}
SHOWN = {
    "loss_auc": "loss AUC",
    "loss_auc_gap_to_retrain": "gap",
    "removed_rate": "removed %",
    "unseen_rate": "unseen %",
    "accuracy": "accuracy %",
    "original_accuracy": "original %",
    "seconds": "seconds",
    "retrain_seconds": "retrain's",
}
SHORT = ("loss_auc", "loss_auc_gap_to_retrain", "removed_rate", "accuracy", "seconds")
NOTHING = "–"


def read(path: Path) -> pd.DataFrame:
    """The rows of a CSV as ``python -m benchmarks removals`` writes it.

    Raises DataError when it is absent or has other columns.
    """
    try:
        frame = pd.read_csv(path, dtype={"note": str})
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no rows of a removal benchmark ({error}); run it") from error
    if list(frame.columns) != list(COLUMNS):
        raise DataError(f"{path}: expected the columns {list(COLUMNS)}; run the benchmark again")
    return frame.fillna({"note": ""})


def summarise(frame: pd.DataFrame) -> pd.DataFrame:
    """Per dataset, scenario, fraction and method: ``X_mean`` and ``X_sd`` of every number X.

    sd: over seeds with n − 1, blank for one seed. ``runs`` counts the seeds, ``answered`` those
    without a note; only these are in the means. The order of ``frame`` is kept.
    """
    groups = frame.groupby(GROUP, sort=False, dropna=False)
    parts = [groups.size().rename("runs"), groups["note"].agg(_answered).rename("answered")]
    for name in NUMBERS:
        parts += [
            groups[name].mean().rename(f"{name}_mean"),
            groups[name].std().rename(f"{name}_sd"),
        ]
    return pd.concat(parts, axis=1).reset_index()


def cluster_table(
    frame: pd.DataFrame,
    dataset: str,
    shown: Sequence[str] = tuple(SHOWN),
    *,
    deviations: bool = True,
) -> tuple[list[str], list[list[str]]]:
    """Heading and lines: every method after the removal of ``dataset``'s clusters."""
    summary = summarise(frame)
    chosen = summary[(summary["dataset"] == dataset) & (summary["scenario"] == "cluster")]
    lines = [
        [
            f"{row['method']}{_count(row)}",
            *(_cell(row, name, deviation=deviations) for name in shown),
        ]
        for _, row in chosen.iterrows()
    ]
    return ["method", *(SHOWN[name] for name in shown)], lines


def markdown(frame: pd.DataFrame, reference: Path) -> str:
    """All tables for docs/results.md: forgetting of clusters, and the paper's Table 1.

    ``reference``: the folder that holds the paper's numbers as CSV, ``paper/reference``.
    """
    datasets = list(dict.fromkeys(frame["dataset"]))
    parts = [
        "Mean ± standard deviation over seeds. `[k/n]`: only k of n seeds have a value; "
        f"`{NOTHING}`: none has, see the notes.",
        "## Removing one cluster of every class",
        "loss AUC: the loss attack, removed against unseen rows; the goal is the value of "
        "`retrain`, neither 0 nor 0.5. gap: mean absolute distance from that value, seed by seed. "
        "removed, unseen: share of these rows that the shadow attack calls members. accuracy: on "
        "the test rows; original: before the removal. Compare the seconds with retrain's in the "
        "same line.",
    ]
    for dataset in datasets:
        parts += [f"### {dataset}", lined_up(*cluster_table(frame, dataset))]
    parts += [
        "## Test accuracy after removing a share of the rows (the paper's Table 1)",
        "Per cent; the paper's mean in brackets. Doing nothing at all would score the original "
        "accuracy: this table says nothing about forgetting.",
    ]
    paper = _paper(reference)
    for scenario in ("random", "ordered"):
        table = _accuracy_table(frame, paper, scenario)
        if table[1]:
            parts += [f"### {scenario}", lined_up(*table)]
    notes = _notes(frame)
    if notes:
        parts += ["## Notes", "\n".join(notes)]
    return "\n\n".join(parts) + "\n"


def _accuracy_table(
    frame: pd.DataFrame, paper: pd.DataFrame, scenario: str
) -> tuple[list[str], list[list[str]]]:
    summary = summarise(frame)
    summary = summary[summary["scenario"] == scenario]
    shares = sorted(summary["fraction"].unique())
    heading = ["dataset", "method", "original", *(f"{100 * share:.0f} %" for share in shares)]
    lines = []
    for (dataset, method), rows in summary.groupby(["dataset", "method"], sort=False):
        by_share = {row["fraction"]: row for _, row in rows.iterrows()}
        told = _row_of(paper, scenario, dataset, method)
        answered = rows[rows["answered"] > 0]
        first = answered.iloc[0] if len(answered) else rows.iloc[0]
        cells = [_cell(first, "original_accuracy") + _beside(told, "original_mean")]
        for share in shares:
            name = f"removed{100 * share:.0f}_mean"
            row = by_share[share]
            cells.append(_cell(row, "accuracy") + _count(row) + _beside(told, name))
        lines.append([str(dataset), str(method), *cells])
    return heading, lines


def _paper(folder: Path) -> pd.DataFrame:
    path = folder / REFERENCE
    try:
        return pd.read_csv(path).set_index(["scenario", "dataset", "method"])
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: the paper's numbers cannot be read ({error})") from error


def _row_of(paper: pd.DataFrame, scenario: str, dataset: object, method: object) -> pd.Series:
    key = (scenario, PAPER_DATASETS.get(str(dataset)), PAPER_METHODS.get(str(method)))
    return paper.loc[key] if key in paper.index else pd.Series(dtype=float)  # type: ignore[index]


def _beside(told: pd.Series, name: str) -> str:
    return f" ({told[name]:.2f})" if name in told else ""


def _answered(notes: pd.Series) -> int:
    return int((notes == "").sum())


def _count(row: pd.Series) -> str:
    """How many seeds have an answer, where not all have."""
    return "" if row["answered"] == row["runs"] else f" [{row['answered']}/{row['runs']}]"


def _cell(row: pd.Series, name: str, *, deviation: bool = True) -> str:
    mean, spread = row[f"{name}_mean"], row[f"{name}_sd"]
    if math.isnan(mean):
        return NOTHING
    scale, digits = (100.0, 1) if name in PERCENT else (1.0, 2)
    text = f"{scale * mean:.{digits}f}"
    if deviation and not math.isnan(spread):
        text += f" ± {scale * spread:.{digits}f}"
    return text


def _notes(frame: pd.DataFrame) -> list[str]:
    """Which methods refused what, how often, and the first message of each class of error."""
    noted = frame[frame["note"] != ""]
    kinds = noted["note"].str.split(":").str[0].rename("kind")
    lines = []
    for key, rows in noted.groupby([*GROUP, kinds], sort=False, dropna=False):
        dataset, scenario, fraction, method, _ = cast(tuple[str, str, float, str, str], key)
        share = "" if math.isnan(fraction) else f" {100 * fraction:.0f} %"
        first = rows["note"].iloc[0]
        lines.append(f"- {dataset}, {scenario}{share}, {method} ({len(rows)} seeds): {first}")
    return lines


def lined_up(heading: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
