"""The verdicts on the paper's tables are those of the numbers in the CSV files."""

from __future__ import annotations

import io
import itertools
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from benchmarks import __main__ as cli
from benchmarks.paper import PAGE, VERDICTS_CSV, page
from benchmarks.paper_cells import AS_IN_PAPER, REFERENCE, RESULTS, SHORTER, compared
from benchmarks.paper_explanations import Evidence
from puma.errors import DataError

ROOT = Path(__file__).parents[2]
GROUP = ["table", "scenario", "dataset", "column"]


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    return compared(ROOT)


def test_the_committed_verdicts_are_those_of_the_files(cells: pd.DataFrame) -> None:
    again = pd.read_csv(io.StringIO(cells.to_csv(index=False)))
    pd.testing.assert_frame_equal(pd.read_csv(ROOT / VERDICTS_CSV), again, rtol=1e-9)
    assert (ROOT / PAGE).read_text() == page(Evidence.of(ROOT, RESULTS), VERDICTS_CSV, PAGE)


def test_every_number_of_the_three_tables_is_there(cells: pd.DataFrame) -> None:
    """PUMA's twice in Tables 1 and 2: as printed, and ours."""
    sizes = cells[cells["run"] != "puma"].groupby("table").size().to_dict()
    assert sizes == {1: 5 * 2 * 4 * 5, 2: 5 * 2 * 4 * 2, 3: 6 * 5}
    for table, name in ((1, "table1_accuracy_after_removal"), (2, "table2_membership_attack")):
        wide = pd.read_csv(ROOT / REFERENCE / f"{name}.csv")
        long = wide.melt(["scenario", "dataset", "method"])
        mine = cells[(cells["table"] == table) & (cells["run"] != "puma")]
        assert sorted([*mine["paper_mean"], *mine["paper_std"]]) == sorted(long["value"])
    assert (cells["reason"] != "")[cells["verdict"] == "cannot be compared"].all()


def test_accuracies_and_rates_are_means_over_the_seeds(cells: pd.DataFrame) -> None:
    """Worked out from the rows with numpy alone."""
    rows = pd.read_csv(ROOT / RESULTS / "removal.csv")
    names = {"Radial": "radial", "Rectangular": "rectangular", "German": "german_credit"}
    names["Breast Cancer"] = "breast_cancer"
    checked = 0
    for _, cell in cells[cells["table"].isin([1, 2]) & cells["our_mean"].notna()].iterrows():
        column = cell["column"]
        if not column.startswith("removed") and column != "after":
            continue
        mine = rows[(rows["dataset"] == names[cell["dataset"]]) & (rows["method"] == cell["run"])]
        if column == "after":
            values = mine[mine["scenario"] == "cluster"]["removed_rate"]
        else:
            share = float(column.removeprefix("removed")) / 100
            mine = mine[mine["scenario"] == cell["scenario"]]
            values = mine[np.isclose(mine["fraction"], share)]["accuracy"]
        if not len(values):
            continue  # of the runs as in the paper, which have a file of their own
        mean, std = 100 * np.mean(values), 100 * np.std(values, ddof=1)
        assert (cell["our_mean"], cell["our_std"]) == pytest.approx((mean, std))
        apart = abs(mean - cell["paper_mean"]) / np.sqrt(std**2 + cell["paper_std"] ** 2)
        assert cell["deviations_apart"] == pytest.approx(apart)
        assert (cell["verdict"] == "holds") == (apart <= 2)
        assert cell["our_runs"] == len(values) == 5
        checked += 1
    assert checked >= 2 * 4 * 4 * 3 + 2 * 4 * 3  # retraining and both PUMAs at least


