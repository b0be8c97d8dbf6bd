"""What is drawn is what was given: read back from the figures' own artists."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import image
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection, QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from puma import plots
from puma.audit import PlotData
from puma.calibration import reliability
from puma.data import Dataset, Examples, load_dataset
from puma.data.task import Task
from puma.errors import DataError, SettingsError
from puma.removal.results import RowWeights

SMALLEST = 1e-6  # no logarithmic axis shows a loss of 0


def only(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def line(axes: Axes, label: str) -> np.ndarray:
    """(points, 2) of the line of that label."""
    (found,) = [each for each in axes.get_lines() if each.get_label() == label]
    return np.column_stack(found.get_data())


def band(axes: Axes) -> np.ndarray:
    """(corners, 2) of the one filled area."""
    (found,) = [each for each in axes.collections if isinstance(each, PolyCollection)]
    (path,) = found.get_paths()
    return np.asarray(path.vertices)


def steps(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    """The edges of the bins of that label's histogram, and the height of each."""
    (found,) = [each for each in axes.patches if str(each.get_label()).startswith(label)]
    corners: np.ndarray = found.get_xy()  # type: ignore[attr-defined]
    return corners[::2, 0], corners[1:-1:2, 1]


def shares(values: np.ndarray, edges: np.ndarray) -> list[float]:
    """How many of ``values`` lie in each bin, as a share of all."""
    inside = [sum(low <= value < high for value in values) for low, high in pairwise(edges)]
    return [count / len(values) for count in inside]


def random(n: int, seed: int, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, 1.0, n)


def test_class_balance_shows_the_share_of_every_class() -> None:
    parts = [
        Examples.of(torch.zeros(len(labels), 1), torch.tensor(labels))
        for labels in ([0, 0, 0, 2], [1, 1, 1, 1, 2])
    ]
    axes = only(plots.class_balance(Dataset("toy", *parts, ("a", "b", "c"))))
    found = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
    assert found == {
        "training (n = 4)": [0.75, 0.0, 0.25],
        "test (n = 5)": [0.0, 0.8, 0.2],
    }
    assert [text.get_text() for text in axes.get_xticklabels()] == ["a", "b", "c"]


def test_balance_of_a_regression_shows_the_target_in_its_own_unit() -> None:
    task = Task("regression", centre=100.0, scale=10.0)
    parts = [
        Examples.of(torch.zeros(len(labels), 1), torch.tensor(labels), task=task)
        for labels in ([0.0, 0.0, 0.0, 2.0], [-1.0, -1.0, 0.0, 0.0, 2.0])
    ]
    axes = only(plots.class_balance(Dataset("toy", *parts, ())))
    outlines = {patch.get_label(): patch.get_xy() for patch in axes.patches}  # type: ignore[attr-defined]
    assert set(outlines) == {"training (n = 4)", "test (n = 5)"}
    for name, shares in (("training (n = 4)", [0.75, 0.25]), ("test (n = 5)", [0.4, 0.4, 0.2])):
        corners = np.asarray(outlines[name])
        assert (corners[:, 0].min(), corners[:, 0].max()) == (90, 120)
        assert sorted({round(height, 6) for height in corners[:, 1]} - {0}) == sorted({*shares})


def test_loss_curve_shows_every_epoch() -> None:
    axes = only(plots.loss_curve([0.7, 0.4, 0.3]))
    (drawn,) = axes.get_lines()
    assert np.column_stack(drawn.get_data()).tolist() == [[1, 0.7], [2, 0.4], [3, 0.3]]


def test_attack_quality_shows_both_numbers_and_the_coin() -> None:
    axes = only(plots.attack_quality(accuracy=0.625, auc=0.75))
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert dict(zip(names, [bar.get_width() for bar in axes.patches], strict=True)) == {
        "AUC": 0.75,
        "balanced accuracy": 0.625,
    }
    assert set(line(axes, "a coin")[:, 0]) == {0.5}


