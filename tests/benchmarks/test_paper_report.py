"""The report's tables show the cells, and its pictures are those that were saved."""

from __future__ import annotations

from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import papermill
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from papermill.exceptions import PapermillExecutionError

from benchmarks.paper_cells import compared
from benchmarks.paper_report import DEMONSTRATIONS, SHADES, beside, picture, pictures, question
from puma.errors import DataError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cells() -> pd.DataFrame:
    return compared(ROOT)


@pytest.mark.parametrize(
    ("table", "scenario", "shape"),
    # The columns of Table 1: two of the original, and three of every share.
    [(1, "random", (25, 2 + 4 * 3)), (2, "ordered", (25, 4)), (3, "", (6, 10))],
)
def test_every_number_is_in_its_place(
    cells: pd.DataFrame, table: int, scenario: str, shape: tuple[int, int]
) -> None:
    shown = beside(cells, table, scenario)
    assert shown.data.shape == shape
    mine = cells[(cells["table"] == table) & (cells["scenario"] == scenario)]
    for _, cell in mine.iterrows():
        if table == 3:
            rows = shown.data.loc[[cell["dataset"]]]
            column = f"{cell['method']} ({cell['run']})"
        else:
            names = shown.data.index.to_frame()
            same = (names["dataset"] == cell["dataset"]) & (names["method"] == cell["method"])
            if cell["method"] == "PUMA":
                same &= names["ours is"] == cell["run"]
            rows = shown.data[same]
            share = cell["column"].removeprefix("removed")
            column = f"{share} % removed" if share.isdigit() else cell["column"]
        assert len(rows) == 1
        row = rows.iloc[0]
        digits = 2 if table == 3 else 1
        paper, deviation = (round(cell[f"paper_{name}"], digits) for name in ("mean", "std"))
        assert row[column, "paper"] == f"{paper:.{digits}f} ± {deviation:.{digits}f}"
        if pd.notna(cell["our_mean"]):
            assert row[column, "ours"].startswith(f"{cell['our_mean']:.{digits}f} ± ")
        else:
            assert row[column, "ours"] == "–"


def test_a_cell_is_shaded_by_its_verdict(cells: pd.DataFrame) -> None:
    html = beside(cells, 3).to_html()
    # 24 that differ and 6 of PUMA, the unit.
    assert set(cells.loc[cells["table"] == 3, "verdict"]) == {"differs", "cannot be compared"}
    assert html.count(SHADES["differs"]) == html.count(SHADES["cannot be compared"]) == 1
    assert SHADES["holds"] not in html


def test_no_such_cells(cells: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="table 3 and scenario 'ordered'"):
        beside(cells, 3, "ordered")


def test_a_demonstration_without_a_picture_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "dessert").mkdir()
    with pytest.raises(DataError, match=r"run notebooks/paper/dessert\.ipynb"):
        pictures(tmp_path, "dessert")
    for name in ("b.png", "a.png"):
        (tmp_path / "dessert" / name).touch()
    assert [path.name for path in pictures(tmp_path, "dessert")] == ["a.png", "b.png"]


@pytest.mark.parametrize("name", DEMONSTRATIONS)
def test_a_demonstration_is_headed_by_its_question(name: str) -> None:
    title, asked = question(ROOT / "notebooks" / "paper" / f"{name}.ipynb").split("\n\n")
    assert title.startswith("### ")
    assert asked.startswith("**Question: ")
    with pytest.raises(DataError, match="cannot be read"):
        question(ROOT / "notebooks" / "paper" / "nothing.ipynb")


def test_a_picture_is_smaller_and_looks_the_same(tmp_path: Path) -> None:
    path = ROOT / "docs" / "results" / "debugging.png"
    small = picture(path, "curves").data
    assert len(small) < 0.6 * path.stat().st_size
    (tmp_path / "small.png").write_bytes(small)
    before, after = (imread(each)[..., :3] for each in (path, tmp_path / "small.png"))
    assert before.shape == after.shape
    assert np.abs(before - after).mean() < 0.01


def execute(folder: Path) -> nbformat.NotebookNode:
    """The report on docs/results/, with the demonstrations' pictures of ``folder``."""
    return papermill.execute_notebook(
        ROOT / "notebooks" / "paper" / "report.ipynb",
        folder / "report.ipynb",
        parameters={"demonstrations": str(folder)},
        kernel_name="python3",
        cwd=ROOT,
        progress_bar=False,
    )


@pytest.mark.slow
def test_the_report_opens_with_the_verdicts_and_has_every_picture(tmp_path: Path) -> None:
    for name in DEMONSTRATIONS:
        (tmp_path / name).mkdir()
        Figure(figsize=(1, 1)).savefig(tmp_path / name / "1.png")
    done = execute(tmp_path)
    outputs = [each for cell in done.cells for each in cell.get("outputs", [])]
    shown = [output["data"] for output in outputs if "data" in output]
    assert shown[0]["text/markdown"].startswith("## Counts\n\n| table | method |")
    assert sum("image/png" in each for each in shown) == 4 + len(DEMONSTRATIONS)
    assert not [output for output in outputs if output.get("name") == "stderr"]
    (tmp_path / "dessert" / "1.png").unlink()
    with pytest.raises(PapermillExecutionError, match=r"run notebooks/paper/dessert\.ipynb"):
        execute(tmp_path)
