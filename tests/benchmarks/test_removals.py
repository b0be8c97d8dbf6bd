from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from benchmarks import __main__ as cli
from benchmarks import removals as runs_module
from benchmarks.audits import AUDITED, run_audits, verdicts
from benchmarks.removals import COLUMNS, NUMBERS, RUNS, Scenario, run_removals, scenarios
from benchmarks.tables import cluster_table, read, summarise
from puma.audit import VERDICTS, predict, train_shadow_attack
from puma.cli.common import REFUSED
from puma.data import Examples, load_dataset
from puma.errors import DataError, SettingsError
from puma.models import build_model
from puma.models.training import train
from puma.project.files import write_text
from puma.removal import METHODS
from puma.requests.demonstration import smallest_clusters
from puma.settings import Settings

TINY = {
    "model": {"hidden": [4]},
    "training": {"epochs": 2},
    "sisa": {"shards": 2, "slices": 2},
    "amnesiac": {"repair_epochs": 1},
    "puma": {"steps": 2, "damping": 1.0},
    "puma_paper": {
        "steps": 5,
        "batch_size": 512,
        "curvature": "gauss_newton",
        "reweighter": "exact",
    },
    "shadow": {"models": 1, "epochs": 2, "attack_epochs": 2, "attack_hidden": [4]},
    "pool": {"models": 16, "everybody": 3},
    "audit": {"models": 3, "shadow_models": 4},
}
CASES = [Scenario("cluster"), Scenario("ordered", 0.4), Scenario("random", 0.2)]
TIMES = ["seconds", "retrain_seconds"]


def run(**changes: Any) -> pd.DataFrame:
    arguments = {"settings": Settings.model_validate(TINY), "seeds": 1, "cases": CASES}
    return run_removals(["breast_cancer"], **{**arguments, "progress": False, **changes})


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return run()


def invented(**columns: Any) -> pd.DataFrame:
    """Two seeds of one method."""
    row: dict[str, Any] = {
        "dataset": "radial",
        "scenario": "random",
        "fraction": 0.2,
        "method": "puma",
        "seed": [0, 1],
        **{name: [0.5, 0.7] for name in NUMBERS},
        "note": "",
    }
    return pd.DataFrame({**row, **columns})[list(COLUMNS)]


def test_every_run_has_one_row_in_order(frame: pd.DataFrame) -> None:
    assert tuple(frame.columns) == COLUMNS
    shares = map(str, frame["fraction"])
    keys = zip(frame["scenario"], shares, frame["method"], strict=True)
    assert list(keys) == [(case.name, str(case.fraction), run) for case in CASES for run in RUNS]
    assert set(frame["dataset"]) == {"breast_cancer"}
    assert set(frame["seed"]) == {0}
    assert list(frame["note"]) == [""] * len(frame)


def test_numbers_are_there_and_in_range(frame: pd.DataFrame) -> None:
    assert frame[[*NUMBERS[:-1]]].notna().all(axis=None)
    assert frame[list(NUMBERS[:7])].stack().between(0, 1).all()
    says = frame[frame["level_missed"].notna()]
    assert set(says["method"]) == {"puma"}


def test_gap_is_the_distance_from_retrain_at_equal_epochs(frame: pd.DataFrame) -> None:
    for _, rows in frame.groupby("scenario"):
        base = rows[rows["method"] == "retrain"].iloc[0]
        expected = (rows["loss_auc"] - base["loss_auc"]).abs()
        assert (rows["loss_auc_gap_to_retrain"] == expected).all()
        assert base["loss_auc_gap_to_retrain"] == 0
        assert (rows["retrain_seconds"] == base["seconds"]).all()


def test_methods_that_record_are_measured_from_their_own_original(frame: pd.DataFrame) -> None:
    originals = frame.groupby("method")["original_accuracy"].nunique()
    assert (originals == 1).all()
    plain = frame[~frame["method"].isin(["sisa", "amnesiac"])]
    assert plain["original_accuracy"].nunique() == 1
    sisa = frame[frame["method"] == "sisa"]["original_accuracy"].iloc[0]
    assert sisa != plain["original_accuracy"].iloc[0]