def test_loss_distributions_show_the_share_of_each_group_in_every_bin() -> None:
    before = {"removed": np.array([0.0, 1e-3, 0.01, 2.0]), "unseen": np.exp(random(50, 0))}
    after = {"removed": np.array([0.5, 0.5, 0.5, 30.0]), "unseen": np.exp(random(50, 1))}
    figure = plots.loss_distributions(before, after, titles=("original", "puma"))
    assert [axes.get_title() for axes in figure.axes] == ["original", "puma"]
    for axes, groups in zip(figure.axes, (before, after), strict=True):
        assert axes.get_xscale() == "log"
        for name, losses in groups.items():
            edges, heights = steps(axes, f"{name} (n = {len(losses)})")
            assert heights.tolist() == pytest.approx(shares(losses.clip(SMALLEST), edges))
            assert sum(heights) == pytest.approx(1)  # nobody lies beside the axis


def test_loss_changes_show_the_share_of_each_group_in_every_bin() -> None:
    changes = {"removed": np.array([3.0, 0.0, 1.5]), "retained": random(40, 2)}
    axes = only(plots.loss_changes(changes))
    for name, change in changes.items():
        edges, heights = steps(axes, f"{name} (mean {change.mean():+.3f})")
        assert heights.tolist() == pytest.approx(shares(change, edges))
        assert sum(heights) == pytest.approx(1)


# --- the audit's ---

SCORES = {
    "before": {"removed": np.sort(random(30, 3, 1.0)), "unseen": np.sort(random(20, 4))},
    "after": {"removed": np.sort(random(30, 5)), "unseen": np.sort(random(20, 6))},
}
RETRAINED = [
    {"removed": np.sort(random(30, 10 + k)), "unseen": np.sort(random(20, 20 + k))}
    for k in range(4)
]


def rates(scores: dict[str, np.ndarray]) -> list[tuple[float, float]]:
    """Of every threshold, the shares of the unseen and of the removed rows at or above it."""
    thresholds = sorted({*scores["removed"], *scores["unseen"]}, reverse=True)
    return [
        (float((scores["unseen"] >= each).mean()), float((scores["removed"] >= each).mean()))
        for each in thresholds
    ]


def best(scores: dict[str, np.ndarray], level: float) -> float:
    """The largest share of removed rows found with at most ``level`` of the unseen ones."""
    return max([0.0, *(true for false, true in rates(scores) if false <= level)])


def test_roc_curves_run_through_every_threshold() -> None:
    axes = only(plots.roc_curves(SCORES, RETRAINED))
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    for name, scores in SCORES.items():
        drawn = line(axes, name)
        lowest, smallest = 0.5 / 20, 0.5 / 30  # where a rate of 0 is drawn
        expected = [(max(false, lowest), max(true, smallest)) for false, true in rates(scores)]
        assert drawn[0].tolist() == pytest.approx([lowest, smallest])
        assert drawn[1:] == pytest.approx(np.array(expected))
        (artist,) = [each for each in axes.get_lines() if each.get_label() == name]
        assert artist.get_drawstyle() == "steps-post"
    assert line(axes, "before")[:, 1].mean() > line(axes, "after")[:, 1].mean()


def test_scores_that_tie_give_one_threshold() -> None:
    tied = {"removed": np.array([0.0, 1.0, 1.0, 2.0]), "unseen": np.array([0.0, 0.0, 1.0, 1.0])}
    axes = only(plots.roc_curves({"before": tied, "after": tied}, [tied]))
    zero = 0.125  # on both axes: half of one of the four rows
    assert line(axes, "after").tolist() == [[zero, zero], [zero, 0.25], [0.5, 0.75], [1, 1]]


def test_the_roc_band_spans_the_retrained_models() -> None:
    axes = only(plots.roc_curves(SCORES, RETRAINED))
    corners = band(axes)
    levels = np.unique(corners[:, 0])
    # The bounds jump where a rate is reached: there, rounding decides on which side.
    levels = levels[np.abs(levels * 20 - np.round(levels * 20)) > 1e-6]
    assert len(levels) > 150
    for level in levels:
        found = [best(each, level) for each in RETRAINED]
        expected = [max(bound, 0.5 / 30) for bound in (min(found), max(found))]
        heights = corners[corners[:, 0] == level, 1]
        assert [heights.min(), heights.max()] == pytest.approx(expected), level


MARGINS = np.column_stack(
    [random(6, 7, 3.0), random(6, 8), *np.zeros((1, 6)), random(24, 9).reshape(6, 4)]
)
MARGINS[:, 2] = MARGINS[:, 3:].mean(1)


