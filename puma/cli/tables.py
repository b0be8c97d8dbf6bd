"""What the commands print as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from puma.lineage.records import HEADLINE_METRICS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from puma.registry import RegisteredVersion

DIGEST_DIGITS = 8  # of a digest, in a table


def print_table(
    title: str,
    columns: tuple[str, ...],
    lines: list[list[str]],
    *,
    wrapped: Collection[str] = (),
) -> None:
    """Print a table. The ``wrapped`` columns give way where the terminal is too narrow."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column not in wrapped)
    for line in lines:
        table.add_row(*map(escape, line))  # a tag made by hand may look like markup
    console = Console()
    console.print(table)
    console.print()


def version_cells(row: RegisteredVersion) -> list[str]:
    """The cells of one line of `puma versions`."""
    return [
        str(row.version),
        row.method,
        _aliases(row),
        "-" if row.parent_version is None else str(row.parent_version),
        str(row.n_removed),
        "-" if row.deletion_digest is None else row.deletion_digest[:DIGEST_DIGITS],
        number(row.metrics.get("accuracy")),
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
    lines = [
        [
            "made from",
            *("-" if row.parent_version is None else f"{row.parent_version}" for row in rows),
        ],
        ["removed rows", *(str(row.n_removed) for row in rows)],
        ["verdict", *(_verdict(row.verdict) for row in rows)],
        *([name, *(number(row.metrics.get(name)) for row in rows)] for name in HEADLINE_METRICS),
    ]
    kept = [line for line in lines if set(line[1:]) != {"-"}]
    columns = tuple(f"{row.version} {row.method}" for row in rows)
    print_table(title, ("", *columns), kept, wrapped=columns)


def _verdict(verdict: str | None) -> str:
    """With spaces, so that a narrow column may break it."""
    return "-" if verdict is None else verdict.replace("_", " ")


def number(value: float | None) -> str:
    """Three decimals; scientific notation where these would all be zero."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"
