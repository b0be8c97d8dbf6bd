"""What a notebook shows of a result."""

from __future__ import annotations

from xml.etree import ElementTree

from puma.html_table import counted, html_table, rows_of_people, short_number


def cells(html: str) -> list[list[str]]:
    """Of every line, read by a parser of XML: what is not escaped is an error or an element."""
    table = ElementTree.fromstring(html)
    assert {each.tag for each in table.iter()} <= {"table", "caption", "tr", "th", "td"}
    return [[cell.text or "" for cell in line] for line in table.iter("tr")]


def test_everything_is_escaped():
    html = html_table(
        "<b>title</b> & more", [("<script>", '"&'), (1.5, None)], columns=("<i>", "a")
    )
    assert cells(html) == [["<i>", "a"], ["<script>", '"&'], ["1.5", "None"]]
    assert ElementTree.fromstring(html)[0].text == "<b>title</b> & more"


def test_lines_begin_with_their_name():
    table = ElementTree.fromstring(html_table("t", [("name", "a", "b")]))
    assert [cell.tag for cell in table[1]] == ["th", "td", "td"]


def test_numbers_are_short_and_never_round_to_nothing():
    assert [short_number(value) for value in (0.75249, 0.0, -0.0004, 12.0, None)] == [
        "0.752",
        "0.000",
        "-4.0e-04",
        "12.000",
        "–",
    ]


def test_one_is_counted_in_the_singular() -> None:
    assert [counted(count, "row") for count in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert [counted(count, "person", "people") for count in (1, 6)] == ["1 person", "6 people"]
    assert rows_of_people(2, 1) == "2 rows of 1 person"
    assert rows_of_people(1, 2, noun="training row") == "1 training row of 2 people"
