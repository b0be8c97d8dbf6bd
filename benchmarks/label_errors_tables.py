"""The tables of the label-error benchmarks."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.label_errors import CURVE_COLUMNS, LABEL_ERROR_COLUMNS
from benchmarks.label_errors_runtime import RUNTIME_COLUMNS
from benchmarks.tables import NOTHING, read_rows


def read_label_errors(path: Path) -> pd.DataFrame:
    """The rankings that ``python -m benchmarks label-errors`` wrote; see :func:`read_rows`."""
    return read_rows(path, LABEL_ERROR_COLUMNS, "label-errors")


def read_curves(path: Path) -> pd.DataFrame:
    """The curves that ``python -m benchmarks label-errors`` wrote; see :func:`read_rows`."""
    return read_rows(path, CURVE_COLUMNS, "label-errors")


def read_runtime(path: Path) -> pd.DataFrame:
    """The seconds that ``label-errors-runtime`` wrote; see :func:`read_rows`."""
    return read_rows(path, RUNTIME_COLUMNS, "label-errors-runtime")


def label_errors_table(
    frame: pd.DataFrame, column: str = "found_at_10pct"
) -> tuple[list[str], list[list[str]]]:
    """Heading and lines: mean ± std over seeds of ``column``, methods down, datasets across.

    Two models stand under each other, so each line names the weight decay of its own. ``*``: on
    some seed the ranking warned that it may be noise or has not settled; ``[k/n]``: only k of n
    seeds have an answer.
    """
    datasets = list(dict.fromkeys(frame["dataset"]))
    lines = []
    for (method, criterion, decay), rows in frame.groupby(
        ["method", "criterion", "weight_decay"], sort=False
    ):
        cells = [_found(rows[rows["dataset"] == name], column) for name in datasets]
        lines.append([str(method), str(criterion), f"{decay:g}", *cells])
    return ["method", "criterion", "weight decay", *datasets], lines


def _found(rows: pd.DataFrame, column: str) -> str:
    values = rows[column].dropna()
    if values.empty:
        return NOTHING
    text = f"{values.mean():.2f}"
    if len(values) > 1:
        text += f" ± {values.std():.2f}"
    if (rows["warned"] == True).any():  # noqa: E712  blank where a ranking failed
        text += "*"
    return text if len(values) == len(rows) else f"{text} [{len(values)}/{len(rows)}]"


def runtime_table(frame: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heading and lines: seconds, and how many times ψ's.

    ``~``: extrapolated from a sample of the rows. ``>``: G-Shapley had not settled.
    """
    datasets = list(dict.fromkeys(frame["dataset"]))
    sizes = frame.groupby("dataset")["train_rows"].first()
    lines = []
    for method, rows in frame.groupby("method", sort=False):
        cells = []
        for name in datasets:
            (row,) = (found for _, found in rows[rows["dataset"] == name].iterrows())
            sign = "~" if row["extrapolated"] else ">" if str(row["settled"]) == "False" else ""
            cells.append(f"{sign}{row['seconds']:.3g} s = {row['ratio_to_psi']:.3g}×")
        lines.append([str(method), *cells])
    return ["method", *(f"{name} ({sizes[name]} rows)" for name in datasets)], lines
