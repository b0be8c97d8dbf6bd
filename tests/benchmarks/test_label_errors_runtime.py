from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from typer.testing import CliRunner

from benchmarks.commands import label_errors_runtime
from benchmarks.label_errors import (
    fitted,
    flipped_dataset,
)
from benchmarks.label_errors_runtime import (
    RUNTIME_COLUMNS,
    Limits,
    per_point,
    run_runtime,
)
from benchmarks.label_errors_tables import read_label_errors, read_runtime, runtime_table
from puma.data import load_dataset
from puma.errors import DataError, SettingsError
from puma.influence import ConjugateGradients, FlatModel
from puma.label_errors import SelfInfluence
from puma.project.files import write_text
from puma.settings import Settings

TINY = Settings.model_validate({"model": {"hidden": [4]}, "training": {"epochs": 3}})
APP = typer.Typer()
APP.command()(label_errors_runtime)
QUICK = Limits(repeats=2, permutations=4, rows=5, whole=0.0)


@pytest.fixture(scope="module")
def times() -> pd.DataFrame:
    arguments = {"settings": TINY, "points": 80, "limits": QUICK, "progress": False}
    return run_runtime(["two_moons", "radial"], **arguments)


@pytest.mark.slow
def test_every_method_is_timed_on_the_papers_sizes(times: pd.DataFrame) -> None:
    assert tuple(times.columns) == RUNTIME_COLUMNS
    sizes = times.groupby("dataset", sort=False)[["points", "train_rows"]].first()
    assert sizes.to_dict("index") == {
        "two_moons": {"points": 80, "train_rows": 60},
        "radial": {"points": 600, "train_rows": 450},
    }
    assert set(times["parameters"]) == {2 * 4 + 4 + 4 * 2 + 2}
    assert (times["seconds"] > 0).all()
    # Of one thread; both clocks tick in less than a tenth of a millisecond.
    assert (times["seconds"] <= times["wall_seconds"] * 1.05 + 1e-4).all()
    for _, rows in times.groupby("dataset"):
        seconds = rows.set_index("method")["seconds"]
        expected = (seconds / seconds["psi"]).to_numpy()
        np.testing.assert_allclose(rows["ratio_to_psi"].to_numpy(), expected)
        assert seconds["psi_checked"] > seconds["psi"]  # 9 solves more
        assert seconds["self_influence_per_point"] > seconds["self_influence"]


@pytest.mark.slow
def test_what_was_extrapolated_says_so(times: pd.DataFrame) -> None:
    sampled = times[times["extrapolated"]]
    names = {"self_influence_per_point", "self_influence_psi_solver"}
    assert set(sampled["method"]) == names
    assert set(sampled["rows_timed"]) == {5}
    whole = times[~times["extrapolated"]]
    assert (whole["rows_timed"] == whole["train_rows"]).all()
    shapley = times[times["method"] == "g_shapley"]
    assert set(shapley["permutations"]) == {4}
    assert set(shapley["settled"]) == {False}
    limits = Limits(repeats=1, permutations=4, rows=5, tolerance=100.0)
    arguments = {"settings": TINY, "points": 24, "limits": limits, "progress": False}
    found = run_runtime(["spiral"], **arguments).set_index("method")
    assert found.loc["self_influence_per_point", "rows_timed"] == 18
    assert not found.loc["self_influence_per_point", "extrapolated"]
    assert found.loc["g_shapley", "settled"]


def test_slow_methods_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import label_errors_runtime as module

    ticks = iter(range(100))
    monkeypatch.setattr(module.time, "process_time", lambda: float(next(ticks)))
    calls: list[int] = []
    once = module._repeated(lambda: calls.append(0), Limits(once=0.5))
    assert (once["runs"], len(calls)) == (1, 1)
    thrice = module._repeated(lambda: calls.append(0), Limits(once=1.5))
    assert (thrice["runs"], len(calls)) == (3, 1 + 4)


def test_row_by_row_scores_are_those_of_the_factorisation() -> None:
    """In both orders of the work, so what is timed is the same quantity."""
    data, _ = flipped_dataset(load_dataset("breast_cancer", seed=0), 0)
    model = fitted(data, TINY, TINY.training, 0)
    exact = SelfInfluence().suspicion(model, data)
    rows = torch.tensor([3, 100, 523])
    found = per_point(FlatModel(model), data.train, rows, ConjugateGradients(tolerance=1e-6))
    torch.testing.assert_close(found.double(), exact[rows], rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_runtime_table_says_what_was_extrapolated(times: pd.DataFrame, tmp_path: Path) -> None:
    write_text(tmp_path / "times.csv", times.to_csv(index=False))
    assert runtime_table(read_runtime(tmp_path / "times.csv")) == runtime_table(times)
    heading, lines = runtime_table(times)
    assert heading == ["method", "two_moons (60 rows)", "radial (450 rows)"]
    cells = {line[0]: line[1:] for line in lines}
    assert cells["psi"][0].endswith("= 1×")
    assert cells["self_influence_per_point"][1].startswith("~")
    assert cells["g_shapley"][0].startswith(">")
    with pytest.raises(DataError, match=r"times\.csv: expected the columns"):
        read_label_errors(tmp_path / "times.csv")


def test_runtime_refuses_what_it_has_no_size_of() -> None:
    for wrong in ([], ["mnist"]):
        with pytest.raises(SettingsError, match="name at least one of breast_cancer"):
            run_runtime(wrong, settings=TINY)
    for limits in ({"repeats": 0}, {"rows": 0}, {"permutations": 0}):
        with pytest.raises(SettingsError, match="must be >= 1, got 0"):
            Limits(**limits)


@pytest.mark.slow
def test_runtime_command_writes_the_rows(
    times: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def instead(names: list[str], **arguments: Any) -> pd.DataFrame:
        asked.update(arguments, names=names)
        return times

    monkeypatch.setattr("benchmarks.commands.run_runtime", instead)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("seed: 0\n")
    said = CliRunner().invoke(APP, ["--datasets", "radial", "--repeats", "1"])
    assert said.exit_code == 0, said.output
    assert (asked["names"], asked["points"]) == (["radial"], 5000)
    assert (asked["limits"].repeats, asked["limits"].permutations) == (1, 400)
    assert len(read_runtime(tmp_path / "docs" / "results" / "debugging_runtime.csv")) == 20
    assert "20 rows: " in said.output
