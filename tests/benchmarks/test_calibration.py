from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import typer
from scipy.optimize import minimize_scalar
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from benchmarks import calibration as module
from benchmarks.calibration import (
    CALIBRATION_COLUMNS,
    RELIABILITY_COLUMNS,
    REPAIRS,
    run_calibration,
)
from benchmarks.calibration_models import VARIANTS, Problem, Trained, make, sharpened
from benchmarks.calibration_tables import calibration_table, read_calibration, read_reliability
from benchmarks.commands import calibration_benchmark
from puma.calibration import calibrate_directly
from puma.data import two_moons
from puma.errors import DataError, ModelError, SettingsError
from puma.influence import SoftECE
from puma.project.files import write_text
from puma.settings import Settings

SMALL = Settings.model_validate(
    {"model": {"hidden": [8]}, "training": {"epochs": 20, "learning_rate": 0.01}}
)
PROBLEM = Problem(points=240, flipped=12, few=48)
APP = typer.Typer()
APP.command()(calibration_benchmark)


@pytest.fixture(scope="module")
def result() -> tuple[pd.DataFrame, pd.DataFrame]:
    return run_calibration(settings=SMALL, seeds=2, problem=PROBLEM, progress=False)


@pytest.fixture(scope="module")
def frame(result: tuple[pd.DataFrame, pd.DataFrame]) -> pd.DataFrame:
    return result[0]


@pytest.fixture(scope="module")
def made() -> dict[str, Trained]:
    return {variant: make(variant, 0, SMALL, PROBLEM) for variant in VARIANTS}


def row(frame: pd.DataFrame, variant: str, repair: str, seed: int = 0) -> pd.Series:
    place = (frame["variant"] == variant) & (frame["repair"] == repair) & (frame["seed"] == seed)
    return frame[place].iloc[0]