def test_margins_show_each_removed_row_over_the_range_of_the_retrained() -> None:
    axes = only(plots.margins_against_retraining(MARGINS))
    for place, label in enumerate(("before", "after", "their mean")):
        expected = np.column_stack([np.arange(6), MARGINS[:, place]])
        assert line(axes, label) == pytest.approx(expected)
    (area,) = [each for each in axes.collections if isinstance(each, PolyCollection)]
    assert area.get_label() == "4 retrained models"
    (path,) = area.get_paths()
    for place, retrained in enumerate(MARGINS[:, 3:]):
        at = place + (0.25 if place == 0 else -0.25)  # off the corner of the polygon
        low, high = retrained.min(), retrained.max()
        inside = [(at, low + 1e-6), (at, (low + high) / 2), (at, high - 1e-6)]
        assert path.contains_points(inside).all()
        assert not path.contains_points([(at, low - 1e-6), (at, high + 1e-6)]).any()


def test_margins_of_a_single_row_are_drawn_too() -> None:
    axes = only(plots.margins_against_retraining(MARGINS[:1]))
    heights = band(axes)[:, 1]
    assert (heights.min(), heights.max()) == (MARGINS[0, 3:].min(), MARGINS[0, 3:].max())
    assert line(axes, "after").tolist() == [[0, MARGINS[0, 1]]]


def test_the_figures_of_an_audit_show_its_data() -> None:
    losses = {"removed": np.array([0.1, 2.0]), "unseen": np.array([0.5])}
    data = PlotData(losses, losses, SCORES, RETRAINED, MARGINS, "error in metres")
    figures = plots.audit_figures(data, ("original", "puma"))
    assert only(figures["margins"]).get_ylabel() == "error in metres"
    assert set(figures) == {"margins", "losses", "roc"}
    assert line(only(figures["margins"]), "after")[:, 1].tolist() == MARGINS[:, 1].tolist()
    assert [axes.get_title() for axes in figures["losses"].axes] == ["original", "puma"]
    assert len(line(only(figures["roc"]), "before")) == len(rates(SCORES["before"])) + 1


def test_remaining_influence_shows_every_version_with_its_interval() -> None:
    keys = ("remaining_influence", "remaining_influence_low", "remaining_influence_high")
    metrics = [
        dict(zip(keys, found, strict=True)) for found in ((1.0, 0.7, 1.3), (-0.25, -0.5, 0.125))
    ]
    names = ["original", "never audited", "puma"]
    axes = only(plots.remaining_influence(names, [metrics[0], {"accuracy": 0.5}, metrics[1]]))
    (container,) = axes.containers
    points, _, (intervals,) = container.lines  # type: ignore[attr-defined]
    assert np.column_stack(points.get_data()) == pytest.approx(
        np.array([[1.0, 0], [np.nan, 1], [-0.25, 2]]), nan_ok=True
    )
    assert isinstance(intervals, LineCollection)
    ends = [segment[:, 0].tolist() for segment in intervals.get_segments() if len(segment)]
    known = [each for each in ends if not np.isnan(each).any()]
    assert np.array(known) == pytest.approx(np.array([[0.7, 1.3], [-0.5, 0.125]]))
    assert [text.get_text() for text in axes.get_yticklabels()] == names
    assert axes.yaxis_inverted()  # the first version on top


def test_mean_margins_show_one_dot_a_model() -> None:
    with_rows, without_rows = random(12, 11, 4.0).reshape(3, 4), random(20, 12).reshape(5, 4)
    axes = only(plots.mean_margins(with_rows, without_rows))
    upper, lower = (np.column_stack(each.get_data()) for each in axes.get_lines())
    assert upper == pytest.approx(np.array([[sum(row) / 4, 0] for row in with_rows]))
    assert lower == pytest.approx(np.array([[sum(row) / 4, 1] for row in without_rows]))
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["trained on them", "retrained without"]


AUDITED = [
    {"attack_auc": 0.7, "attack_auc_retrained_low": 0.25, "attack_auc_retrained_high": 0.5}
    | {"remaining_influence": 1.0, "remaining_influence_low": 0.5, "remaining_influence_high": 1.5},
    {"attack_auc": 0.4, "attack_auc_retrained_low": 0.25, "attack_auc_retrained_high": 0.5}
    | {
        "remaining_influence": 0.1,
        "remaining_influence_low": -0.4,
        "remaining_influence_high": 0.6,
    },
]


