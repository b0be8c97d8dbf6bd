"""Figures of the data, of the training of a model, and of versions side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from puma.data.base import Dataset
from puma.plots.style import NEUTRAL

BINS = 20


def class_balance(dataset: Dataset) -> Figure:
    """Draw the share of every class in the training and in the test split.

    Of a regression, of every bin of the target, in the target's own unit.
    """
    if dataset.task.is_regression:
        return _target_balance(dataset)
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(dataset.classes))
    for shift, (name, part) in enumerate((("training", dataset.train), ("test", dataset.test))):
        share = np.bincount(part.labels.numpy(), minlength=len(dataset.classes)) / len(part)
        bars = axes.bar(places + 0.4 * shift, share, 0.38, label=f"{name} (n = {len(part)})")
        axes.bar_label(bars, fmt="%.3f")
    axes.set_xticks(places + 0.2, dataset.classes)
    axes.set_ylabel("share of rows")
    axes.margins(y=0.15)
    axes.legend()
    return figure


def _target_balance(dataset: Dataset) -> Figure:
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    task, parts = dataset.task, {"training": dataset.train, "test": dataset.test}
    values = {
        name: task.centre + task.scale * part.labels.double().numpy()
        for name, part in parts.items()
    }
    edges = np.histogram_bin_edges(np.concatenate(list(values.values())), BINS)
    for name, found in values.items():
        weights = np.full(len(found), 1 / len(found))
        label = f"{name} (n = {len(found)})"
        axes.hist(found, edges.tolist(), weights=weights, histtype="step", label=label)
    axes.set_xlabel("target")
    axes.set_ylabel("share of rows")
    axes.legend()
    return figure


def loss_curve(loss: Sequence[float]) -> Figure:
    """Draw the mean training loss (nats) of every epoch."""
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(loss) + 1), loss, color=NEUTRAL)
    axes.set_xlabel("epoch")
    axes.set_ylabel("mean training loss (nats)")
    axes.set_ylim(bottom=0)
    return figure


def comparison(labels: Sequence[str], metrics: Sequence[Mapping[str, float]]) -> Figure:
    """Draw accuracy (or R²), attack rate and runtime of the versions named ``labels``."""
    figure = Figure(figsize=(11, 1.6 + 0.5 * len(labels)), layout="constrained")
    left, middle, right = figure.subplots(1, 3, sharey=True)
    regression = any("test_r2" in row for row in metrics)
    shown = {"accuracy": "test", "retained_accuracy": "retained"}
    if regression:
        shown = {"test_r2": "test", "retained_r2": "retained"}
    _bars(left, labels, metrics, shown)
    left.set_title(f"{'R²' if regression else 'accuracy'}: higher is better")
    if not regression:  # R² may be negative
        left.set_xlim(0, 1.15)
    _bars(
        middle,
        labels,
        metrics,
        {"attack_rate": "removed rows", "attack_rate_unseen": "unseen rows"},
    )
    middle.set_title("taken for members: equal is better")
    middle.set_xlim(0, 1.15)
    _bars(right, labels, metrics, {"runtime_seconds": "seconds"}, fmt="%.2f s")
    right.set_title("runtime: lower is better")
    right.margins(x=0.2)
    left.invert_yaxis()  # the first version on top; the panels share the axis
    return figure


def _bars(
    axes: Axes,
    labels: Sequence[str],
    metrics: Sequence[Mapping[str, float]],
    names: Mapping[str, str],
    *,
    fmt: str = "%.2f",
) -> None:
    places = np.arange(len(labels))
    width = 0.8 / len(names)
    for shift, (name, legend) in enumerate(names.items()):
        lengths = [row.get(name, np.nan) for row in metrics]
        offset = (shift - (len(names) - 1) / 2) * width
        bars = axes.barh(places + offset, lengths, width * 0.95, label=legend)
        axes.bar_label(bars, fmt=fmt, fontsize=8, padding=2)
    axes.set_yticks(places, labels)
    if len(names) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, fontsize=8)