def logits(model: torch.nn.Module, features: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(features).double()


def by_hand(scores: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """accuracy, loss, and the hard error by a loop over 15 bins."""
    top, predicted = scores.softmax(1).max(1)
    right = (predicted == labels).double()
    error = 0.0
    for place in range(15):
        inside = (top > place / 15) & (top <= (place + 1) / 15)
        if inside.any():
            gap = right[inside].mean() - top[inside].mean()
            error += float(inside.double().mean() * gap.abs())
    return {
        "accuracy": float(right.mean()),
        "loss": float(cross_entropy(scores, labels)),
        "hard_ece": error,
    }


@pytest.mark.slow
def test_every_repair_has_one_row_in_order(frame: pd.DataFrame) -> None:
    assert tuple(frame.columns) == CALIBRATION_COLUMNS
    keys = zip(frame["variant"], frame["repair"], frame["seed"], strict=True)
    assert list(keys) == [
        (variant, repair, seed) for variant in VARIANTS for repair in REPAIRS for seed in (0, 1)
    ]
    assert (frame["note"] == "").all()
    sizes = frame.groupby("variant")[["train_rows", "held_out_rows", "test_rows"]].first()
    assert sizes.loc["as_trained"].tolist() == [144, 36, 60]
    assert sizes.loc["logits_x3"].tolist() == [144, 36, 60]
    assert sizes.loc["overfitted"].tolist() == [48, 36, 60]
    assert set(frame[frame["variant"] != "overfitted"]["flipped_rows"]) == {12}


@pytest.mark.slow
def test_numbers_before_are_those_of_the_model(
    frame: pd.DataFrame, made: dict[str, Trained]
) -> None:
    for variant, trained in made.items():
        for split in ("train", "test"):
            examples = getattr(trained.dataset, split)
            expected = by_hand(logits(trained.model, examples.features), examples.labels)
            for repair in REPAIRS:
                found = row(frame, variant, repair)
                for name, value in expected.items():
                    assert found[f"{split}_{name}_before"] == pytest.approx(value, abs=1e-6)
            same = row(frame, variant, "none")
            for name in (*expected, "soft_ece"):
                assert same[f"{split}_{name}_after"] == same[f"{split}_{name}_before"]


@pytest.mark.slow
def test_temperature_is_the_best_and_takes_the_factor_of_three_back(
    frame: pd.DataFrame, made: dict[str, Trained]
) -> None:
    held_out = made["as_trained"].held_out
    scores = logits(made["as_trained"].model, held_out.features)
    best = minimize_scalar(
        lambda t: float(cross_entropy(scores / t, held_out.labels)),
        bounds=(0.01, 20),
        method="bounded",
    ).x
    plain, sharp = (row(frame, v, "temperature_held_out") for v in ("as_trained", "logits_x3"))
    assert plain["temperature"] == pytest.approx(best, rel=1e-3)
    assert sharp["temperature"] == pytest.approx(3 * best, rel=1e-3)
    test = made["as_trained"].dataset.test
    expected = by_hand(logits(made["as_trained"].model, test.features) / best, test.labels)
    for found in (plain, sharp):
        assert found["test_loss_after"] == pytest.approx(expected["loss"], rel=1e-4)
        assert found["test_accuracy_after"] == found["test_accuracy_before"]
        assert math.isnan(found["dose"])


@pytest.mark.slow
def test_direct_repair_is_that_of_the_package(
    frame: pd.DataFrame, made: dict[str, Trained]
) -> None:
    trained = made["logits_x3"]
    repair = calibrate_directly(trained.model, trained.dataset, criterion=SoftECE(trained.held_out))
    found = row(frame, "logits_x3", "direct_held_out")
    assert found["dose"] == pytest.approx(repair.dose)
    change = repair.after.soft_ece - repair.before.soft_ece
    assert found["measured_change"] == pytest.approx(change, abs=1e-6)
    examples = trained.dataset.test
    expected = by_hand(logits(repair.model, examples.features), examples.labels)
    assert found["test_loss_after"] == pytest.approx(expected["loss"], abs=1e-6)
    assert found["test_hard_ece_after"] == pytest.approx(expected["hard_ece"], abs=1e-6)


@pytest.mark.slow
def test_patches_tell_their_groups_and_doses(frame: pd.DataFrame) -> None:
    patches = frame[frame["repair"].isin(["printed_eta", "patch_train", "patch_held_out"])]
    groups = patches[["over_confident", "over_uncertain", "other_noise"]].sum(axis=1)
    assert (groups == patches["train_rows"] // 4).all()
    printed = frame[frame["repair"] == "printed_eta"]
    np.testing.assert_allclose(printed["dose"], 1e-4 * printed["train_rows"])
    # C of these is measured on the rows that the table shows.
    for repair in ("printed_eta", "patch_train", "direct_train"):
        rows = frame[frame["repair"] == repair]
        change = rows["train_soft_ece_after"] - rows["train_soft_ece_before"]
        np.testing.assert_allclose(rows["measured_change"], change, atol=1e-6)
        if repair != "printed_eta":
            assert (change <= 0).all()


def test_no_row_is_in_two_parts_and_only_training_labels_are_wrong(
    made: dict[str, Trained],
) -> None:
    truth = two_moons(seed=0, test_fraction=0.25, points=240, noise=PROBLEM.noise)
    right = {
        str(owner): int(label)
        for part in (truth.train, truth.test)
        for owner, label in zip(part.subject_ids, part.labels, strict=True)
    }
    for trained in made.values():
        parts = (trained.dataset.train, trained.held_out, trained.dataset.test)
        owners = [set(part.subject_ids) for part in parts]
        assert len(set.union(*owners)) == sum(len(part) for part in parts)
        wrong = [
            sum(
                int(label) != right[str(owner)]
                for owner, label in zip(part.subject_ids, part.labels, strict=True)
            )
            for part in parts
        ]
        assert wrong == [trained.flipped_rows, 0, 0]
    few, all_rows = (set(made[v].dataset.train.subject_ids) for v in ("overfitted", "as_trained"))
    assert few < all_rows


@pytest.mark.slow
def test_reliability_adds_up_to_the_hard_error(
    result: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    frame, bins = result
    assert tuple(bins.columns) == RELIABILITY_COLUMNS
    assert set(bins["seed"]) == {0}
    assert len(bins) == len(VARIANTS) * len(REPAIRS) * 15
    for (variant, repair), found in bins.groupby(["variant", "repair"]):
        assert found["count"].sum() == 60
        used = found[found["count"] > 0]
        gap = (used["accuracy"] - used["confidence"]).abs()
        error = (used["count"] * gap).sum() / 60
        told = row(frame, str(variant), str(repair))["test_hard_ece_after"]
        assert error == pytest.approx(told, abs=1e-9)


@pytest.mark.slow
def test_floor_is_what_a_calibrated_model_shows(
    frame: pd.DataFrame, made: dict[str, Trained]
) -> None:
    test = made["as_trained"].dataset.test
    chances = logits(made["as_trained"].model, test.features).softmax(1)
    generator = np.random.default_rng(0)
    draws = []
    for _ in range(400):
        labels = torch.from_numpy((generator.random(60) < chances[:, 1].numpy()).astype(int))
        draws.append(by_hand(chances.log(), labels)["hard_ece"])
    told = row(frame, "as_trained", "none")["test_hard_ece_floor"]
    assert told == pytest.approx(np.mean(draws), abs=4 * np.std(draws) / math.sqrt(20))


def test_a_repair_that_fails_is_a_row_with_a_note(
    made: dict[str, Trained], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise DataError("no\ntemperature")

    monkeypatch.setattr(module, "temperature_scaled", fail)
    found, model = module._measured("temperature_held_out", made["as_trained"])
    assert model is None
    assert found["note"] == "DataError: no temperature"
    assert "test_loss_before" in found
    assert "test_loss_after" not in found


def test_logits_can_be_sharpened_only_where_the_last_layer_makes_them() -> None:
    data = two_moons(seed=0, test_fraction=0.25, points=40, noise=0.1)
    linear = torch.nn.Linear(2, 2)
    tripled = sharpened(linear, data.test)
    torch.testing.assert_close(tripled(data.test.features), 3 * linear(data.test.features))
    for model in (torch.nn.Sequential(linear, torch.nn.Tanh()), torch.nn.Identity()):
        with pytest.raises(ModelError, match=r"last nn\.Linear"):
            sharpened(model, data.test)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seeds": 0}, "at least 1, got 0 and 1"),
        ({"jobs": 0}, "at least 1, got 5 and 0"),
        ({"problem": Problem(points=100)}, r"few \(300\) and flipped \(100\) .* 60 rows"),
    ],
)
def test_refuses_before_it_starts(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run_calibration(settings=SMALL, **wrong)


@pytest.mark.parametrize("wrong", [{"points": 0}, {"few": 0}, {"flipped": -1}, {"noise": -1.0}])
def test_problems_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="points and few must be >= 1"):
        Problem(**wrong)


def invented(**columns: Any) -> pd.DataFrame:
    found = {
        "variant": "as_trained",
        "repair": ["none", "none", "direct_train", "direct_train"],
        "seed": [0, 1, 0, 1],
        "test_soft_ece_before": [0.02, 0.04, 0.02, 0.04],
        "test_soft_ece_after": [0.02, 0.04, 0.01, 0.03],
        "test_accuracy_after": [0.9, 0.8, 0.9, 0.8],
        "dose": [math.nan, math.nan, 1.0, 2.0],
        "seconds": 0.5,
        "test_hard_ece_floor": 0.0125,
        "note": "",
    }
    return pd.DataFrame({**found, **columns}).reindex(columns=list(CALIBRATION_COLUMNS))


def test_table_counts_the_seeds_that_got_better() -> None:
    heading, lines = calibration_table(invented(), "as_trained")
    cells = [dict(zip(heading, line, strict=True)) for line in lines]
    assert cells[0]["better, halved"] == "–"
    assert cells[0]["dose"] == "–"
    assert cells[1]["better, halved"] == "2, 1 of 2"
    assert cells[1]["dose"] == "1.50 ± 0.71"
    assert cells[1]["test soft ECE"] == "0.0200 ± 0.0141"
    assert cells[1]["test accuracy %"] == "85.0 ± 7.1"
    failed = invented(note=["", "", "", "SolverError: 3 left"])
    _, lines = calibration_table(failed, "as_trained")
    assert lines[1][:2] == ["direct_train [1/2]", "0.0100"]


@pytest.mark.slow
def test_rows_survive_the_files(result: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path) -> None:
    for written, name, read in zip(
        result, ("rows.csv", "bins.csv"), (read_calibration, read_reliability), strict=True
    ):
        write_text(tmp_path / name, written.to_csv(index=False))
        pd.testing.assert_frame_equal(read(tmp_path / name), written, check_dtype=False)
    with pytest.raises(DataError, match="run python -m benchmarks calibration again"):
        read_calibration(tmp_path / "bins.csv")


@pytest.mark.slow
def test_command_writes_rows_and_bins(
    result: tuple[pd.DataFrame, pd.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def instead(**arguments: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
        asked.update(arguments)
        return result

    monkeypatch.setattr("benchmarks.commands.run_calibration", instead)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("seed: 0\n")
    said = CliRunner().invoke(APP, ["--few", "200"])
    assert said.exit_code == 0, said.output
    assert (asked["seeds"], asked["jobs"]) == (5, 2)
    assert asked["problem"] == Problem(points=5000, flipped=100, few=200)
    folder = tmp_path / "docs" / "results"
    assert len(read_calibration(folder / "calibration.csv")) == 42
    assert len(read_reliability(folder / "calibration_reliability.csv")) == 315
    assert "42 rows, 0 of them notes" in said.output
