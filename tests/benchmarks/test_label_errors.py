from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from sklearn.metrics import roc_auc_score
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from benchmarks.commands import label_errors_benchmark
from benchmarks.label_errors import (
    CURVE_COLUMNS,
    GRID,
    LABEL_ERROR_COLUMNS,
    REGULARISED,
    CountedShapley,
    flipped_dataset,
    ranked,
    run_label_errors,
)
from benchmarks.label_errors_tables import label_errors_table, read_curves, read_label_errors
from puma.data import Dataset, load_dataset
from puma.errors import DataError, SettingsError, SolverError
from puma.influence import MeanLoss, influence_scores
from puma.label_errors import GShapley, WeakSignalWarning
from puma.models import build_model
from puma.models.training import train
from puma.project.files import write_text
from puma.settings import Settings
from tests.label_errors.problems import tiny

TINY = Settings.model_validate({"model": {"hidden": [4]}, "training": {"epochs": 3}})
SEEDS = (0, 1)
ORDER = [
    ("loss", "", 0.0),
    ("psi", "training_loss", 0.0),
    ("psi", "validation_loss", 0.0),
    ("psi", "soft_ece", 0.0),
    ("self_influence", "", 0.0),
    ("ntk", "validation_loss", 0.0),
    ("representer", "", 0.0),
    ("g_shapley", "", 0.0),
    ("loss", "", REGULARISED),
    ("psi", "unregularised_loss", REGULARISED),
]
TIMES = ["seconds", "seconds_checked"]
APP = typer.Typer()
APP.command()(label_errors_benchmark)


def run(**changes: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    arguments = {"settings": TINY, "seeds": len(SEEDS), "permutations": 4, "progress": False}
    return run_label_errors(["breast_cancer"], **{**arguments, **changes})


@pytest.fixture(scope="module")
def result() -> tuple[pd.DataFrame, pd.DataFrame]:
    return run()


@pytest.fixture(scope="module")
def frame(result: tuple[pd.DataFrame, pd.DataFrame]) -> pd.DataFrame:
    return result[0]


@pytest.fixture(scope="module")
def curves(result: tuple[pd.DataFrame, pd.DataFrame]) -> pd.DataFrame:
    return result[1]


def retold(seed: int, weight_decay: float) -> tuple[torch.nn.Module, Dataset, np.ndarray]:
    """(model, flipped dataset, mask), put together from the data and the training alone."""
    data = load_dataset("breast_cancer", seed=seed)
    wrong, mask = flipped_dataset(data, seed)
    model = build_model(TINY.model, data, seed=seed)
    training = TINY.training.model_copy(update={"weight_decay": weight_decay})
    train(model, wrong.train, training, seed=seed, progress=False)
    return model, wrong, mask.numpy()


def share_of_first_tenth(suspicion: np.ndarray, mask: np.ndarray) -> float:
    """Of the flipped rows, where no two scores are equal; half a row counts half."""
    ranks = np.argsort(-suspicion)
    whole, part = divmod(0.1 * len(mask), 1)
    found = mask[ranks[: int(whole)]].sum() + part * mask[ranks[int(whole)]]
    return float(found / mask.sum())


def picked(frame: pd.DataFrame, seed: int, kind: tuple[str, str, float]) -> pd.Series:
    method, criterion, decay = kind
    (row,) = (
        each
        for _, each in frame.iterrows()
        if (each["seed"], each["method"], each["criterion"], each["weight_decay"])
        == (seed, method, criterion, decay)
    )
    return row


@pytest.mark.slow
def test_every_ranking_has_one_row_in_order(frame: pd.DataFrame) -> None:
    assert tuple(frame.columns) == LABEL_ERROR_COLUMNS
    assert LABEL_ERROR_COLUMNS[:7] == (
        "dataset",
        "method",
        "criterion",
        "seed",
        "found_at_10pct",
        "auc",
        "seconds",
    )
    keys = zip(
        frame["method"], frame["criterion"], frame["weight_decay"], frame["seed"], strict=True
    )
    assert list(keys) == [(*kind, seed) for kind in ORDER for seed in SEEDS]
    assert (frame["note"] == "").all()
    assert set(frame["train_rows"]) == {524}
    assert set(frame["flipped_rows"]) == {52}
    assert frame["found_at_10pct"].between(0, 1).all()
    made = frame.set_index("method")["permutations"].dropna()
    assert set(made.index) == {"g_shapley"}
    assert set(made) == {4}


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.0, REGULARISED])
def test_losses_find_what_they_find_by_hand(frame: pd.DataFrame, decay: float) -> None:
    for seed in SEEDS:
        model, data, mask = retold(seed, decay)
        with torch.no_grad():
            logits = model(data.train.features)
            right = model(data.test.features).argmax(1) == data.test.labels
        suspicion = cross_entropy(logits, data.train.labels, reduction="none").double().numpy()
        row = picked(frame, seed, ("loss", "", decay))
        assert row["found_at_10pct"] == pytest.approx(share_of_first_tenth(suspicion, mask))
        assert row["auc"] == pytest.approx(roc_auc_score(mask, suspicion))
        assert row["test_accuracy"] == pytest.approx(right.double().mean().item())


