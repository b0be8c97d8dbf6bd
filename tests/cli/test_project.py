"""``puma init``: what it says, and that a refusal writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from puma.project.workspace import Workspace
from puma.settings import SourceSettings
from tests.command import puma

OPTIONS = ("--data", "churn.csv", "--target", "churned", "--subject", "customer id")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [f"p{row // 2},{row % 7},{'yes' if row % 3 else 'no'}" for row in range(60)]
    short = ["customer id,visits,churned", *rows]
    long = ["note" if row == 0 else f"remark {row}" for row in range(61)]
    text = "\n".join(f"{line},{note}" for line, note in zip(short, long, strict=True))
    (tmp_path / "churn.csv").write_text(text)
    (tmp_path / "short.csv").write_text("\n".join(short))
    (tmp_path / "digits.csv").write_text(text)
    (tmp_path / "bare.csv").write_text("Anna,5,yes\n")
    (tmp_path / "header.csv").write_text(short[0])
    (tmp_path / "alike.csv").write_text("\n".join(short).replace("yes", "no"))
    (tmp_path / "few.csv").write_text("\n".join(short[:4]))
    (tmp_path / "ragged.csv").write_text("\n".join([*short, "Anna"]))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    return tmp_path


def test_a_project_on_a_dataset_that_comes_with_puma(folder: Path) -> None:
    done = puma(folder, "init", "project")
    assert done.exit_code == 0
    assert "project: a project on german_credit, which comes with PUMA" in done.stdout
    assert "  cd project\n  dvc repro " in done.stdout
    assert "  puma compare german_credit\n" in done.stdout
    assert Workspace(folder / "project").settings.datasets == ("german_credit",)
    as_json = json.loads(puma(folder, "init", "other", "--json").stdout)
    assert as_json == {
        **dict.fromkeys(("table", "rows", "people", "test_rows", "columns", "to_correct")),
        **{"folder": "other", "dataset": "german_credit"},
    }


def test_a_project_on_a_table(folder: Path) -> None:
    command = ("init", "project", "--data", "short.csv", "--target", "churned")
    done = puma(folder, *command, "--subject", "customer id", "--task", "classification")
    assert done.exit_code == 0, done.output
    assert "project: a project on short; short.csv is copied to data/short.csv" in done.stdout
    assert "60 rows of 30 people, " in done.stdout
    for column in ("customer id", "visits", "churned"):
        assert column in done.stdout
    assert "puma compare short" in done.stdout
    assert Workspace(folder / "project").settings.sources == {
        "short": SourceSettings(path="data/short.csv", target="churned", subject="customer id")
    }
    as_json = json.loads(puma(folder, "init", "other", *command[2:], "--json").stdout)
    columns = {each["column"]: each for each in as_json["columns"]}
    assert (as_json["table"], as_json["rows"], as_json["people"]) == ("data/short.csv", 60, 60)
    assert columns["visits"]["distinct"] == 7
    assert columns["churned"]["type"] == "target"


def test_a_table_that_settings_have_to_say_more_about(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "churn.csv").write_bytes((folder / "churn.csv").read_bytes())
    for path in folder.iterdir():
        if path.name not in ("data", "full"):
            path.unlink()
    (folder / "full" / "mine.txt").unlink()
    (folder / "full").rmdir()
    done = puma(folder, "init", ".", "--data", "data/churn.csv", *OPTIONS[2:4])
    assert done.exit_code == 1
    assert "data/churn.csv stays where it is" in done.stdout
    assert "every row is its own person, row-1" in done.stdout
    assert "column 'note' has 60 different texts in 60 rows" in done.stderr
    assert "correct sources.churn in params.yaml, or the table data/churn.csv" in done.stdout
    assert "  cd " not in done.stdout
    assert Workspace(folder).settings.sources["churn"].path == "data/churn.csv"
    again = puma(folder, "init", "other", "--data", "data/churn.csv", *OPTIONS[2:4], "--json")
    as_json = json.loads(again.stdout)
    assert (again.exit_code, as_json["columns"]) == (1, None)
    assert "column 'note' has 60 different texts" in as_json["to_correct"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("full",), r"full is not empty: 'mine.txt' is in the way, and nothing was written"),
        (("full", *OPTIONS), "full is not empty: 'mine.txt' is in the way"),
        (("x", "--data", "no.csv", "--target", "y"), "no.csv: no such file; --data names a CSV"),
        (("x", "--data", "full", "--target", "y"), "full: is a folder; --data names a CSV"),
        (("x", *OPTIONS[:2]), "--data churn.csv needs --target, the column that is to be"),
        (("x", *OPTIONS[:2], "--subject", "note"), "--data churn.csv needs --target"),
        (("x", *OPTIONS[2:]), "--target, --subject tells of a table; name it, too: --data FILE"),
        (
            ("x", *OPTIONS[:3], "churnd", *OPTIONS[4:]),
            "churn.csv: no column 'churnd' (nearest: 'churned'); the table has 4: 'customer id', "
            "'visits', 'churned', 'note'. Spell them as the table does",
        ),
        (
            ("x", *OPTIONS[:5], "who"),
            "churn.csv: no column 'who'; the table has 4: 'customer id', 'visits', 'churned', ",
        ),
        (
            ("x", "--data", "bare.csv", "--target", "y"),
            "bare.csv: none of the columns 'y' is in the first line, which has 3 cells",
        ),
        (("x", *OPTIONS[:4], "--subject", "churned"), "'churned': a column is named once"),
        (("x", *OPTIONS, "--task", "ranking"), "task: Input should be 'classification'"),
        (("x", "--data", "header.csv", *OPTIONS[2:]), "header.csv: the table has no rows below"),
        (("x", "--data", "alike.csv", *OPTIONS[2:]), "the target has one value in all 60 rows"),
        (("x", "--data", "few.csv", *OPTIONS[2:]), "the target has 2 values in 3 rows, too many"),
        (("x", "--data", "ragged.csv", *OPTIONS[2:]), "row 62 has 1 cells, but the header (row 1"),
        (
            ("x", "--data", "short.csv", "--target", "customer id"),
            "dataset 'short' has no split with data.test_fraction 0.25",
        ),
        (
            ("x", "--data", "digits.csv", *OPTIONS[2:]),
            "called 'digits', after digits.csv: that is a dataset of PUMA; rename the file",
        ),
    ],
)
def test_a_refusal_writes_nothing(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    done = puma(folder, "init", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert "Anna" not in done.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("options", [(), ("--target", "y")])
def test_a_terminal_shows_which_columns_there_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr("puma.cli.project.may_show_ids", lambda _: True)
    done = puma(folder, "init", "x", "--data", "bare.csv", *options)
    assert done.exit_code == 2
    assert "puma: the first line of bare.csv: 'Anna', '5', 'yes'\n" in done.stderr
