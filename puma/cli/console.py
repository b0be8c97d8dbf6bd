"""What the commands print."""

from __future__ import annotations

from collections.abc import Collection


def print_table(
    title: str,
    columns: tuple[str, ...],
    lines: list[list[str]],
    *,
    wrapped: Collection[str] = (),
) -> None:
    """A table on standard output; the ``wrapped`` columns give way where it is too narrow."""
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