@pytest.mark.slow
def test_psi_finds_what_its_scores_say(frame: pd.DataFrame) -> None:
    for kind, examples in ((ORDER[2], "test"), (ORDER[9], "train")):
        model, data, mask = retold(0, kind[2])
        criterion = MeanLoss(getattr(data, examples))
        scores = influence_scores(model, data, criterion=criterion, solver="dense").double()
        row = picked(frame, 0, kind)
        assert row["auc"] == pytest.approx(roc_auc_score(mask, -scores), abs=1e-3)
        expected = share_of_first_tenth(-scores.numpy(), mask)
        assert row["found_at_10pct"] == pytest.approx(expected, abs=0.02)


def test_a_tenth_is_flipped_apart_from_the_order_of_training() -> None:
    data = load_dataset("breast_cancer", seed=0)
    wrong, mask = flipped_dataset(data, 0)
    assert ((wrong.train.labels != data.train.labels) == mask).all()
    assert (wrong.test.labels == data.test.labels).all()
    first = torch.randperm(len(mask), generator=torch.Generator().manual_seed(0))[:52]
    assert mask[first].double().mean() < 0.3


@pytest.mark.slow
def test_curves_are_means_over_the_seeds(curves: pd.DataFrame, frame: pd.DataFrame) -> None:
    assert tuple(curves.columns) == CURVE_COLUMNS
    assert len(curves) == len(ORDER) * len(GRID)
    kinds = curves.groupby(["method", "criterion", "weight_decay"], sort=False)
    assert [key for key, _ in kinds] == ORDER
    for (method, criterion, decay), curve in kinds:
        assert list(curve["share_inspected"]) == [round(0.02 * step, 2) for step in range(51)]
        assert set(curve["seeds"]) == {2}
        means = curve["share_found_mean"].to_numpy()
        assert means[0] == 0
        assert means[-1] == 1
        assert (np.diff(means) >= 0).all()
        found = [
            picked(frame, seed, (str(method), str(criterion), float(decay)))["found_at_10pct"]
            for seed in SEEDS
        ]
        assert means[5] == pytest.approx(np.mean(found), abs=1e-5)
        spread = curve["share_found_std"].iloc[5]
        assert spread == pytest.approx(abs(found[0] - found[1]) / math.sqrt(2), abs=1e-5)


@pytest.mark.slow
def test_same_but_for_seconds_in_processes_as_in_one(
    frame: pd.DataFrame, curves: pd.DataFrame
) -> None:
    again, other = run(jobs=2)
    pd.testing.assert_frame_equal(again.drop(columns=TIMES), frame.drop(columns=TIMES))
    pd.testing.assert_frame_equal(other, curves)


@dataclass(frozen=True)
class Planned:
    """A ranker that does as it is told."""

    name: ClassVar[str] = "planned"

    warning: Warning | None = None
    error: Exception | None = None

    def suspicion(self, model: Any, dataset: Dataset, *, progress: bool = False) -> torch.Tensor:  # noqa: ARG002
        if self.warning is not None:
            warnings.warn(self.warning, stacklevel=2)
        if self.error is not None:
            raise self.error
        return torch.arange(len(dataset.train)).double()


def test_warnings_of_noise_are_counted_and_others_passed_on() -> None:
    data, last = tiny(), torch.arange(13) == 12
    model = torch.nn.Linear(3, 3)
    assert ranked(Planned(), model, data, last)["warned"] is False
    row = ranked(Planned(WeakSignalWarning("noise")), model, data, last)
    assert row["warned"] is True
    assert (row["found_at_10pct"], row["auc"]) == (1.0, 1.0)
    with pytest.warns(UserWarning, match="else"):
        assert ranked(Planned(UserWarning("else")), model, data, last)["warned"] is False


