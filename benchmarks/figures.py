"""The figures of docs/results.md, from the rows that the benchmark commands wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.calibration_tables import read_reliability
from benchmarks.label_errors_tables import read_curves
from puma import plots
from puma.calibration import Reliability
from puma.project.files import written

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


def label_errors(frame: pd.DataFrame) -> Figure:
    """Share of the flipped labels found, a panel per dataset."""
    plain = frame[frame["weight_decay"] == 0].fillna({"criterion": ""})
    return plots.found_panels(
        {
            str(dataset): {
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
    """Reliability of the over-confident model before and after the main repairs."""
    variant = frame[frame["variant"] == VARIANT]
    models = {}
    for repair, title in REPAIRS.items():
        rows = variant[variant["repair"] == repair]
        edges = np.append(rows["low"].to_numpy(), rows["high"].iloc[-1])
        columns = (rows[name].to_numpy() for name in ("count", "confidence", "accuracy"))
        models[title] = Reliability(edges, *columns)
    return plots.reliability_diagram(models)


def main() -> None:
    """Draw debugging.png and calibration.png of docs/results/ from the CSV files beside them."""
    figures = {
        "debugging": label_errors(read_curves(RESULTS / "debugging_curves.csv")),
        "calibration": calibration(read_reliability(RESULTS / "calibration_reliability.csv")),
    }
    for name, figure in figures.items():
        with written(RESULTS / f"{name}.png") as stream:
            figure.savefig(stream, format="png", dpi=100)
