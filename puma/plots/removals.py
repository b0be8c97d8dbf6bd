"""Figures of one removal at work: what it weighed, and how far its steps went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from puma.plots.style import COLOURS, NEUTRAL

if TYPE_CHECKING:  # every stage imports this room, and would depend on what it imports
    from torch import Tensor

    from puma.removal.results import RowWeights

BINS = 41


def row_weights(found: RowWeights, removed: Tensor) -> Figure:
    """Draw how many rows have which ψ, and how many retained rows which λ. No row is drawn.

    Args:
        found: Of a removal, by training row.
        removed: (m,) the places of the removed rows.
    """
    scores, weights = found.scores.double().numpy(), found.weights.double().numpy()
    marked = np.zeros(len(scores), dtype=bool)
    marked[removed.numpy()] = True
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    groups = {"retained": scores[~marked], "removed": scores[marked]}
    _counts(left, groups)
    left.set_xlabel("ψ: leaving a row out changes C by ψ/n (nats)")
    left.set_ylabel("rows")
    left.legend()
    _counts(right, {"retained": weights[~marked]})
    right.set_xlabel("λ: above 0, a retained row counts more than before")
    return figure


def _counts(axes: Axes, groups: dict[str, np.ndarray]) -> None:
    """One outline per group, on a logarithmic axis: there are few removed rows among many."""
    edges = np.histogram_bin_edges(np.concatenate(list(groups.values())), BINS)
    for name, values in groups.items():
        axes.hist(
            values,
            bins=edges.tolist(),
            histtype="step",
            linewidth=1.8,
            color=COLOURS[name],
            label=f"{name} (n = {len(values)}, sum {values.sum():+.3g})",
        )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)  # below one row


def forgetting_against_drift(
    drifts: Sequence[float],
    reached: Sequence[float],
    *,
    budget: float | None = None,
    what: str = "mean distance from the targets (logits)",
) -> Figure:
    """Draw what each step reached against what it cost; the first point is the start.

    Args:
        drifts: Change of the retained rows' mean loss (nats) after each step, from 0 at the start.
        reached: What forgetting is measured by, at the same places.
        budget: The size that a drift must not exceed (nats); None where there is none.
        what: ``reached`` in words, with its unit.
    """
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.plot(drifts, reached, "o-", color=NEUTRAL, label="after each step")
    axes.plot(drifts[:1], reached[:1], "o", color="black", label="start")
    for step, place in enumerate(zip(drifts, reached, strict=True)):
        if step:
            axes.annotate(str(step), place, xytext=(5, 4), textcoords="offset points")
    if budget is not None:
        axes.axvspan(-budget, budget, color="#DDDDDD", zorder=0, label="within the budget")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("drift: change of the retained rows' mean loss (nats)")
    axes.set_ylabel(what)
    axes.legend(fontsize=8)
    return figure
