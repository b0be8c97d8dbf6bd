"""Pictures. Every function returns a figure; none shows, saves, or names a subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from puma.data.base import Dataset

# Okabe-Ito, told apart by colour-blind readers too.
COLOURS = {"removed": "#D55E00", "unseen": "#0072B2", "retained": "#999999"}
NEUTRAL = "#56B4E9"


def class_balance(dataset: Dataset) -> Figure:
    """Share of every class in the training and in the test split."""
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


def loss_curve(loss: Sequence[float]) -> Figure:
    """Mean training loss per epoch."""
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(loss) + 1), loss, color=NEUTRAL)
    axes.set_xlabel("epoch")
    axes.set_ylabel("mean training loss (nats)")
    axes.set_ylim(bottom=0)
    return figure


def attack_quality(accuracy: float, auc: float) -> Figure:
    """How well the attack does where the truth is known, against a coin."""
    figure = Figure(figsize=(5, 2), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(["AUC", "balanced accuracy"], [auc, accuracy], color=NEUTRAL)
    axes.bar_label(bars, fmt="%.3f", padding=3)
    axes.axvline(0.5, color="black", linestyle="--", label="a coin")
    axes.set_xlim(0, 1)
    axes.set_xlabel("on a held-out shadow model")
    axes.legend()
    return figure


def loss_distributions(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], *, titles: tuple[str, str]
) -> Figure:
    """Per-example losses (nats) of each group, one panel a model, on one logarithmic axis."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    smallest = 1e-6
    values = np.concatenate([*before.values(), *after.values()]).clip(smallest)
    edges = np.geomspace(values.min(), values.max() * 1.001, 31)
    for axes, groups, title in zip(panels, (before, after), titles, strict=True):
        for name, losses in groups.items():
            axes.hist(
                losses.clip(smallest),
                bins=edges.tolist(),
                weights=np.full(len(losses), 1 / len(losses)),
                histtype="step",
                linewidth=1.8,
                color=COLOURS[name],
                label=f"{name} (n = {len(losses)})",
            )
        axes.set_xscale("log")
        axes.set_title(title)
        axes.set_xlabel("loss of an example (nats)")
    panels[0].set_ylabel("share of the group")
    panels[0].legend(loc="upper left")
    return figure


def loss_changes(changes: Mapping[str, np.ndarray]) -> Figure:
    """How much the removal raised each example's loss (nats), group by group."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    values = np.concatenate(list(changes.values()))
    edges = np.linspace(values.min(), values.max() + 1e-9, 41)
    for name, change in changes.items():
        axes.hist(
            change,
            bins=edges.tolist(),
            weights=np.full(len(change), 1 / len(change)),
            histtype="step",
            linewidth=1.8,
            color=COLOURS[name],
            label=f"{name} (mean {change.mean():+.3f})",
        )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xlabel("loss after − loss before (nats)")
    axes.set_ylabel("share of the group")
    axes.legend()
    return figure


def comparison(labels: Sequence[str], metrics: Sequence[Mapping[str, float]]) -> Figure:
    """Accuracy, attack and runtime of the versions ``labels``, one below the other."""
    figure = Figure(figsize=(11, 1.6 + 0.5 * len(labels)), layout="constrained")
    left, middle, right = figure.subplots(1, 3, sharey=True)
    _bars(left, labels, metrics, {"accuracy": "test", "retained_accuracy": "retained"})
    left.set_title("accuracy: higher is better")
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
