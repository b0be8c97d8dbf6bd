from __future__ import annotations

import json
from collections import Counter

import pytest

from puma.cli.tables import number, print_json, print_side_by_side, print_table
from puma.project.workspace import Workspace
from tests.command import puma
from tests.registry.fixtures import _default_store, filled, template
from tests.registry.projects import DATASET, DELETION

__all__ = ["_default_store", "filled", "template"]

WIDTHS = (30, 40, 60, 80, 120)


def test_a_table_shows_what_looks_like_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("versions", ("method",), [["[/x]"]])
    assert "[/x]" in capsys.readouterr().out


def test_json_has_numbers_in_full_and_null_for_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({"third": 1 / 3, "lost": [float("nan"), (float("inf"),)], "none": None})
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown == {"third": 1 / 3, "lost": [None, [None]], "none": None}


@pytest.mark.parametrize("width", ["0", "1", "-5", "wide", ""])
def test_a_terminal_of_no_width_still_gets_every_cell(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    print_table("numbers", ("name", "value"), [["one", "0.123"]])
    assert {"numbers", "one", "0.123"} <= {*capsys.readouterr().out.split()}


@pytest.mark.parametrize("width", [60, 40, 30])
def test_a_table_that_is_too_wide_breaks_the_columns_that_may_be_broken(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    cells = ["exactly as it is", "some words that can go on", "0.123"]
    print_table("numbers", ("name", "words", "value"), [cells], wrapped=("words",))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    row = [line.split("  ") for line in lines[3:] if line.strip()]
    assert row[0][0] == cells[0]
    assert row[0][-1].strip() == cells[2]
    heading = lines[1]
    place = slice(heading.index("words"), heading.index("value"))
    assert " ".join("".join(line[place]).strip() for line in lines[3:]).split() == (
        cells[1].split()
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_cut_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    names = [f"number_{column}" for column in range(9)]
    lines = [[f"{1000 * row + column}.123456" for column in range(9)] for row in range(3)]
    numbers = Counter(cell for line in lines for cell in line)
    for show in (print_table, print_side_by_side):
        show("numbers", names, lines)
        words = Counter(capsys.readouterr().out.split())
        assert all(words[cell] >= times for cell, times in numbers.items())


@pytest.mark.parametrize("width", WIDTHS)
def test_versions_and_compare_show_every_number_at_any_width(
    filled: Workspace, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rows = json.loads(puma(filled.root, "versions", DATASET, "--json").stdout)
    listed = puma(filled.root, "versions", DATASET).stdout
    compared = puma(filled.root, "compare", DATASET).stdout
    for shown in (listed, compared):
        assert max(map(len, shown.splitlines())) <= width
    of_list = Counter(listed.replace("no.", "").split())
    of_table = Counter(compared.split())
    for row in rows:
        assert of_list[str(row["version"])] >= 1
        assert of_list[str(row["n_removed"])] >= 1
        assert of_list[number(row["metrics"]["runtime_seconds"])] >= 1
        for name in ("accuracy", "attack_rate", "runtime_seconds"):
            assert of_table[number(row["metrics"][name])] >= 1
    accuracies = Counter(number(row["metrics"]["accuracy"]) for row in rows)
    assert accuracies <= of_list
    assert of_list[DELETION[:8]] == 2


def test_a_value_that_does_not_fit_beside_its_name_follows_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    print_table("t", ("name", "value"), [["attack_auc", "-0.1234567"]])
    assert capsys.readouterr().out == "t\nname\n  attack_auc\nvalue:\n  -0.1234567\n\n"