@pytest.mark.slow
def test_same_but_for_seconds_in_processes_as_in_one(
    frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    # What is changed in this process does not reach those that do the work.
    monkeypatch.setattr(runs_module, "_Pair", None)
    again = run(jobs=2, seeds=2, cases=CASES[:1])
    assert list(again["seed"]) == [0, 1] * len(RUNS)
    same = frame[: len(RUNS)].drop(columns=TIMES).reset_index(drop=True)
    first = again[again["seed"] == 0].drop(columns=TIMES).reset_index(drop=True)
    pd.testing.assert_frame_equal(same, first)
    assert not first["accuracy"].equals(again[again["seed"] == 1]["accuracy"])
    assert torch.get_num_threads() == threads


def test_numbers_are_those_of_the_removal_itself(frame: pd.DataFrame) -> None:
    """Of retraining on the ordered scenario, whose rows and weights can be told by hand."""
    settings = Settings.model_validate(TINY)
    data = load_dataset("breast_cancer", seed=0, test_fraction=settings.data.test_fraction)
    first = data.train.subject_ids[: round(0.4 * len(data.train))]
    removed = torch.from_numpy(np.isin(data.train.subject_ids, first))
    unseen = torch.from_numpy(~np.isin(data.test.subject_ids, first))
    kept = Examples.of(data.train.features[~removed], data.train.labels[~removed])
    model = build_model(settings.model, data, seed=0)
    train(model, kept, settings.training, seed=0, progress=False)

    found = frame[(frame["scenario"] == "ordered") & (frame["method"] == "retrain")].iloc[0]

    with torch.no_grad():
        right = model(data.test.features).argmax(1) == data.test.labels
        groups = [
            cross_entropy(model(part.features[rows]), part.labels[rows], reduction="none")
            for part, rows in ((data.train, removed), (data.test, unseen))
        ]
    assert found["accuracy"] == pytest.approx(right.double().mean().item())
    truth = np.repeat([1, 0], [len(group) for group in groups])
    told = roc_auc_score(truth, -torch.cat(groups).numpy())
    assert found["loss_auc"] == pytest.approx(told, abs=1e-3)


def test_the_rate_before_is_that_of_the_original_alone(frame: pd.DataFrame) -> None:
    """Whatever the method does with it afterwards."""
    settings = Settings.model_validate(TINY)
    data = load_dataset("breast_cancer", seed=0, test_fraction=settings.data.test_fraction)
    attack = train_shadow_attack(
        data, settings.model, settings.training, settings.shadow, seed=0, progress=False
    )
    model = build_model(settings.model, data, seed=0)
    train(model, data.train, settings.training, seed=0, progress=False)
    marked = data.train.subset(smallest_clusters(data, clusters=8, seed=0))
    called = attack.scores(predict(model, marked)) > 0.5

    found = frame[(frame["scenario"] == "cluster") & (frame["method"] != "sisa")]
    rates = found["removed_rate_before"].tolist()
    assert rates == pytest.approx([called.mean()] * len(rates))


def test_the_paper_s_own_settings_are_runs_of_their_own() -> None:
    """Amnesiac ML without its repair, and SISA with an ordered request side by side."""
    found = run(
        cases=CASES[1:2], runs=["amnesiac", "amnesiac_unrepaired", "sisa", "sisa_ordered"]
    ).set_index("method")
    assert list(found.index) == ["sisa", "amnesiac", "sisa_ordered", "amnesiac_unrepaired"]
    assert (found["note"] == "").all()
    # Nothing was retrained to take the gap from.
    assert found["loss_auc_gap_to_retrain"].isna().all()
    # The same original, and only the repair after the subtraction differs.
    pair = found.loc[["amnesiac", "amnesiac_unrepaired"]]
    assert pair["original_accuracy"].nunique() == 1
    assert pair["loss_auc"].nunique() == 2
    # Other shards make another original.
    assert (
        found.loc["sisa", "removed_rate_before"] != found.loc["sisa_ordered", "removed_rate_before"]
        or found.loc["sisa", "loss_auc"] != found.loc["sisa_ordered", "loss_auc"]
    )


def test_failures_are_rows_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ArithmeticError("the step\nexploded")

    monkeypatch.setattr(METHODS["retrain"], "_patch", fail)
    monkeypatch.setattr(METHODS["sisa"], "_train", fail)
    found = run(cases=CASES[1:2]).set_index("method")
    assert list(found.index) == list(RUNS)
    for name in ("retrain", "retrain_equal_steps", "sisa"):
        assert found.loc[name, "note"] == "ArithmeticError: the step exploded"
        assert found.loc[name, list(NUMBERS)].isna().all()
    # Without a retrained model there is no gap, and the rest stands.
    assert found.loc["puma", "note"] == ""
    assert found.loc["puma", "accuracy"] > 0
    assert math.isnan(found.loc["puma", "loss_auc_gap_to_retrain"])


def test_removal_of_a_whole_class_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_class(dataset: Any, *_: Any, **__: Any) -> torch.Tensor:
        return (dataset.train.labels == 0).nonzero().flatten()

    monkeypatch.setattr(runs_module, "mark", first_class)
    found = run(cases=CASES[1:2])
    assert len(found) == len(RUNS)
    assert found["note"].str.startswith("DeletionError: ").all()
    assert found[list(NUMBERS)].isna().all(axis=None)


def test_scenarios_are_those_of_the_paper() -> None:
    assert [(case.name, case.fraction) for case in scenarios((0.8, 0.2))][1:] == [
        ("ordered", 0.2),
        ("ordered", 0.8),
        ("random", 0.2),
        ("random", 0.8),
    ]
    assert len(scenarios()) == 9
    with pytest.raises(SettingsError, match=r"between 0 and 1, got \[1\.0\]"):
        scenarios([1.0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"datasets": ["moons"]},
        {"datasets": []},
        {"seeds": 0},
        {"jobs": 0},
        {"runs": ["unlearn"]},
        {"runs": []},
    ],
)
def test_refuses_before_it_starts(wrong: dict[str, Any]) -> None:
    arguments = {"datasets": ["radial"], "settings": Settings(), **wrong}
    with pytest.raises(SettingsError):
        run_removals(**arguments)