@pytest.mark.parametrize(
    ("name", "kept", "title"),
    [("accuracy", "accuracy", "accuracy (test)"), ("test_r2", "r2", "R² (test)")],
)
def test_versions_are_drawn_over_the_bands_of_retrained_models(
    name: str, kept: str, title: str
) -> None:
    band = {f"retrained_{kept}_low": 0.625, f"retrained_{kept}_high": 0.75}
    metrics: list[dict[str, float]] = [
        {**AUDITED[0], name: 0.8, **band}, {name: 0.5}, {**AUDITED[1], name: 0.7, **band}
    ]  # fmt: skip
    figure = plots.against_retraining(["original", "never audited", "puma"], metrics)
    expected = {
        title: ([0.8, 0.5, 0.7], [(0.625, 0.75)] * 2),
        "attack by the loss: AUC": ([0.7, np.nan, 0.4], [(0.25, 0.5)] * 2),
        # what chance does to a single retrained model is the same on both sides of 0
        "remaining influence: 0 = as retrained": ([1.0, np.nan, 0.1], [(-0.5, 0.5)] * 2),
    }
    assert [axes.get_xlabel() for axes in figure.axes] == [*expected]
    for axes, (dots, bands) in zip(figure.axes, expected.values(), strict=True):
        places = np.column_stack([dots, [0, 1, 2]])
        assert line(axes, "the version") == pytest.approx(places, nan_ok=True)
        (bars,) = axes.containers
        drawn = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
        assert [drawn[0], drawn[2]] == [pytest.approx(each) for each in bands]
        assert np.isnan(drawn[1]).all()
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [
        "original", "never audited", "puma"
    ]  # fmt: skip
    assert figure.axes[0].yaxis_inverted()  # the first version on top


def calibrated(confidence: list[float], right: list[bool]) -> Any:
    top = torch.tensor(confidence)
    labels = torch.tensor([0 if each else 1 for each in right])
    return reliability(torch.stack([top, 1 - top], 1), labels, bins=4)


def test_reliability_shows_accuracy_confidence_and_count_of_every_bin() -> None:
    before = calibrated([0.6, 0.7, 0.875, 1.0, 1.0], [True, False, True, True, False])
    after = calibrated([0.5625, 0.625], [True, True])
    figure = plots.reliability_diagram({"original": before, "patched": after})
    upper, lower = figure.axes[:2], figure.axes[2:]
    assert [axes.get_title() for axes in upper] == [
        f"original\nECE {0.4 * 0.15 + 0.6 * (2.875 / 3 - 2 / 3):.3f}, largest gap 0.292",
        "patched\nECE 0.406, largest gap 0.406",
    ]
    expected: list[dict[str, Any]] = [
        {
            "bars": [(0.5, 0.25, 0.5), (0.75, 0.25, 2 / 3)],
            "marks": [[0.625, 0.65], [0.875, 2.875 / 3]],
            "counts": [0, 0, 2, 3],
        },
        {"bars": [(0.5, 0.25, 1.0)], "marks": [[0.625, 0.59375]], "counts": [0, 0, 2, 0]},
    ]
    for above, below, numbers in zip(upper, lower, expected, strict=True):
        (bars,) = above.containers
        drawn = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in bars]
        assert drawn == [pytest.approx(bar) for bar in numbers["bars"]]
        assert line(above, "mean confidence") == pytest.approx(np.array(numbers["marks"]))
        assert line(above, "calibrated").tolist() == [[0, 0], [1, 1]]
        assert [bar.get_height() for bar in below.patches] == numbers["counts"]
        assert below.get_xlabel() == "confidence"


# --- a removal at work ---


def test_psi_and_lambda_are_counted_and_no_removed_row_has_a_lambda() -> None:
    scores = torch.tensor([-2.0, -1.0, 0.0, 0.0, 0.5, 3.0])
    found = RowWeights(scores, torch.tensor([0.25, 0.0, 0.0, -0.5, 0.0, 0.0]))
    left, right = plots.row_weights(found, torch.tensor([1, 5])).axes
    for axes, name, values in (
        (left, "retained", [-2.0, 0.0, 0.0, 0.5]),
        (left, "removed", [-1.0, 3.0]),
        (right, "retained", [0.25, 0.0, -0.5, 0.0]),
    ):
        edges, heights = steps(axes, f"{name} (n = {len(values)}, sum {sum(values):+.3g})")
        assert heights.tolist() == np.histogram(values, edges)[0].tolist()
        assert heights.sum() == len(values)  # nobody lies beside the axis
    assert len(right.patches) == 1


