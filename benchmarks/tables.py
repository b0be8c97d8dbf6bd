"""What the rows amount to: means and deviations over seeds, and the tables that show them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.removals import COLUMNS, KEYS, NUMBERS
from puma.errors import DataError

GROUP = [key for key in KEYS if key != "seed"]
PERCENT = ("original_accuracy", "accuracy", "removed_rate", "unseen_rate")
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


def read_csv(
    path: Path, source: str, *, remedy: str = "run it", texts: Sequence[str] = ()
) -> pd.DataFrame:
    """The CSV that ``source`` wrote, ``texts`` being columns of text.

    Raises DataError, which names ``source`` and the ``remedy``, when it cannot be read.
    """
    try:
        return pd.read_csv(path, dtype=dict.fromkeys(texts, str))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no rows of {source} ({error}); {remedy}") from error


def read_rows(path: Path, columns: Sequence[str], command: str) -> pd.DataFrame:
    """The rows of a CSV as ``python -m benchmarks command`` writes it, blank texts as "".

    Raises DataError when it is absent or has other columns.
    """
    frame = read_csv(path, f"python -m benchmarks {command}")
    if list(frame.columns) != list(columns):
        raise DataError(
            f"{path}: expected the columns {list(columns)}; "
            f"run python -m benchmarks {command} again"
        )
    texts = [name for name in ("criterion", "note") if name in columns]
    return frame.astype(dict.fromkeys(texts, object)).fillna(dict.fromkeys(texts, ""))


def read(path: Path) -> pd.DataFrame:
    """The rows of a CSV as ``python -m benchmarks removals`` writes it.

    Raises DataError when it is absent or has other columns.
    """
    frame = read_csv(path, "a removal benchmark", texts=("note",))
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


def spread(values: pd.Series, digits: int) -> str:
    """Mean ± standard deviation, with n − 1; the mean alone of one value."""
    if values.isna().all():  # none at all, or what has no such number
        return NOTHING
    text = f"{values.mean():.{digits}f}"
    return f"{text} ± {values.std():.{digits}f}" if len(values) > 1 else text


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