def test_summary_is_over_the_seeds_that_answered() -> None:
    (row,) = summarise(invented()).to_dict("records")
    assert row["accuracy_mean"] == pytest.approx(0.6)
    assert row["accuracy_sd"] == pytest.approx(math.sqrt(0.02))
    assert (row["runs"], row["answered"]) == (2, 2)
    (row,) = summarise(invented(accuracy=[0.5, math.nan], note=["", "E: no"])).to_dict("records")
    assert (row["accuracy_mean"], row["runs"], row["answered"]) == (0.5, 2, 1)
    assert math.isnan(row["accuracy_sd"])


def test_cluster_table_has_percent_deviations_and_counts() -> None:
    rows = invented(scenario="cluster", fraction=math.nan)
    shown = ("accuracy", "loss_auc")
    heading, lines = cluster_table(rows, "radial", shown)
    assert heading == ["method", "accuracy %", "loss AUC"]
    assert lines == [["puma", "60.0 ± 14.1", "0.60 ± 0.14"]]
    failed = rows.assign(accuracy=[0.5, math.nan], note=["", "SolverError: 3 left"])
    _, [line] = cluster_table(failed, "radial", shown)
    assert line[:2] == ["puma [1/2]", "50.0"]


def test_rows_survive_the_file(frame: pd.DataFrame, tmp_path: Path) -> None:
    write_text(tmp_path / "rows.csv", frame.to_csv(index=False))
    pd.testing.assert_frame_equal(read(tmp_path / "rows.csv"), frame)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for name in ("other.csv", "absent.csv"):
        with pytest.raises(DataError, match=name):
            read(tmp_path / name)


