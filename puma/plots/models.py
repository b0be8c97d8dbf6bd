"""Figures of the data and of the training of a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
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
