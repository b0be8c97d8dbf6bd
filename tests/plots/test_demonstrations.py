"""What the figures of single rows draw, and whose rows they refuse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.quiver import Quiver
from torch import Tensor

from puma import plots
from puma.data import Dataset, Examples, load_dataset
from puma.errors import DataError


def plane(name: str = "radial") -> Dataset:
    """Four points of two classes, from left to right."""
    features = torch.tensor([[-2.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [2.0, 0.0]])
    train = Examples.of(features, torch.tensor([0, 0, 1, 1]))
    return Dataset(name, train, train, ("left", "right"))


def beyond(border: float) -> Callable[[Tensor], Tensor]:
    """The model that answers "right" to the right of ``border``."""
    return lambda points: torch.stack([border - points[:, 0], points[:, 0] - border], 1)


def test_regions_of_each_model_lie_where_it_answers_and_crosses_where_rows_were_removed() -> None:
    borders = {"before": 0.5, "after": -1.5}
    rows = torch.tensor([3, 1])
    figure = plots.regions_by_model(
        {title: beyond(border) for title, border in borders.items()}, plane(), rows
    )
    assert [axes.get_title() for axes in figure.axes] == ["before", "after"]
    width = 0.05  # of a few points of the grid
    for axes, border in zip(figure.axes, borders.values(), strict=True):
        (regions,) = [each for each in axes.collections if hasattr(each, "get_paths")]
        left, right = regions.get_paths()
        for height in (-0.9, 0.0, 0.9):
            assert left.contains_point((border - width, height))
            assert right.contains_point((border + width, height))
            assert not left.contains_point((border + width, height))
        crosses = [each for each in axes.get_lines() if each.get_marker() == "x"]
        assert [np.column_stack(each.get_data()).tolist() for each in crosses] == [
            [[-1.0, -1.0]],
            [[2.0, 0.0]],
        ]
        dots = [each for each in axes.get_lines() if each.get_marker() == "."]
        assert [each.get_color() for each in crosses] == [each.get_color() for each in dots]
    (legend,) = figure.legends
    texts = [each.get_text() for each in legend.get_texts()]
    assert texts == ["labelled left", "labelled right", "removed (n = 2)"]


def test_more_than_three_models_are_drawn_in_lines_of_three() -> None:
    models = {str(number): beyond(number / 4) for number in range(4)}
    figure = plots.regions_by_model(models, plane(), torch.tensor([0]))
    assert [axes.get_title() for axes in figure.axes] == ["0", "1", "2", "3"]
    heights = [round(axes.get_subplotspec().get_position(figure).y0, 6) for axes in figure.axes]
    assert heights[0] == heights[1] == heights[2] > heights[3]


def test_regions_are_drawn_of_synthetic_sets_alone() -> None:
    with pytest.raises(DataError, match=r"only the synthetic sets .*'people'"):
        plots.regions_by_model({"before": beyond(0.0)}, plane("people"), torch.tensor([0]))


# --- images ---


def images(name: str = "digits") -> Dataset:
    """Three images of one bright pixel each, at another place in each of them."""
    features = torch.eye(3).reshape(3, 1, 1, 3)
    train = Examples.of(features, torch.tensor([2, 0, 1]))
    return Dataset(name, train, train, ("4", "7", "9"))


def title_colour(axes: Axes) -> str:
    return to_hex(axes.title.get_color())


def test_an_image_has_its_truth_and_each_models_answer_and_probability_above_it() -> None:
    answers = {
        "before": torch.tensor([[0.9, 0.06, 0.04], [0.1, 0.2, 0.7]]),
        "after": torch.tensor([[0.3, 0.3, 0.4], [0.5, 0.26, 0.24]]),
    }
    figure = plots.image_grid(images(), torch.tensor([1, 0]), answers)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["T 4  P 4\n0.90", "T 9  P 9\n0.70", "T 4  P 9\n0.40", "T 9  P 4\n0.50"]
    wrong = plots.COLOURS["removed"].lower()
    assert [title_colour(axes) for axes in figure.axes] == ["#000000", "#000000", wrong, wrong]
    assert [axes.get_ylabel() for axes in figure.axes] == ["before", "", "after", ""]
    for axes, place in zip(figure.axes, (1, 0, 1, 0), strict=True):
        (image,) = axes.get_images()
        shown = np.asarray(image.get_array())
        assert shown.tolist() == [[float(place == column) for column in range(3)]]
        assert image.get_clim() == (0, 1)


def test_images_are_drawn_of_public_digits_alone() -> None:
    for name in plots.PUBLIC_IMAGES:
        plots.image_grid(images(name), torch.tensor([0]), {"before": torch.eye(3)[:1]})
    with pytest.raises(DataError, match="only digits and mnist may, got dataset 'faces'"):
        plots.image_grid(images("faces"), torch.tensor([0]), {"before": torch.eye(3)[:1]})
    assert load_dataset("digits").train.features.shape[1:] == (1, 8, 8)


# --- two parameters ---


def bowl(first: float, second: float) -> plots.Surface:
    """Half of the squared distance from a place, on a grid of two sizes."""
    x, y = np.linspace(-1, 3, 41), np.linspace(-2, 2, 61)
    return plots.Surface(x, y, ((x - first) ** 2 + (y[:, None] - second) ** 2) / 2)


def test_arrows_start_at_the_model_and_contours_are_round_their_lowest_places() -> None:
    start, steps = np.array([1.0, 0.5]), np.array([[0.5, 0.0], [0.0, -0.25]])
    figure = plots.projections(
        {"loss": bowl(1, 0.5), "criterion": bowl(0, -1)},
        start,
        {
            "each row": plots.Moves({"a row": steps}),
            "sum": plots.Moves({"a row": steps[:1], "all": steps.sum(0)}, {"goal": start + 1}),
        },
    )
    assert [axes.get_title() for axes in figure.axes] == ["each row", "sum"]
    drawn = [
        [each for each in axes.collections if isinstance(each, Quiver)] for axes in figure.axes
    ]
    assert [len(each) for each in drawn] == [1, 2]
    for found, arrows in zip(drawn[0] + drawn[1], (steps, steps[:1], steps.sum(0)), strict=True):
        assert np.column_stack([found.U, found.V]).tolist() == np.atleast_2d(arrows).tolist()
        assert {tuple(each) for each in found.XY.tolist()} == {(1.0, 0.5)}
        assert (found.angles, found.scale_units, found.scale) == ("xy", "xy", 1)
    colours = [to_hex(each.get_facecolor()[0]) for each in drawn[0] + drawn[1]]
    assert colours[0] == colours[1] != colours[2]
    for axes in figure.axes:
        assert axes.get_aspect() == 1  # so that an angle in the picture is one of the parameters
        sets = [each for each in axes.collections if not isinstance(each, Quiver)]
        for contours, centre in zip(sets, ((1, 0.5), (0, -1)), strict=True):
            lowest = contours.get_paths()[1].vertices
            assert lowest.mean(0) == pytest.approx(centre, abs=0.1)
    (star,) = [each for each in figure.axes[1].get_lines() if each.get_marker() == "*"]
    assert np.column_stack(star.get_data()).tolist() == [[2.0, 1.5]]
    (legend,) = figure.legends
    texts = [each.get_text() for each in legend.get_texts()]
    assert texts == ["loss", "criterion", "a row", "all", "goal"]