def test_forgetting_is_drawn_against_drift_from_the_start_on() -> None:
    drifts, reached = [0.0, 0.008, 0.003], [5.0, 2.0, 0.4]
    axes = only(plots.forgetting_against_drift(drifts, reached, budget=0.01, what="logits"))
    assert line(axes, "after each step").tolist() == [[0.0, 5.0], [0.008, 2.0], [0.003, 0.4]]
    assert line(axes, "start").tolist() == [[0.0, 5.0]]
    assert [text.get_text() for text in axes.texts] == ["1", "2"]
    (budget,) = [each for each in axes.patches if each.get_label() == "within the budget"]
    assert (budget.get_x(), budget.get_x() + budget.get_width()) == (-0.01, 0.01)  # type: ignore[attr-defined]
    without = only(plots.forgetting_against_drift(drifts, reached))
    assert not without.patches


# --- suspect labels ---


def test_found_curves_are_drawn_as_they_are_beside_chance() -> None:
    curves = {
        "loss": (np.array([0, 0.5, 1]), np.array([0, 1.0, 1.0])),
        "psi": (np.array([0, 0.5, 1]), np.array([0, 0.25, 1.0])),
    }
    axes = only(plots.found_curves(curves))
    for name, curve in curves.items():
        assert line(axes, name) == pytest.approx(np.column_stack(curve))
    assert line(axes, "at random").tolist() == [[0, 0], [1, 1]]
    colours = {each.get_color() for each in axes.get_lines()}
    assert len(colours) == 3


def test_found_panels_show_each_set_under_its_title() -> None:
    steep, slow = (
        (np.array([0.0, 0.5, 1.0]), np.array([0.0, share, 1.0])) for share in (1.0, 0.25)
    )
    sets = {"moons": {"loss": steep}, "radial": {"loss": slow}, "a": {"loss": steep}}
    figure = plots.found_panels(sets | {"b": {"loss": slow}})
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["moons", "radial", "a", "b"]
    for axes, curve in zip(figure.axes, (steep, slow, steep, slow), strict=True):
        assert line(axes, "loss") == pytest.approx(np.column_stack(curve))


