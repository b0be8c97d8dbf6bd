"""Figures of suspect labels.

Of real people's rows only counts are drawn. Single rows are drawn of the synthetic sets alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from puma.data.base import Dataset
from puma.errors import DataError, SettingsError
from puma.plots.style import COLOURS, NEUTRAL, SERIES

# The points of these are drawn from a seed and belong to nobody.
PLANE = ("radial", "rectangular", "spiral", "two_moons")
STYLES = ("-", "--", "-.")  # so that a line shows through another
FEW_BINS = 10
GRID = 200  # points along each side of a decision region


def found_curves(curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    """Draw the share of wrong labels found against the share of rows inspected.

    This is the paper's figure of corrupted samples discovered, one line per ranking. The dashed
    line is for rows inspected at random.

    Args:
        curves: Name -> what :func:`puma.label_errors.found_curve` returned.
    """
    return found_panels({"": curves})


def found_panels(panels: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]) -> Figure:
    """Draw :func:`found_curves` for several sets of the same names: title -> curves."""
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(1 + 4 * columns, 4 * lines), layout="constrained")
    places = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes in places.flat[len(panels) :]:
        axes.remove()
    for axes, (title, curves) in zip(places.flat, panels.items(), strict=False):
        for number, (name, (inspected, found)) in enumerate(curves.items()):
            colour, style = SERIES[number % len(SERIES)], STYLES[number % len(STYLES)]
            axes.plot(inspected, found, color=colour, linestyle=style, label=name)
        axes.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=0.8, label="at random")
        axes.set_title(title)
    first = places[0, 0]
    first.set_xlim(0, 1)
    first.set_ylim(0, 1.02)
    first.legend(loc="lower right", fontsize="small")
    figure.supxlabel("share of rows inspected, most suspect first")
    figure.supylabel("share of wrong labels found")
    return figure


def decision_regions(
    predict: Callable[[Tensor], Tensor], dataset: Dataset, marked: Mapping[str, Tensor]
) -> Figure:
    """Draw the class predicted at every point of the plane, the training rows, and marked rows.

    A row's colour is its own label.

    Args:
        predict: (n, 2) features -> (n, classes) logits.
        dataset: One of :data:`PLANE`.
        marked: Name -> int64 training rows; one panel each.

    Raises:
        DataError: The dataset is another, whose rows may be people's.
    """
    require_plane(dataset)
    figure = Figure(figsize=(0.4 + 4 * len(marked), 3.9), layout="constrained")
    panels = figure.subplots(1, len(marked), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, rows) in zip(panels, marked.items(), strict=True):
        draw_plane(axes, predict, dataset)
        axes.plot(
            *dataset.train.features[rows].numpy().T,
            "o",
            color="black",
            fillstyle="none",
        )
        axes.set_title(f"{name} (n = {len(rows)})")
    panels[0].legend(loc="upper right", fontsize=7)
    return figure


def require_plane(dataset: Dataset) -> None:
    """Raise DataError unless the rows of ``dataset`` are points that belong to nobody."""
    if dataset.name not in PLANE:
        raise DataError(
            f"decision regions show single rows, which only the synthetic sets "
            f"({', '.join(PLANE)}) may, got dataset {dataset.name!r}; draw suspicion_against_loss"
        )


def draw_plane(axes: Axes, predict: Callable[[Tensor], Tensor], dataset: Dataset) -> None:
    """Draw the class predicted at every point around the training rows, and these.

    A row's colour is its own label.
    """
    features, labels = dataset.train.features.numpy(), dataset.train.labels.numpy()
    low, high = features.min(0), features.max(0)
    margin = 0.05 * (high - low)
    x, y = (np.linspace(*ends, GRID) for ends in zip(low - margin, high + margin, strict=True))
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    with torch.no_grad():
        predicted = predict(torch.from_numpy(points).to(dataset.train.features.dtype)).argmax(1)
    regions = predicted.reshape(GRID, GRID).numpy()
    shades = SERIES[: len(dataset.classes)]
    borders = np.arange(len(dataset.classes) + 1) - 0.5
    axes.contourf(x, y, regions, levels=borders, colors=shades, alpha=0.2)
    for label, (title, colour) in enumerate(zip(dataset.classes, shades, strict=True)):
        own = features[labels == label]
        axes.plot(*own.T, ".", color=colour, markersize=4, label=f"labelled {title}")


def suspicion_against_loss(suspicion: Tensor, loss: Tensor, *, top: int, method: str) -> Figure:
    """Draw the distribution of a method's suspicion, and its ranking against that of the loss.

    Left, a line marks where the ``top`` most suspect rows begin. Right, rows are counted by their
    tenth in both rankings, the most suspect tenth first. If all are on the diagonal, the method
    ranks as the loss does. Only counts are drawn, no rows.

    Args:
        suspicion: (n,) by the method; higher is more suspect.
        loss: (n,), higher is more suspect.
        top: How many rows are to be inspected.
        method: The name of the method.

    Raises:
        SettingsError: ``top`` is not in 1, ..., n.
    """
    if not 1 <= top <= len(suspicion):
        raise SettingsError(f"top must be between 1 and the {len(suspicion)} rows, got {top}")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    values = suspicion.numpy()
    left.hist(values, bins=40, color=NEUTRAL)
    left.axvline(
        float(np.sort(values)[-top]),
        color=COLOURS["removed"],
        linestyle="--",
        label=f"the {top} most suspect",
    )
    left.set_yscale("log")
    left.set_xlabel(f"suspicion by {method}")
    left.set_ylabel("rows")
    left.legend()
    _tenths(right, _places(loss), _places(suspicion), method)
    return figure


def _places(scores: Tensor) -> np.ndarray:
    """(n,) place of each row as a share of all, most suspect first; never 0 or 1."""
    order = torch.argsort(-scores, stable=True)
    places = np.empty(len(scores))
    # The middle of a row's own n-th: its lower end may round across the border of a tenth.
    places[order.numpy()] = (np.arange(len(scores)) + 0.5) / len(scores)
    return places


def _tenths(axes: Axes, by_loss: np.ndarray, by_method: np.ndarray, method: str) -> None:
    edges = np.linspace(0, 1, FEW_BINS + 1)
    counts, _, _ = np.histogram2d(by_loss, by_method, bins=(edges, edges))
    counted = axes.pcolormesh(edges, edges, counts.T, cmap="Blues")
    axes.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=0.8)
    axes.set_xlabel("place by loss, most suspect first")
    axes.set_ylabel(f"place by {method}")
    axes.figure.colorbar(counted, ax=axes, label="rows")
