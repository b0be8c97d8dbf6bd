"""The figures of docs/results.md and of the report on the paper, from the benchmarks' rows."""

from __future__ import annotations

from functools import partial
from operator import mul
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.calibration_tables import read_reliability
from benchmarks.label_errors_tables import read_curves
from benchmarks.paper_cells import REMOVALS, RESULTS, STEPS
from benchmarks.step_size import ADVISED, ONE, PRINTED, UNSTEPPED, read_step_sizes
from benchmarks.tables import read, read_csv
from puma import plots
from puma.calibration import Reliability
from puma.errors import DataError
from puma.plots.style import SERIES
from puma.project.files import written
from puma.project.workspace import Workspace

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
MNIST = RESULTS / "mnist.csv"
TIMED = "german_credit"
SHARE = 0.2  # of the rows, in the timed removals that are ordered and random
MEASURED = {"accuracy": "test accuracy, %", "removed_rate": "removed rows called members, %"}
BEFORE = {"accuracy": "original_accuracy", "removed_rate": "removed_rate_before"}


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


def run_times(removals: pd.DataFrame, mnist: pd.DataFrame) -> Figure:
    """Seconds of a removal by method and request: mean and deviation over seeds.

    Left a share of the rows of German Credit; right clusters of MNIST, which have one seed. Of
    German Credit no cluster: it comes first in its process, where everything takes longer.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = removals[(removals["dataset"] == TIMED) & removals["seconds"].notna()]
    rows = rows[rows["fraction"] == SHARE]
    if rows.empty:
        raise DataError(f"no removal from {TIMED} was timed; run python -m benchmarks removals")
    _bars(left, rows)
    left.set_title(f"German Credit, {SHARE:.0%} of the rows")
    _bars(right, mnist[mnist["method"].isin(["retrain", "puma"])])
    right.set_title("MNIST, DenseNet, one seed")
    return figure


def _bars(axes: Axes, rows: pd.DataFrame) -> None:
    """Horizontal bars, in the order of the rows, on a logarithmic axis."""
    methods, requests = (list(dict.fromkeys(rows[name])) for name in ("method", "scenario"))
    places, height = np.arange(len(methods)), 0.8 / len(requests)
    for shift, request in enumerate(requests):
        seconds = rows[rows["scenario"] == request].groupby("method")["seconds"]
        means, deviations = seconds.mean().reindex(methods), seconds.std().reindex(methods)
        axes.barh(
            places + shift * height,
            means,
            height,
            xerr=deviations,
            color=SERIES[shift],
            label=request.replace("_", " "),
        )
    axes.set_yticks(places + 0.4 - height / 2, methods)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("seconds of a removal")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=len(requests))


def step_sizes(frame: pd.DataFrame) -> Figure:
    """Accuracy and attack rate against η, with the doses that budgets allow on the same axis."""
    names = list(dict.fromkeys(frame["dataset"]))
    figure = Figure(figsize=(1 + 6 * len(names), 7), layout="constrained")
    panels = figure.subplots(len(MEASURED), len(names), sharex=True, squeeze=False)
    for column, name in enumerate(names):
        rows = frame[frame["dataset"] == name]
        for axes, (number, title) in zip(panels[:, column], MEASURED.items(), strict=True):
            _against_eta(axes, rows, number)
            axes.set_ylabel(title)
        top, bottom = panels[0, column], panels[-1, column]
        n = (rows["dose"] / rows["eta"]).dropna().iloc[0]
        above = top.secondary_xaxis("top", functions=(partial(mul, n), partial(mul, 1 / n)))
        above.set_xlabel(f"{name}: dose τ = η·n, n = {n:.0f}")
        bottom.set_xlabel("η, on sums over the removed rows")
        bottom.legend(fontsize="x-small")
    return figure


def _against_eta(axes: Axes, rows: pd.DataFrame, number: str) -> None:
    axes.set_xscale("log")
    axes.axvspan(*ADVISED, color="#DDDDDD", zorder=0, label="the paper's range of η")
    printed = 100 * rows[rows["method"] == PRINTED].groupby("eta")[number].agg(["mean", "std"])
    axes.errorbar(
        printed.index, printed["mean"], printed["std"], fmt="o-", capsize=2,
        color=SERIES[1], label="Algorithm 1 as printed",
    )  # fmt: skip
    stepped = rows[rows["method"] == ONE].groupby("budget")
    reached, etas = 100 * stepped[number].agg(["mean", "std"]), stepped["eta"].mean()
    axes.errorbar(
        etas, reached["mean"], reached["std"], fmt="s-", capsize=2,
        color=SERIES[0], label="our first-order step within a budget (nats)",
    )  # fmt: skip
    for budget, eta, mean in zip(etas.index, etas, reached["mean"], strict=True):
        axes.annotate(
            f"{budget:g}", (eta, mean), xytext=(4, 5), textcoords="offset points",
            fontsize="x-small", color=SERIES[0],
        )  # fmt: skip
    axes.axhline(100 * rows[BEFORE[number]].mean(), color="black", label="before the removal")
    for line, method in zip(("--", ":"), UNSTEPPED, strict=True):
        mean = 100 * rows[rows["method"] == method][number].mean()
        axes.axhline(mean, color="black", linestyle=line, label=method)


def read_mnist(path: Path) -> pd.DataFrame:
    """The rows that ``python -m benchmarks mnist-removal`` wrote.

    Raises DataError when the file is absent or is another.
    """
    frame = read_csv(path, "python -m benchmarks mnist-removal", remedy="check the file out")
    if missing := {"method", "scenario", "seconds"} - set(frame.columns):
        raise DataError(f"{path}: the columns {sorted(missing)} are missing; check the file out")
    return frame


def main(
    results: Annotated[
        Path, typer.Option(help="Folder of the CSV files, in the project, and of the pictures.")
    ] = RESULTS,
) -> None:
    """Draw debugging, calibration, run_time and step_size as PNG from the CSV files in RESULTS.

    The seconds on MNIST are those of docs/results/mnist.csv.
    """
    root = Workspace.find().root
    folder = root / results
    figures = {
        "debugging": label_errors(read_curves(folder / "debugging_curves.csv")),
        "calibration": calibration(read_reliability(folder / "calibration_reliability.csv")),
        "run_time": run_times(read(folder / REMOVALS), read_mnist(root / MNIST)),
        "step_size": step_sizes(read_step_sizes(folder / STEPS)),
    }
    for name, figure in figures.items():
        with written(folder / f"{name}.png") as stream:
            figure.savefig(stream, format="png", dpi=100)