def test_every_accuracy_after_a_removal_has_what_was_forgotten_beside_it(
    cells: pd.DataFrame,
) -> None:
    """Worked out from the rows of removal.csv; of the original nothing was removed."""
    rows = pd.read_csv(ROOT / RESULTS / "removal.csv").set_index(
        ["dataset", "scenario", "fraction", "method"]
    )
    known = cells[(cells["table"] == 1) & cells["our_mean"].notna()]
    after = known["column"].str.startswith("removed")
    beside = ["our_removed_rate", "our_unseen_rate", "our_loss_auc_gap"]
    assert known.loc[after, beside[:2]].notna().all(axis=None)
    assert known.loc[~after, beside].isna().all(axis=None)
    assert cells.loc[cells["table"] != 1, beside].isna().all(axis=None)
    german = known[after & (known["dataset"] == "German") & (known["run"] == "puma_paper")]
    assert len(german) == 8
    for _, cell in german.iterrows():
        share = int(cell["column"].removeprefix("removed")) / 100
        mine = rows.loc[("german_credit", cell["scenario"], share, "puma_paper")]
        removed, unseen, gap = (
            np.mean(mine[name])
            for name in ("removed_rate", "unseen_rate", "loss_auc_gap_to_retrain")
        )
        expected = (100 * removed, 100 * unseen, gap)
        assert tuple(cell[beside]) == pytest.approx(expected)
    text = (ROOT / PAGE).read_text().split("## Table 1, and what the methods forget")[1]
    assert text.count("| German | PUMA | puma_paper |") == 2


def test_the_order_is_tested_in_every_column(cells: pd.DataFrame) -> None:
    """By brute force over the pairs of the written numbers."""
    known = cells[cells["our_mean"].notna()]
    for _, puma in known[known["method"] == "PUMA"].iterrows():
        same = (known[GROUP] == puma[GROUP]).all(axis=1)
        group = known[same & ((known["method"] != "PUMA") | (known["run"] == puma["run"]))]
        kept = []
        for (_, one), (_, other) in itertools.combinations(group.iterrows(), 2):
            scores = [
                (one[f"{who}_mean"] - other[f"{who}_mean"])
                / max(np.hypot(one[f"{who}_std"], other[f"{who}_std"]), 1e-12)
                for who in ("paper", "our")
            ]
            if abs(scores[0]) > 2:
                kept.append(scores[0] * scores[1] > 0 and abs(scores[1]) > 2)
        assert puma["pattern"] == (all(kept) if kept else None)


def test_ratios_of_seconds_are_those_of_the_files(cells: pd.DataFrame) -> None:
    timed = pd.read_csv(ROOT / RESULTS / "debugging_runtime.csv")
    ratio = timed.set_index(["dataset", "method"])["ratio_to_psi"]
    mine = cells[cells["table"] == 3].set_index(["dataset", "method"])
    assert mine.loc[("Spiral", "RSP"), "our_mean"] == pytest.approx(ratio["spiral", "representer"])
    assert mine.loc[("Spiral", "RSP"), "paper_mean"] == pytest.approx(16.51 / 7.44)
    for dataset in ("Radial", "German Credit"):
        assert mine.loc[(dataset, "PUMA"), "verdict"] == "cannot be compared"
        assert "another machine" in mine.loc[(dataset, "PUMA"), "reason"]


def test_the_page_has_a_line_for_every_cell_that_is_far(cells: pd.DataFrame) -> None:
    far = cells[cells["deviations_apart"] > 2]
    text = (ROOT / PAGE).read_text()
    section = text.split("## More than 2 joint deviations apart")[1].split("## Not compared")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    written = [line for line in lines if line.rstrip(" |").endswith(("differs", "pattern holds"))]
    assert len(written) == len(far) > 20
    assert len(cells[cells["verdict"].isin(["differs", "pattern holds"])]) == len(far)


