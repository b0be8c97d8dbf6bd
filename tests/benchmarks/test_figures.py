"""The figures draw the numbers of the rows, worked out here again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.figures import read_mnist, run_times, step_sizes
from benchmarks.step_size import STEP_COLUMNS
from benchmarks.tables import read
from puma.errors import DataError

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_bars_are_means_of_seconds_over_seeds() -> None:
    removals, mnist = read(RESULTS / "removal.csv"), read_mnist(RESULTS / "mnist.csv")
    left, right = run_times(removals, mnist).axes
    rows = removals[(removals["dataset"] == "german_credit") & (removals["fraction"] == 0.2)]
    methods = [label.get_text() for label in left.get_yticklabels()]
    assert set(methods) == set(rows["method"])
    drawn = {bars.get_label(): bars for bars in left.containers if hasattr(bars, "patches")}
    for scenario in ("ordered", "random"):
        for method, bar in zip(methods, drawn[scenario].patches, strict=True):
            mine = rows[(rows["scenario"] == scenario) & (rows["method"] == method)]
            assert bar.get_width() == pytest.approx(np.mean(mine["seconds"]))
    (retrained, *_) = mnist.loc[mnist["method"] == "retrain", "seconds"]
    assert retrained in [bar.get_width() for bar in right.patches]


def test_steps_are_drawn_at_their_eta_and_budgets_at_theirs() -> None:
    def row(method: str, seed: int, **numbers: Any) -> dict[str, Any]:
        rest = {"dataset": "german_credit", "original_accuracy": 0.74, "removed_rate_before": 1.0}
        return {**dict.fromkeys(STEP_COLUMNS), **rest, "method": method, "seed": seed, **numbers}

    frame = pd.DataFrame(
        [
            row("puma_paper", 0, eta=0.1, dose=75.0, accuracy=0.6, removed_rate=0.2),
            row("puma_paper", 1, eta=0.1, dose=75.0, accuracy=0.7, removed_rate=0.4),
            row(
                "puma_one_step", 0, eta=0.01, budget=0.03, dose=7.5, accuracy=0.7, removed_rate=0.9
            ),
            row(
                "puma_one_step", 1, eta=0.03, budget=0.03, dose=22.5, accuracy=0.7, removed_rate=0.7
            ),
            row("retrain", 0, accuracy=0.75, removed_rate=0.4),
            row("puma", 0, accuracy=0.73, removed_rate=0.5),
        ]
    )
    accuracy, rate = step_sizes(frame).axes
    for axes, printed, stepped in ((accuracy, 65, 70), (rate, 30, 80)):
        (first, *_), (second, *_) = (bars.lines for bars in axes.containers)
        assert first.get_xydata() == pytest.approx(np.array([[0.1, printed]]))
        assert second.get_xydata() == pytest.approx(np.array([[0.02, stepped]]))
        assert [text.get_text() for text in axes.texts] == ["0.03"]
    levels = {line.get_label(): line.get_ydata()[0] for line in rate.lines}
    assert levels["before the removal"] == pytest.approx(100)
    assert levels["retrain"] == pytest.approx(40)
    assert levels["puma"] == pytest.approx(50)
    (above,) = accuracy.child_axes
    assert "n = 750" in above.get_xlabel()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mnist-removal"):
        read_mnist(tmp_path / "mnist.csv")
    (tmp_path / "mnist.csv").write_text("dataset,method\nmnist,puma\n")
    with pytest.raises(DataError, match=r"columns \['scenario', 'seconds'\] are missing"):
        read_mnist(tmp_path / "mnist.csv")