def plane(name: str = "radial") -> Dataset:
    """Five rows of two classes, the last of which has the label of the other side."""
    features = torch.tensor([[-2.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [2.0, 0.0], [3.0, -1.0]])
    train = Examples.of(features, torch.tensor([0, 0, 1, 1, 0]))
    return Dataset(name, train, train, ("left", "right"))


def test_decision_regions_show_the_answers_the_rows_and_the_marks() -> None:
    border = 0.5

    def predict(points: torch.Tensor) -> torch.Tensor:
        return torch.stack([border - points[:, 0], points[:, 0] - border], 1)

    data = plane()
    marked = {"wrong": torch.tensor([4]), "suspect": torch.tensor([3, 1])}
    figure = plots.decision_regions(predict, data, marked)
    assert [axes.get_title() for axes in figure.axes] == ["wrong (n = 1)", "suspect (n = 2)"]
    for axes, rows in zip(figure.axes, marked.values(), strict=True):
        lines = {each.get_label(): np.column_stack(each.get_data()) for each in axes.get_lines()}
        for label, name in enumerate(data.classes):
            own = data.train.features[data.train.labels == label].numpy()
            assert lines[f"labelled {name}"].tolist() == own.tolist()
        (marks,) = [each for each in axes.get_lines() if each.get_marker() == "o"]
        assert np.column_stack(marks.get_data()).tolist() == data.train.features[rows].tolist()
        (regions,) = [each for each in axes.collections if hasattr(each, "get_paths")]
        left, right = regions.get_paths()
        width = 0.05  # of a few points of the grid
        for height in (-1.0, 0.0, 1.0):
            assert left.contains_point((border - width, height))
            assert right.contains_point((border + width, height))
            assert not left.contains_point((border + width, height))
    colours = {
        each.get_label(): each.get_color()
        for each in figure.axes[0].get_lines()
        if str(each.get_label()).startswith("labelled")
    }
    shades = regions.get_facecolor()[:, :3]
    for (_, colour), shade in zip(colours.items(), shades, strict=True):
        assert shade == pytest.approx(to_rgb(colour))


def test_single_rows_are_drawn_of_synthetic_sets_alone() -> None:
    for name in plots.PLANE:
        assert load_dataset(name).train.features.shape[1:] == (2,)
    with pytest.raises(DataError, match=r"single rows, which only the synthetic sets .*'people'"):
        plots.decision_regions(lambda points: points, plane("people"), {"a": torch.tensor([0])})


def test_suspicion_is_counted_against_the_loss() -> None:
    n = 20
    loss = torch.arange(n, 0, -1, dtype=torch.float64)  # the first row first
    suspicion = torch.cat([loss[10:], loss[:10]])  # the last ten rows first
    figure = plots.suspicion_against_loss(suspicion, loss, top=3, method="psi")
    left, right, _ = figure.axes
    assert sum(bar.get_height() for bar in left.patches) == n
    assert line(left, "the 3 most suspect")[:, 0].tolist() == [18, 18]
    (mesh,) = [each for each in right.collections if isinstance(each, QuadMesh)]
    counts = np.asarray(mesh.get_array()).reshape(10, 10)  # (place by psi, place by loss)
    expected = np.zeros((10, 10))
    for tenth in range(10):
        expected[(tenth + 5) % 10, tenth] = 2
    assert counts.tolist() == expected.tolist()
    assert right.get_ylabel() == "place by psi"


@pytest.mark.parametrize("top", [0, 5])
def test_more_rows_than_there_are_cannot_be_suspect(top: int) -> None:
    numbers = torch.arange(4.0)
    with pytest.raises(SettingsError, match=f"between 1 and the 4 rows, got {top}"):
        plots.suspicion_against_loss(numbers, numbers, top=top, method="psi")


# --- pictures on disk ---


def test_saved_pictures_are_whole_and_replace_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "plots" / "toy" / "puma"
    first = {"roc": plots.loss_curve([0.7, 0.4]), "stale": plots.loss_curve([0.3])}
    plots.save(first, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["roc.png", "stale.png"]
    before = (folder / "roc.png").read_bytes()
    (folder / "notes.txt").write_text("not a picture")

    plots.save({"roc": plots.loss_curve([0.9, 0.1]), "margins": plots.loss_curve([0.5])}, folder)

    names = sorted(path.name for path in folder.iterdir())
    assert names == ["margins.png", "notes.txt", "roc.png"]
    assert (folder / "roc.png").read_bytes() != before
    for name in ("roc", "margins"):
        assert image.imread(folder / f"{name}.png").shape == (3 * 120, 5 * 120, 4)


FIGURES: dict[str, Any] = {
    "margins": lambda: plots.margins_against_retraining(MARGINS),
    "roc": lambda: plots.roc_curves(SCORES, RETRAINED),
    "losses": lambda: plots.loss_distributions(
        {"removed": np.array([0.1, 0.2])}, {"removed": np.array([0.3, 3.0])}, titles=("a", "b")
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_picture_is_the_same_file(tmp_path: Path, name: str) -> None:
    for place in ("first", "second"):
        plots.save({name: FIGURES[name]()}, tmp_path / place)
    first, second = (
        (tmp_path / place / f"{name}.png").read_bytes() for place in ("first", "second")
    )
    assert first == second
    # PNG's chunks of text and of time would tell when and by what it was drawn.
    for chunk in (b"tEXt", b"zTXt", b"iTXt", b"tIME"):
        assert chunk not in first


def test_a_picture_that_cannot_be_drawn_is_not_half_there(tmp_path: Path) -> None:
    figure = plots.loss_curve([0.5])

    def fail(stream: Any, **_: Any) -> None:
        stream.write(b"half of it")
        raise OSError("disk full")

    plots.save({"roc": plots.loss_curve([0.7])}, tmp_path)
    before = (tmp_path / "roc.png").read_bytes()
    figure.savefig = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="disk full"):
        plots.save({"roc": figure}, tmp_path)
    assert (tmp_path / "roc.png").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["roc.png"]
