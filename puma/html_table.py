"""Results as tables: HTML with everything escaped; and numbers, counts and verdicts in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(
    title: str, lines: Iterable[Sequence[object]], *, columns: Sequence[object] = ()
) -> str:
    """Return an HTML table whose first column names the lines.

    Args:
        title: Above the table.
        lines: The cells of each line, from its name on.
        columns: The heads of the columns, that of the names included; empty for none.
    """
    head = _line("th", "th", columns) if columns else ""
    body = "".join(_line("th", "td", line) for line in lines)
    caption = f'<caption style="text-align: left">{escape(title)}</caption>'
    return f"<table>{caption}{head}{body}</table>"


def short_number(value: float | None) -> str:
    """Three decimals; scientific notation where these would all be zero; a dash for nothing."""
    if value is None:
        return "–"
    return f"{value:.3f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``1 row``, ``2 rows``; ``plural`` where it is more than an s."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def rows_of_people(rows: int, people: int, *, noun: str = "row") -> str:
    """``2 rows of 1 person``."""
    return f"{counted(rows, noun)} of {counted(people, 'person', 'people')}"


def in_words(verdict: str | None) -> str:
    """With spaces, so that a narrow column may break it; a dash for nothing."""
    return "–" if verdict is None else verdict.replace("_", " ")


def _line(first: str, others: str, cells: Sequence[object]) -> str:
    kinds = [first, *[others] * (len(cells) - 1)]
    return (
        "<tr>"
        + "".join(
            f'<{kind} style="text-align: left">{escape(str(cell))}</{kind}>'
            for kind, cell in zip(kinds, cells, strict=True)
        )
        + "</tr>"
    )
