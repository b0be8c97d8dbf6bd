"""The verdicts on the paper's tables are those of the numbers in the CSV files."""

from __future__ import annotations

import io
import itertools
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.label_errors_tables import read_runtime
from benchmarks.paper import PAGE, VERDICTS_CSV, Evidence, page
from benchmarks.paper_cells import AS_IN_PAPER, REFERENCE, RESULTS, compared
from benchmarks.tables import read
from puma.errors import DataError

ROOT = Path(__file__).parents[2]
GROUP = ["table", "scenario", "dataset", "column"]


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    return compared(ROOT)


def test_the_committed_verdicts_are_those_of_the_files(cells: pd.DataFrame) -> None:
    again = pd.read_csv(io.StringIO(cells.to_csv(index=False)))
    pd.testing.assert_frame_equal(pd.read_csv(ROOT / VERDICTS_CSV), again, rtol=1e-9)
    evidence = Evidence(
        cells,
        read(ROOT / RESULTS / "removal.csv"),
        read_runtime(ROOT / RESULTS / "debugging_runtime.csv"),
    )
    assert (ROOT / PAGE).read_text() == page(evidence)


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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the files that are compared."""
    for folder in (RESULTS, REFERENCE):
        (tmp_path / folder).mkdir(parents=True)
        for path in (ROOT / folder).glob("*.csv"):
            shutil.copy(path, tmp_path / folder)
    return tmp_path


def test_what_was_not_run_says_so_and_what_was_is_compared(project: Path) -> None:
    (project / AS_IN_PAPER).unlink(missing_ok=True)
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
    new.to_csv(project / AS_IN_PAPER, index=False)
    # 40 ± 14.14 against 36.24 ± 7.50: 3.76 / 16.01.
    after = found()
    assert after["deviations_apart"] == pytest.approx(0.2349, abs=1e-4)
    assert after["verdict"] == "holds"


def test_a_missing_table_is_named(project: Path) -> None:
    (project / REFERENCE / "table2_membership_attack.csv").unlink()
    with pytest.raises(DataError, match=r"table2_membership_attack\.csv"):
        compared(project)
