"""What the commands print: tables, or everything as JSON."""

from __future__ import annotations

import json
import math
import textwrap
from typing import TYPE_CHECKING

from puma.html_table import in_words, short_number
from puma.lineage.records import HEADLINE_METRICS, PRESERVED

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from puma.registry import RegisteredVersion

DIGEST_DIGITS = 8  # of a digest, in a table
GAP = 2  # characters between two columns


def print_json(content: object) -> None:
    """Print one JSON document, for scripts: numbers in full, null for what is missing.

    NaN and infinity, which JSON does not have, are missing numbers.
    """
    print(json.dumps(_finite(content), indent=2, allow_nan=False))


def _finite(content: object) -> object:
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content


def print_table(
    title: str,
    columns: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    wrapped: Collection[str] = (),
) -> None:
    """Print a table, or a block per line where the terminal is too narrow for the table.

    No cell is ever cut. The ``wrapped`` columns may be broken between words.
    """
    from rich.console import Console

    width = Console().width
    _print_title(title, width)
    widths = _widths(columns, lines, wrapped, width)
    if widths is None:
        _print_blocks(columns, lines, width)
    else:
        _print_grid(columns, lines, widths)


def print_side_by_side(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print what the ``columns`` after the first have in common, as many of them as fit.

    The others follow in further tables. Where not one fits, each column becomes a block.
    """
    from rich.console import Console

    width = Console().width
    _print_title(title, width)
    start = 1
    while start < len(columns):
        for end in range(len(columns), start, -1):
            names = [columns[0], *columns[start:end]]
            cells = [[line[0], *line[start:end]] for line in lines]
            widths = _widths(names, cells, names[1:], width)
            if widths is not None:
                _print_grid(names, cells, widths)
                break
        else:
            end = len(columns)
            blocks = [[each[start] for each in (columns, *lines)] for start in range(start, end)]
            _print_blocks([columns[0], *(line[0] for line in lines)], blocks, width)
        start = end


def _widths(
    columns: Sequence[str],
    lines: Sequence[Sequence[str]],
    wrapped: Collection[str],
    width: int,
) -> list[int] | None:
    """Of each column, so that no word is broken; None if ``width`` is too little for that."""
    from rich.cells import cell_len

    cells = list(zip(columns, *lines, strict=True))
    widths = [max(map(cell_len, column)) for column in cells]
    least = [
        max((cell_len(word) for cell in column for word in cell.split()), default=0)
        if name in wrapped
        else full
        for name, column, full in zip(columns, cells, widths, strict=True)
    ]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        give_way = [at for at, each in enumerate(widths) if each > least[at]]
        if not give_way:
            return None
        widths[max(give_way, key=widths.__getitem__)] -= 1
    return widths


def _print_title(title: str, width: int) -> None:
    print("\n".join(_broken(title, width)))


def _print_grid(
    columns: Sequence[str], lines: Sequence[Sequence[str]], widths: Sequence[int]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    for column, width in zip(columns, widths, strict=True):
        table.add_column(Text(column), width=width, overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))  # a tag made by hand may look like markup
    console = Console()
    console.print(table)
    console.print()


def _print_blocks(columns: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> None:
    """A block per line: its first cell, then `column: cell` for the others."""
    for first, *others in lines:
        print("\n".join(_broken(f"{columns[0]} {first}".strip(), width)))
        for name, cell in zip(columns[1:], others, strict=True):
            print("\n".join(_broken(f"{name}: {cell}", width)))
        print()


def _broken(text: str, width: int) -> list[str]:
    """The text in lines, broken between words alone: a number is never taken apart."""
    return textwrap.wrap(
        text, max(width, 1), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def version_cells(row: RegisteredVersion) -> list[str]:
    """The cells of one line of `puma versions`."""
    return [
        str(row.version),
        row.method,
        _aliases(row),
        "-" if row.parent_version is None else str(row.parent_version),
        str(row.n_removed),
        "-" if row.deletion_digest is None else row.deletion_digest[:DIGEST_DIGITS],
        number(row.metrics.get("accuracy", row.metrics.get("test_r2"))),
        _verdict(row.verdict),
        number(row.metrics.get("runtime_seconds")),
    ]


def _aliases(row: RegisteredVersion) -> str:
    """The aliases of a version, and the version that superseded it."""
    forced = " (forced)" if row.forced else ""
    words = [alias + forced if alias == "champion" else alias for alias in row.aliases]
    if row.superseded_by is not None and "champion" not in row.aliases:
        words.append(f"superseded by {row.superseded_by}")
    return ", ".join(words) or "-"


def print_comparison(title: str, rows: Sequence[RegisteredVersion]) -> None:
    """Print versions side by side: a column per version, a line per number that one of them has."""
    named = {name for row in rows for name in row.metrics}
    preserved = sorted(
        name for name in named if name.startswith(PRESERVED) and name.endswith("_drift")
    )
    lines = [
        [
            "made from",
            *("-" if row.parent_version is None else f"{row.parent_version}" for row in rows),
        ],
        ["removed rows", *(str(row.n_removed) for row in rows)],
        ["verdict", *(_verdict(row.verdict) for row in rows)],
        *(
            [name, *(number(row.metrics.get(name)) for row in rows)]
            for name in (*HEADLINE_METRICS, *preserved)
        ),
    ]
    kept = [line for line in lines if set(line[1:]) != {"-"}]
    columns = [f"{row.version} {row.method}" for row in rows]
    print_side_by_side(title, ["", *columns], kept)


def _verdict(verdict: str | None) -> str:
    return "-" if verdict is None else in_words(verdict)


def number(value: float | None) -> str:
    """:func:`puma.html_table.short_number`, with the sign of the terminal's tables for nothing."""
    return "-" if value is None else short_number(value)
