"""The tables of the calibration benchmark."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.calibration import CALIBRATION_COLUMNS, RELIABILITY_COLUMNS
from benchmarks.tables import NOTHING, read_rows, spread

# Column of the table: its heading, its factor, its decimals.
SHOWN = {
    "test_soft_ece": ("test soft ECE", 1, 4),
    "test_hard_ece": ("test hard ECE", 1, 4),
    "test_accuracy": ("test accuracy %", 100, 1),
    "test_loss": ("test loss", 1, 3),
    "train_soft_ece": ("train soft ECE", 1, 4),
}


def read_calibration(path: Path) -> pd.DataFrame:
    """The repairs that ``python -m benchmarks calibration`` wrote.

    Raises DataError when the file is absent or has other columns.
    """
    return read_rows(path, CALIBRATION_COLUMNS, "calibration")


def read_reliability(path: Path) -> pd.DataFrame:
    """The bins that ``calibration`` wrote; errors as of :func:`read_calibration`."""
    return read_rows(path, RELIABILITY_COLUMNS, "calibration")


def calibration_table(frame: pd.DataFrame, variant: str) -> tuple[list[str], list[list[str]]]:
    """Heading and lines: one ``variant`` of the model after every repair, mean ± std over seeds.

    The line ``none`` is the model before. ``better``: on how many seeds the test rows' soft error
    fell, and on how many it fell by half or more.
    """
    lines = []
    for repair, rows in frame[frame["variant"] == variant].groupby("repair", sort=False):
        answered = rows[rows["note"] == ""]
        before, after = (answered[f"test_soft_ece_{when}"] for when in ("before", "after"))
        better = f"{int((after < before).sum())}, {int((after <= before / 2).sum())}"
        cells = [
            spread(answered[f"{name}_after"] * factor, digits)
            for name, (_, factor, digits) in SHOWN.items()
        ]
        count = "" if len(answered) == len(rows) else f" [{len(answered)}/{len(rows)}]"
        lines.append(
            [
                f"{repair}{count}",
                *cells,
                NOTHING if repair == "none" else f"{better} of {len(answered)}",
                spread(answered["dose"], 2),
                spread(answered["seconds"], 2),
            ]
        )
    headings = [heading for heading, _, _ in SHOWN.values()]
    return ["repair", *headings, "better, halved", "dose", "seconds"], lines
