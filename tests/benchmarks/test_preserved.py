"""The benchmark of kept criteria: what its table counts, and that what is kept is kept."""

from __future__ import annotations

import pandas as pd
import pytest

import puma
from benchmarks.preserved import GROUPS, VERSIONS, preserved_table, run_preserved
from puma.errors import SettingsError
from puma.settings import Settings


def test_the_table_has_means_and_counts_over_seeds() -> None:
    known = {"dataset": "moons", "request": "random", "criterion": "soft_ece", "over": "retained"}
    measured = {
        "retrain": [(0.02, "passed", 0.9, None), (-0.04, "passed", 0.8, None)],
        "without": [(0.01, "passed", 0.8, 0.5), (-0.003, "over_forgotten", 0.8, 0.3)],
        "with": [(0.001, "indistinguishable", 1.0, 1.0), (0.005, "passed", 0.5, 2.0)],
    }
    frame = pd.DataFrame(
        [
            known
            | {"version": version, "drift": drift, "verdict": verdict, "accuracy": accuracy}
            | {"level_distance": distance, "budget": 0.005}
            | {"bound_by": "soft_ece" if distance == 2 else "nothing"}
            for version, rows in measured.items()
            for drift, verdict, accuracy, distance in rows
        ]
    ).astype({"level_distance": float})
    heading, (line, everything) = preserved_table(frame)
    assert dict(zip(heading, line, strict=True)) == {
        **known,
        "drift": "0.0300 / 0.0065 / 0.0030",
        "largest kept": "0.0050",
        "in budget": "0 / 1 / 2",
        "may serve": "2 / 1 / 2",
        "accuracy": "0.850 / 0.800 / 0.750",
        "distance": "0.40 / 1.50",
        "bound": "1",
    }
    assert everything[:6] == ["all", "all", "all", "retained", "–", "0.0050"]
    assert everything[6:] == line[6:]


def test_a_dataset_without_a_group_is_refused() -> None:
    with pytest.raises(SettingsError, match="no group of radial is stated; take german_credit, tw"):
        run_preserved(["radial"], settings=Settings(), progress=False)


@pytest.mark.slow
def test_what_is_kept_is_kept_and_measured_as_anybody_would() -> None:
    shadow = Settings().shadow.model_copy(update={"models": 2, "epochs": 3, "attack_epochs": 3})
    short = {"epochs": 15}
    settings = Settings.model_validate(
        {"training": short, "pool": {"models": 16, "everybody": 3}, "audit": {"shadow_models": 4}}
    ).model_copy(update={"shadow": shadow})
    frame = run_preserved(["two_moons"], settings=settings, seeds=1, progress=False)
    assert len(frame) == 2 * 2 * 2 * len(VERSIONS)
    kept = frame[frame["version"] == "with"]
    assert (kept["drift"].abs() <= kept["budget"] + 1e-6).all()
    assert (kept["criterion_drift"].abs() <= 0.01 + 1e-6).all()
    # Each version of a request is one removal: its numbers are the same beside every criterion.
    for version in ("retrain", "without"):
        rows = frame[frame["version"] == version]
        assert (rows.groupby("request")["accuracy"].nunique() == 1).all()
    data = puma.load_dataset("two_moons", validation_fraction=0.2)
    removed = frame.groupby("request")["removed_rows"].first()
    assert removed["random"] == round(0.1 * len(data.train))
    assert GROUPS["two_moons"] == "x >= 1"
