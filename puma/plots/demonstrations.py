"""Figures that show what a removal did to single rows, of data that belong to nobody.

The paper's own examples: points in the plane, images of digits, a model of two parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from puma.data.base import Dataset
from puma.errors import DataError
from puma.plots.debugging import draw_plane, require_plane
from puma.plots.style import COLOURS, SERIES

PUBLIC_IMAGES = ("digits", "mnist")  # published for this, and of nobody
PANEL = 3.2  # inches
SURFACES = ("Oranges", "Purples")  # of the loss and of the criterion, as in the paper
CONTOURS = 9


def regions_by_model(
    models: Mapping[str, Callable[[Tensor], Tensor]], dataset: Dataset, rows: Tensor
) -> Figure:
    """Draw the class that each model predicts at every point of the plane, three side by side.

    A row's colour is its own label, whatever is predicted there; the removed rows are crosses.

    Args:
        models: The title of a panel -> (n, 2) features -> (n, classes) logits.
        dataset: One of :data:`PLANE`.
        rows: (m,) int64 training rows that were removed.

    Raises:
        DataError: The dataset is another, whose rows may be people's.
    """
    require_plane(dataset)
    width, height = np.ptp(dataset.train.features.numpy(), axis=0)
    columns = min(3, len(models))
    lines = -(-len(models) // columns)
    size = (0.4 + PANEL * columns, 0.6 + (0.3 + PANEL * height / width) * lines)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat
    for axes in panels[len(models) :]:
        axes.remove()
    removed = dataset.train.subset(rows)
    for axes, (title, predict) in zip(panels, models.items(), strict=False):
        draw_plane(axes, predict, dataset)
        for label, colour in enumerate(SERIES[: len(dataset.classes)]):
            own = removed.features[removed.labels == label].numpy()
            axes.plot(*own.T, "x", color=colour, markersize=6)
        axes.set_title(title)
        axes.set_aspect("equal")
    handles, labels = panels[0].get_legend_handles_labels()
    handles.append(Line2D([], [], color="black", marker="x", linestyle=""))
    labels.append(f"removed (n = {len(rows)})")
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def image_grid(dataset: Dataset, rows: Tensor, answers: Mapping[str, Tensor]) -> Figure:
    """Draw training images, one line per model, with truth, answer and probability above each.

    Wrong answers are in the colour of removed rows.

    Args:
        dataset: One of :data:`PUBLIC_IMAGES`: (1, height, width) from 0 to 1.
        rows: (m,) int64 training rows.
        answers: The name of a model -> (m, classes) probabilities of these rows.

    Raises:
        DataError: The dataset is another, whose images may be people's.
    """
    if dataset.name not in PUBLIC_IMAGES:
        raise DataError(
            f"a grid of images shows single rows, which only {' and '.join(PUBLIC_IMAGES)} may, "
            f"got dataset {dataset.name!r}; draw loss_distributions"
        )
    shown = dataset.train.subset(rows)
    size = (1.1 + 0.95 * len(rows), 1.3 * len(answers))
    figure = Figure(figsize=size, layout="constrained")
    lines = figure.subplots(len(answers), len(rows), squeeze=False)
    for line, (name, probabilities) in zip(lines, answers.items(), strict=True):
        top, predicted = probabilities.max(1)
        for place, axes in enumerate(line):
            axes.imshow(shown.features[place, 0].numpy(), cmap="gray_r", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            truth = dataset.classes[int(shown.labels[place])]
            answer = dataset.classes[int(predicted[place])]
            axes.set_title(
                f"T {truth}  P {answer}\n{float(top[place]):.2f}",
                color="black" if answer == truth else COLOURS["removed"],
                fontweight="normal" if answer == truth else "bold",
                fontsize=9,
            )
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
    return figure


@dataclass(frozen=True, eq=False)
class Surface:
    """A function of two parameters on a grid.

    Attributes:
        first: (a,) values of the first parameter.
        second: (b,) of the second.
        values: (b, a).
    """

    first: np.ndarray
    second: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Moves:
    """What one panel of :func:`projections` shows: steps from one place in parameter space.

    Attributes:
        arrows: Name -> (k, 2) steps, which have one colour.
        points: Name -> (2,) further places.
    """

    arrows: Mapping[str, np.ndarray]
    points: Mapping[str, np.ndarray] = field(default_factory=dict)


def projections(
    surfaces: Mapping[str, Surface], start: np.ndarray, panels: Mapping[str, Moves]
) -> Figure:
    """Draw steps of a model with two parameters over the contours of what they may change.

    Args:
        surfaces: Up to two, by name; light lines are low.
        start: (2,) the parameters from which every arrow starts.
        panels: Title -> what is drawn there. One name has one colour in all panels.
    """
    names = list(dict.fromkeys(name for each in panels.values() for name in each.arrows))
    colours = dict(zip(names, ("#009E73", "#0072B2", "#D55E00", *SERIES), strict=False))
    figure = Figure(figsize=(0.4 + 4 * len(panels), 4.6), layout="constrained")
    places = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    marks: dict[str, Line2D] = {}
    for axes, (title, moves) in zip(places, panels.items(), strict=True):
        for shades, (name, surface) in zip(SURFACES, surfaces.items(), strict=False):
            marks[name] = _contours(axes, surface, name, shades)
        for name, steps in moves.arrows.items():
            marks[name] = _arrows(axes, start, np.atleast_2d(steps), name, colours[name])
        for name, place in moves.points.items():
            (marks[name],) = axes.plot(*place, "*", color="black", markersize=11, label=name)
        axes.plot(*start, "o", color="black", markersize=5)
        axes.set_title(title)
        axes.set_aspect("equal")
        axes.set_xlabel("first parameter")
    places[0].set_ylabel("second parameter")
    figure.legend(
        list(marks.values()), list(marks), loc="outside lower center", ncols=4, frameon=False
    )
    return figure


def _contours(axes: Axes, surface: Surface, name: str, shades: str) -> Line2D:
    low, high = float(surface.values.min()), float(surface.values.max())
    # Evenly spaced heights leave the bottom, where the arrows are, without a line.
    levels = low + (high - low) * np.linspace(0.05, 1, CONTOURS) ** 2
    axes.contour(
        surface.first,
        surface.second,
        surface.values,
        levels=levels,
        colors=colormaps[shades](np.linspace(0.3, 1, CONTOURS)),
        linewidths=1,
    )
    return Line2D([], [], color=colormaps[shades](0.7), label=name)


def _arrows(axes: Axes, start: np.ndarray, steps: np.ndarray, name: str, colour: str) -> Line2D:
    axes.quiver(
        *np.broadcast_to(start, steps.shape).T,
        *steps.T,
        angles="xy",
        scale_units="xy",
        scale=1,
        color=colour,
        width=0.006 if len(steps) > 1 else 0.011,
        zorder=3,
    )
    return Line2D([], [], color=colour, linewidth=3, label=name)
