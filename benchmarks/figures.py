"""The figures of docs/results.md, from the rows that the benchmark commands wrote.

    python benchmarks/figures.py

Reads docs/results/debugging_curves.csv and calibration_reliability.csv and writes
docs/results/debugging.png and calibration.png.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks import read_curves, read_reliability
from puma import plots

RESULTS = Path(__file__).parents[1] / "docs" / "results"
DRAWN = {
    ("loss", ""): "loss",
    ("representer", ""): "representer points",
    ("self_influence", ""): "self-influence",
    ("psi", "validation_loss"): "psi, validation loss",
    ("psi", "training_loss"): "psi, training loss",
    ("ntk", "validation_loss"): "NTK",
    ("g_shapley", ""): "G-Shapley",
}
VARIANT = "logits_x3"
REPAIRS = {
    "none": "before",
    "patch_train": "the paper's patch, dose searched",
    "direct_held_out": "direct step",
    "temperature_held_out": "temperature",
}


@dataclass(frozen=True)
class Bins:
    """What plots.reliability_diagram draws."""

    edges: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def gaps(self) -> np.ndarray:
        return np.abs(self.confidence - self.accuracy)[self.counts > 0]

    @property
    def ece(self) -> float:
        used = self.counts[self.counts > 0]
        return float(self.gaps @ used / used.sum())

    @property
    def mce(self) -> float:
        return float(self.gaps.max())


def debugging(frame: pd.DataFrame) -> Figure:
    plain = frame[frame["weight_decay"] == 0].fillna({"criterion": ""})
    return plots.found_panels(
        {
            dataset: {
                DRAWN[key]: (
                    lines["share_inspected"].to_numpy(),
                    lines["share_found_mean"].to_numpy(),
                )
                for key, lines in rows.groupby(["method", "criterion"], sort=False)
                if key in DRAWN
            }
            for dataset, rows in plain.groupby("dataset", sort=False)
        }
    )


def calibration(frame: pd.DataFrame) -> Figure:
    variant = frame[frame["variant"] == VARIANT]
    models = {}
    for repair, title in REPAIRS.items():
        rows = variant[variant["repair"] == repair]
        edges = np.append(rows["low"].to_numpy(), rows["high"].iloc[-1])
        columns = (rows[name].to_numpy() for name in ("count", "confidence", "accuracy"))
        models[title] = Bins(edges, *columns)
    return plots.reliability_diagram(models)


if __name__ == "__main__":
    debugging(read_curves(RESULTS / "debugging_curves.csv")).savefig(
        RESULTS / "debugging.png", dpi=100
    )
    calibration(read_reliability(RESULTS / "calibration_reliability.csv")).savefig(
        RESULTS / "calibration.png", dpi=100
    )