def test_fewer_epochs_explain_radial_where_they_hold(cells: pd.DataFrame) -> None:
    """By the means and deviations of the rows themselves."""
    rows = pd.read_csv(ROOT / RESULTS / SHORTER)
    text = (ROOT / PAGE).read_text()
    (sentence,) = (line for line in text.splitlines() if "With 15 in place of 50" in line)
    section = text.split(sentence)[1].split("\n\n")[1]
    radial = cells[(cells["table"] == 1) & (cells["dataset"] == "Radial")]
    far = radial[(radial["deviations_apart"] > 2) & (radial["run"] == "retrain")]
    assert list(far["column"]) == ["removed60", "removed80"] * 2
    for _, cell in far.iterrows():
        share = int(cell["column"].removeprefix("removed")) / 100
        mine = (rows["scenario"] == cell["scenario"]) & (rows["method"] == "retrain")
        values = 100 * rows[mine & (rows["fraction"] == share)]["accuracy"]
        mean, std = values.mean(), values.std()
        assert abs(mean - cell["paper_mean"]) <= 2 * np.hypot(std, cell["paper_std"])
        assert f"{mean:.1f} ± {std:.1f}" in sentence
        line = f"| {cell['scenario']} | Radial | {cell['column']} | Retrain Model |"
        assert section.count(line) == 1


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the files that are compared."""
    for folder in (RESULTS, REFERENCE):
        (tmp_path / folder).mkdir(parents=True)
        for path in (ROOT / folder).glob("*.csv"):
            shutil.copy(path, tmp_path / folder)
    return tmp_path


def test_what_was_not_run_says_so_and_what_was_is_compared(project: Path) -> None:
    as_in_paper = project / RESULTS / AS_IN_PAPER
    as_in_paper.unlink(missing_ok=True)
    where = {"table": 1, "scenario": "random", "dataset": "German", "column": "removed20"}

    def found() -> pd.Series:
        cells = compared(project)
        mine = (cells[list(where)] == pd.Series(where)).all(axis=1)
        return cells[mine & (cells["method"] == "Amnesiac ML")].iloc[0]

    before = found()
    assert before["verdict"] == "cannot be compared"
    assert "removals --methods amnesiac_unrepaired" in before["reason"]
    rows = pd.read_csv(project / RESULTS / "removal.csv")
    mine = (rows["dataset"] == "german_credit") & (rows["scenario"] == "random")
    new = rows[mine & (rows["fraction"] == 0.2) & (rows["method"] == "amnesiac")].head(2)
    new = new.assign(method="amnesiac_unrepaired", accuracy=[0.3, 0.5])
    new.to_csv(as_in_paper, index=False)
    # 40 ± 14.14 against 36.24 ± 7.50: 3.76 / 16.01.
    after = found()
    assert after["deviations_apart"] == pytest.approx(0.2349, abs=1e-4)
    assert after["verdict"] == "holds"


def test_a_missing_table_is_named(project: Path) -> None:
    (project / REFERENCE / "table2_membership_attack.csv").unlink()
    with pytest.raises(DataError, match=r"table2_membership_attack\.csv"):
        compared(project)


def test_another_folder_has_verdicts_of_its_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the profile quick: two seeds, and nothing but its folder is written."""
    folder = Path("paper") / "results" / "quick"
    shutil.copytree(project / RESULTS, project / folder)
    for name in ("removal.csv", AS_IN_PAPER, SHORTER, "step_size.csv"):
        rows = pd.read_csv(project / folder / name)
        rows[rows["seed"] < 2].to_csv(project / folder / name, index=False)
    (project / "params.yaml").touch()
    monkeypatch.chdir(project)
    done = CliRunner().invoke(cli.app, ["paper", "--results", str(folder)])
    assert done.exit_code == 0, done.output
    assert not (project / PAGE).exists()
    assert not (project / VERDICTS_CSV).exists()
    written = pd.read_csv(project / folder / "verdicts.csv")
    pd.testing.assert_frame_equal(
        written, pd.read_csv(io.StringIO(compared(project, folder).to_csv(index=False))), rtol=1e-9
    )
    assert set(written.loc[written["table"] != 3, "our_runs"].dropna()) == {2}
    text = (project / folder / "paper.md").read_text()
    assert "ours: 2 seeds" in text
    assert "from the CSV files in `paper/results/quick/`" in text