def test_a_ranking_that_fails_is_a_row_with_a_note() -> None:
    last = torch.arange(13) == 12
    failing = Planned(error=SolverError("not\nconverged"))
    row = ranked(failing, torch.nn.Linear(3, 3), tiny(), last)
    assert row["note"] == "SolverError: not converged"
    assert math.isnan(row["auc"])
    assert "curve" not in row
    with pytest.raises(ZeroDivisionError):  # a bug is not a refusal
        ranked(Planned(error=ZeroDivisionError()), torch.nn.Linear(3, 3), tiny(), last)


def test_counting_permutations_changes_no_value() -> None:
    data, model = tiny(), torch.nn.Linear(3, 3).double()
    counted = CountedShapley(permutations=7, batch=3)
    plain = GShapley(permutations=7, batch=3)
    torch.testing.assert_close(
        counted.suspicion(model, data), plain.suspicion(model, data), rtol=0, atol=0
    )
    assert counted.made == [3, 3, 1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"datasets": ["moons"]}, r"unknown datasets \['moons'\]"),
        ({"datasets": []}, "name at least one"),
        ({"seeds": 0}, "at least 1, got 0 and 1"),
        ({"jobs": 0}, "at least 1, got 5 and 0"),
        ({"permutations": 0}, "permutations must be >= 1, got 0"),
        ({"tolerance": -1.0}, "tolerance must be finite and > 0"),
    ],
)
def test_refuses_before_it_starts(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run_label_errors(**{"datasets": ["radial"], "settings": TINY, **wrong})


def invented(**columns: Any) -> pd.DataFrame:
    row = {
        "dataset": "radial",
        "method": "psi",
        "criterion": "soft_ece",
        "seed": [0, 1],
        "found_at_10pct": [0.5, 0.7],
        "auc": 0.9,
        "weight_decay": 0.0,
        "warned": False,
        "note": "",
    }
    return pd.DataFrame({**row, **columns}).reindex(columns=list(LABEL_ERROR_COLUMNS))


def test_table_has_means_deviations_warnings_and_counts() -> None:
    def cell(**columns: Any) -> str:
        _, [line] = label_errors_table(invented(**columns))
        return line[-1]

    assert label_errors_table(invented()) == (
        ["method", "criterion", "weight decay", "radial"],
        [["psi", "soft_ece", "0", "0.60 ± 0.14"]],
    )
    assert cell(warned=[False, True]) == "0.60 ± 0.14*"
    assert cell(found_at_10pct=[0.5, math.nan], note=["", "SolverError: 3 left"]) == "0.50 [1/2]"
    assert cell(found_at_10pct=math.nan, note="E: no") == "–"


@pytest.mark.slow
def test_rows_survive_the_files(frame: pd.DataFrame, curves: pd.DataFrame, tmp_path: Path) -> None:
    for written, name, read in (
        (frame, "rows.csv", read_label_errors),
        (curves, "curves.csv", read_curves),
    ):
        write_text(tmp_path / name, written.to_csv(index=False))
        pd.testing.assert_frame_equal(read(tmp_path / name), written, check_dtype=False)
        with pytest.raises(
            DataError, match=r"absent\.csv: no rows of python -m benchmarks label-errors"
        ):
            read(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="run python -m benchmarks label-errors again"):
        read_label_errors(tmp_path / "curves.csv")


@pytest.mark.slow
def test_command_writes_rows_and_curves(
    result: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def instead(names: list[str], **arguments: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
        asked.update(arguments, names=names)
        return result

    monkeypatch.setattr("benchmarks.commands.run_label_errors", instead)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("seed: 0\n")
    said = CliRunner().invoke(APP, ["--datasets", "radial, spiral"])
    assert said.exit_code == 0, said.output
    assert (asked["names"], asked["seeds"], asked["jobs"]) == (["radial", "spiral"], 5, 2)
    folder = tmp_path / "docs" / "results"
    assert len(read_label_errors(folder / "debugging.csv")) == len(result[0])
    assert len(read_curves(folder / "debugging_curves.csv")) == len(result[1])
    assert "unregularised" in said.output
    assert "20 rows, 0 of them notes" in said.output
    arguments = ["--out", "mine.csv", "--jobs", "1", "--seeds", "2"]
    assert CliRunner().invoke(APP, arguments).exit_code == 0
    assert (tmp_path / "mine_curves.csv").exists()
    assert (asked["seeds"], asked["jobs"]) == (2, 1)


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.commands.run_label_errors", lambda *_, **__: pytest.fail("ran"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("seed: 0\n")
    result = CliRunner().invoke(APP, ["--out", "/proc/mine.csv"])
    assert isinstance(result.exception, SettingsError)
    assert "/proc/mine.csv cannot be written" in str(result.exception)
