from __future__ import annotations

import pytest

from puma.cli.tables import print_table


def test_a_table_shows_what_looks_like_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("versions", ("method",), [["[/x]"]])
    assert "[/x]" in capsys.readouterr().out


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
