"""Figures of an audit: attacks, losses and margins, with retrained models beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from puma.metrics import roc
from puma.plots.style import COLOURS, NEUTRAL

if TYPE_CHECKING:  # every stage imports this room, and would depend on what it imports
    from puma.audit import PlotData


def audit_figures(data: PlotData, titles: tuple[str, str]) -> dict[str, Figure]:
    """Draw the figures that are kept of every audit, by the names of their files.

    Args:
        data: What the audit found; ``report.plot_data``.
        titles: The names of the parent and of the audited version.
    """
    return {
        "margins": margins_against_retraining(data.margins, data.margin),
        "losses": loss_distributions(data.losses_before, data.losses_after, titles=titles),
        "roc": roc_curves(data.scores, data.retrained_scores),
    }


def attack_quality(accuracy: float, auc: float) -> Figure:
    """Draw the attack's accuracy on a held-out shadow model, beside that of guessing."""
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
    """Draw the losses (nats) of each group, one panel per version, on one logarithmic axis."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    smallest = 1e-6
    values = np.concatenate([*before.values(), *after.values()]).clip(smallest)
    edges = np.geomspace(values.min(), values.max() * 1.001, 31)
    for axes, groups, title in zip(panels, (before, after), titles, strict=True):
        for name, losses in groups.items():
            _shares(axes, name, losses.clip(smallest), edges, f"n = {len(losses)}")
        axes.set_xscale("log")
        axes.set_title(title)
        axes.set_xlabel("loss of an example (nats)")
    panels[0].set_ylabel("share of the group")
    panels[0].legend(loc="upper left")
    return figure


def roc_curves(
    scores: Mapping[str, Mapping[str, np.ndarray]],
    retrained: Sequence[Mapping[str, np.ndarray]],
) -> Figure:
    """Draw LiRA's ROC curves of removed against unseen rows, before and after the removal.

    The band is that of retrained models. A good removal lies in the band, not on the diagonal.

    Args:
        scores: "before" and "after" -> "removed" and "unseen" -> scores.
        retrained: The same two groups of each retrained model.
    """
    figure = Figure(figsize=(5, 4.4), layout="constrained")
    axes = figure.subplots()
    lowest = 1 / len(scores["after"]["unseen"])
    grid = np.geomspace(lowest / 2, 1, 200)
    curves = [np.interp(grid, *roc(each["removed"], each["unseen"])) for each in retrained]
    low, high = np.min(curves, 0), np.max(curves, 0)
    smallest = 0.5 / len(scores["after"]["removed"])  # where 0 is drawn
    axes.fill_between(
        grid, low.clip(smallest), high.clip(smallest), color="#DDDDDD", label="retrained models"
    )
    for name, colour in (("before", NEUTRAL), ("after", COLOURS["removed"])):
        false, true = roc(scores[name]["removed"], scores[name]["unseen"])
        axes.step(
            false.clip(lowest / 2), true.clip(smallest), where="post", color=colour, label=name
        )
    axes.plot(grid, grid.clip(smallest), color="black", linestyle="--", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(lowest / 2, 1)
    axes.set_ylim(smallest, 1.1)
    axes.set_xlabel("unseen rows taken for members")
    axes.set_ylabel("removed rows taken for members")
    axes.legend(loc="lower right")
    return figure


MARGIN = "logit margin of the label"


def margins_against_retraining(margins: np.ndarray, margin: str = MARGIN) -> Figure:
    """Draw each removed row's margin before and after, over the range of retrained models.

    Args:
        margins: (m, 3 + k), see :class:`puma.audit.PlotData`.
        margin: What they are, in words.
    """
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    before, after, middle = margins[:, :3].T
    places = np.arange(len(margins))
    axes.fill_between(
        places,
        margins[:, 3:].min(1),
        margins[:, 3:].max(1),
        color="#DDDDDD",
        step="mid" if len(margins) > 1 else None,
        label=f"{margins.shape[1] - 3} retrained models",
    )
    axes.plot(places, middle, color="#999999", linewidth=1, label="their mean")
    axes.plot(places, before, ".", color=NEUTRAL, label="before")
    axes.plot(places, after, ".", color=COLOURS["removed"], label="after")
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set_xlabel("removed rows, in the order of the retrained models' mean")
    axes.set_ylabel(margin)
    axes.legend(loc="upper left", ncols=4, fontsize=8)
    return figure


def remaining_influence(labels: Sequence[str], metrics: Sequence[Mapping[str, float]]) -> Figure:
    """Draw the remaining influence of the removed rows in each version, with its interval."""
    figure = Figure(figsize=(8, 1.2 + 0.4 * len(labels)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(labels))
    value, low, high = (
        np.array([row.get(f"remaining_influence{end}", np.nan) for row in metrics])
        for end in ("", "_low", "_high")
    )
    axes.errorbar(
        value, places, xerr=(value - low, high - value), fmt="o", color=COLOURS["removed"]
    )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.axvline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set_xlabel("remaining influence: 0 = like retraining, 1 = as if nothing was removed")
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.margins(y=0.2)
    return figure


def against_retraining(labels: Sequence[str], metrics: Sequence[Mapping[str, float]]) -> Figure:
    """Draw accuracy (or R²), attack AUC and remaining influence over the bands of retrained models.

    In the grey bands one more retrained model would lie: where the dots of a version lie in them,
    it cannot be told from retraining by these numbers. What a version does not have is not drawn.

    Args:
        labels: The names of the versions.
        metrics: Those that an audit gives, of each version.
    """
    kept = "r2" if any("test_r2" in row for row in metrics) else "accuracy"
    figure = Figure(figsize=(11, 1.8 + 0.35 * len(labels)), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, name, low, high, title in (
        (panels[0], "test_r2" if kept == "r2" else kept, f"retrained_{kept}_low",
         f"retrained_{kept}_high", "R² (test)" if kept == "r2" else "accuracy (test)"),
        (panels[1], "attack_auc", "attack_auc_retrained_low", "attack_auc_retrained_high",
         "attack by the loss: AUC"),
    ):  # fmt: skip
        _over_bands(
            axes,
            [row.get(name, np.nan) for row in metrics],
            [(row.get(low, np.nan), row.get(high, np.nan)) for row in metrics],
        )
        axes.set_xlabel(title)
    influence = [row.get("remaining_influence", np.nan) for row in metrics]
    chance = [row.get("remaining_influence_high", np.nan) for row in metrics] - np.array(influence)
    _over_bands(panels[2], influence, [(-each, each) for each in chance])
    panels[2].set_xlabel("remaining influence: 0 = as retrained")
    panels[0].set_yticks(np.arange(len(labels)), labels)
    panels[0].invert_yaxis()  # the first version on top; the panels share the axis
    panels[0].margins(y=0.2)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return figure


def _over_bands(axes: Axes, values: Sequence[float], bands: Sequence[tuple[float, float]]) -> None:
    """One dot per line, over the band of its own."""
    axes.use_sticky_edges = False  # a band ends where it ends, not where the axis does
    places = np.arange(len(values))
    low, high = np.array(bands).T
    axes.barh(places, high - low, 0.7, left=low, color="#DDDDDD", label="one more retrained model")
    axes.plot(values, places, "o", color=COLOURS["removed"], label="the version")


def mean_margins(with_rows: np.ndarray, without_rows: np.ndarray, margin: str = MARGIN) -> Figure:
    """Draw the mean margin of the removed rows, one dot per model, by whether it saw them.

    Args:
        with_rows: (k, m) margins of the models that were trained on them.
        without_rows: (k, m) margins of those that were not.
        margin: What they are, in words.
    """
    figure = Figure(figsize=(6, 1.8), layout="constrained")
    axes = figure.subplots()
    for place, (values, colour) in enumerate(
        ((with_rows, COLOURS["removed"]), (without_rows, COLOURS["unseen"]))
    ):
        means = values.mean(1)
        axes.plot(means, np.full(len(means), place), "o", color=colour, alpha=0.6)
    axes.set_yticks([0, 1], ["trained on them", "retrained without"])
    axes.set_xlabel(f"mean of the removed rows: {margin}")
    axes.margins(y=0.5)
    return figure


def predicted_margins(predicted: np.ndarray, measured: np.ndarray) -> Figure:
    """Draw margins that a pool predicted against those of the models, as counts.

    Args:
        predicted: (pairs,) in units of the margin: logits, or tenths of a target's deviation.
        measured: (pairs,) the same, of the models.
    """
    figure = Figure(figsize=(5.5, 4.5), layout="constrained")
    axes = figure.subplots()
    low, high = np.percentile(np.concatenate([predicted, measured]), [0.5, 99.5])
    cells = axes.hexbin(
        predicted, measured, gridsize=40, bins="log", mincnt=1, extent=(low, high, low, high)
    )
    axes.plot([low, high], [low, high], color="black", linewidth=0.5)
    error = np.sqrt(np.mean((predicted - measured) ** 2))
    axes.set_title(f"root mean square difference {error:.2f}")
    axes.set_xlabel("predicted margin of a row that was left out")
    axes.set_ylabel("margin of a model that left it out")
    figure.colorbar(cells, label="rows and models")
    return figure


def loss_changes(changes: Mapping[str, np.ndarray]) -> Figure:
    """Draw by how much the removal raised each example's loss (nats), group by group."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    values = np.concatenate(list(changes.values()))
    edges = np.linspace(values.min(), values.max() + 1e-9, 41)
    for name, change in changes.items():
        _shares(axes, name, change, edges, f"mean {change.mean():+.3f}")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xlabel("loss after − loss before (nats)")
    axes.set_ylabel("share of the group")
    axes.legend()
    return figure


def _shares(axes: Axes, name: str, values: np.ndarray, edges: np.ndarray, detail: str) -> None:
    """The share of a group's ``values`` in every bin, as one outline."""
    axes.hist(
        values,
        bins=edges.tolist(),
        weights=np.full(len(values), 1 / len(values)),
        histtype="step",
        linewidth=1.8,
        color=COLOURS[name],
        label=f"{name} ({detail})",
    )