def test_command_writes_the_rows_and_prints_the_clusters(
    frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def instead(names: list[str], **arguments: Any) -> pd.DataFrame:
        asked.update(arguments, names=names)
        return frame

    monkeypatch.setattr("benchmarks.commands.run_removals", instead)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("seed: 0\n")
    arguments = ["removals", "--datasets", "breast_cancer", "--fractions", "0.2"]
    result = CliRunner().invoke(cli.app, [*arguments, "--jobs", "2"])
    assert result.exit_code == 0, result.output
    assert (asked["names"], asked["jobs"], asked["seeds"]) == (["breast_cancer"], 2, 5)
    assert [case.name for case in asked["cases"]] == ["cluster", "ordered", "random"]
    assert read(tmp_path / "docs" / "results" / "removal.csv").equals(frame)
    assert "retrain_equal_steps" in result.output
    assert "21 rows, 0 of them notes" in result.output
    for wrong in (["--fractions", "some"], ["--requests", "cluster,clutter"]):
        assert CliRunner().invoke(cli.app, ["removals", *wrong]).exit_code == REFUSED
    CliRunner().invoke(cli.app, ["removals", "--requests", "ordered", "--methods", "puma, sisa"])
    assert {case.name for case in asked["cases"]} == {"ordered"}
    assert asked["runs"] == ["puma", "sisa"]


# --- audits ---


SHORT_LIST = ("8 clusters", "2 people", "category")


@pytest.fixture(scope="module")
def audits() -> pd.DataFrame:
    settings = Settings.model_validate(TINY)
    return run_audits(
        ["breast_cancer"],
        settings=settings,
        seeds=1,
        requests=SHORT_LIST,
        again=True,
        progress=False,
    )


@pytest.mark.slow
def test_every_audited_version_has_one_row_in_order(audits: pd.DataFrame) -> None:
    keys = list(audits[["dataset", "request", "method", "seed"]].itertuples(index=False, name=None))
    assert keys == [("breast_cancer", case, name, 0) for case in SHORT_LIST for name in AUDITED]
    assert set(audits["verdict"]) <= set(VERDICTS)
    assert (audits["audit_passed"] == (audits["verdict"] == "passed")).all()
    assert audits["reason"].str.len().min() > 20
    data = load_dataset("breast_cancer", seed=0, test_fraction=0.25)
    marked = smallest_clusters(data, clusters=8, seed=0)
    clusters = np.isin(data.train.subject_ids, data.train.subject_ids[marked.numpy()]).sum()
    sizes = {case: set(rows["removed_rows"]) for case, rows in audits.groupby("request")}
    assert sizes["8 clusters"] == {clusters}
    (category,) = sizes["category"]
    assert 0.04 * len(data.train) <= category
    plain = ~audits["method"].str.startswith("sisa")
    for column in ("verdict_pool", "verdict_again"):
        assert set(audits[plain][column]) <= set(VERDICTS)
        assert audits[~plain][column].isna().all()
    assert (audits[plain]["audit_seconds"] > 0).all()
    steered = audits["method"] == "puma"
    assert audits[steered]["level_missed"].isin([0, 1]).all()
    assert (audits[steered]["level_error"] > 0).all()
    assert audits[~steered]["level_error"].isna().all()
    assert (
        audits[steered]["criterion_drift"].abs().max() <= Settings.model_validate(TINY).puma.budget
    )
    for _, rows in audits.groupby("request"):
        retrained = rows[rows["method"] == "retrain"]["seconds"].item()
        assert set(rows["retrain_seconds"]) == {retrained}


@pytest.mark.slow
def test_an_original_is_its_own_parent_and_a_removal_is_not(audits: pd.DataFrame) -> None:
    originals = audits[audits["method"].str.contains("original")]
    assert (originals["accuracy_change"] == 0).all()
    assert (originals["attack_auc_two_models"] == 0.5).all()
    removals = audits[~audits["method"].str.contains("original")]
    assert (removals["attack_auc_two_models"] != 0.5).all()
    # The models that SISA's ensembles are compared with are SISA's.
    expected = audits[audits["request"] == "8 clusters"].set_index("method")[
        "gap_to_retrain_expected"
    ]
    assert expected["sisa"] == expected["sisa_original"] != expected["original"]
    assert expected["original"] == expected["retrain"] == expected["puma"] == expected["amnesiac"]


def test_verdicts_are_counted_by_size_and_method() -> None:
    rows = [
        ("radial", "8 clusters", "retrain", "passed"),
        ("radial", "8 clusters", "retrain", "passed"),
        ("radial", "8 clusters", "retrain", "indistinguishable"),
        ("radial", "8 clusters", "puma", "over_forgotten"),
        ("radial", "category", "retrain", "passed"),
        ("german_credit", "8 clusters", "retrain", "passed"),
    ]
    found = verdicts(pd.DataFrame(rows, columns=["dataset", "request", "method", "verdict"]))
    keys = ["dataset", "request", "method"]
    assert list(found[keys].itertuples(index=False, name=None)) == [
        ("radial", "8 clusters", "retrain"),
        ("radial", "8 clusters", "puma"),
        ("radial", "category", "retrain"),
        ("german_credit", "8 clusters", "retrain"),
    ]
    none = {"passed": 0, "indistinguishable": 0, "over_forgotten": 0}
    assert found.set_index(keys).to_dict("index") == {
        ("radial", "8 clusters", "retrain"): none | {"passed": 2, "indistinguishable": 1},
        ("radial", "8 clusters", "puma"): none | {"over_forgotten": 1},
        ("radial", "category", "retrain"): none | {"passed": 1},
        ("german_credit", "8 clusters", "retrain"): none | {"passed": 1},
    }


@pytest.mark.slow
def test_command_writes_the_audits_and_prints_the_verdicts(
    audits: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def instead(names: list[str], **arguments: Any) -> pd.DataFrame:
        asked.update(arguments, names=names)
        return audits

    monkeypatch.setattr("benchmarks.commands.run_audits", instead)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("seed: 0\n")
    arguments = [
        "audits",
        "--datasets",
        "radial, breast_cancer",
        "--requests",
        "8 clusters, category",
    ]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    names = ["radial", "breast_cancer"]
    assert (asked["names"], asked["requests"]) == (names, ["8 clusters", "category"])
    assert (asked["seeds"], asked["jobs"]) == (10, 2)
    written = pd.read_csv(tmp_path / "docs" / "results" / "audit.csv")
    pd.testing.assert_frame_equal(written, audits)
    lines = [line.split() for line in result.output.splitlines()]
    for method in AUDITED:
        assert sum(method in line for line in lines) == 3
    assert "18 rows: " in result.output


@pytest.mark.parametrize(
    "wrong", [{"datasets": ["moons"]}, {"seeds": 0}, {"jobs": 0}, {"requests": ["3 cows"]}]
)
def test_audits_are_refused_before_they_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        run_audits(**{"datasets": ["radial"], "settings": Settings(), **wrong})
