"""Confidence against accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from puma.plots.style import COLOURS, NEUTRAL

if TYPE_CHECKING:  # every stage imports this room, and would depend on what it imports
    from puma.calibration import Reliability


def reliability_diagram(models: Mapping[str, Reliability]) -> Figure:
    """Draw the accuracy and the number of predictions in every bin of confidence.

    There is one panel per model. A bar shows the accuracy, its mark the mean confidence: a bar
    that ends below its mark is over-confident.
    """
    figure = Figure(figsize=(4.5 * len(models), 4.8), layout="constrained")
    panels = figure.subplots(
        2, len(models), sharex=True, sharey="row", height_ratios=(3, 1), squeeze=False
    )
    for (upper, lower), (title, found) in zip(panels.T, models.items(), strict=True):
        widths = np.diff(found.edges)
        used = found.counts > 0
        place = {"align": "edge", "edgecolor": "white"}
        left = found.edges[:-1]
        upper.bar(
            left[used], found.accuracy[used], widths[used], color=NEUTRAL, label="accuracy", **place
        )
        middle = (left + widths / 2)[used]
        upper.plot(
            middle, found.confidence[used], "_", color=COLOURS["removed"], label="mean confidence"
        )
        upper.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=0.8, label="calibrated")
        upper.set_title(f"{title}\nECE {found.ece:.3f}, largest gap {found.mce:.3f}")
        lower.bar(left, found.counts, widths, color=COLOURS["retained"], **place)
        lower.set_xlabel("confidence")
    panels[0, 0].set_xlim(0, 1)
    panels[0, 0].set_ylim(0, 1)
    panels[0, 0].set_ylabel("share of correct predictions")
    panels[1, 0].set_ylabel("predictions")
    panels[0, 0].legend(loc="upper left")
    return figure
