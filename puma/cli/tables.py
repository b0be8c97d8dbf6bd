"""Versions as tables: one a line, or side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from puma.cli.console import print_table
from puma.lineage.records import HEADLINE_METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from puma.registry import RegisteredVersion

SHOWN_DIGITS = 8  # of a digest, in a table


def listed(row: RegisteredVersion) -> list[str]:
    """The cells of a line of `puma versions`."""
    return [
        str(row.version),
        row.method,
        _standing(row),
        "-" if row.parent_version is None else str(row.parent_version),
        str(row.n_removed),
        "-" if row.deletion_digest is None else row.deletion_digest[:SHOWN_DIGITS],
        shown(row.metrics.get("accuracy")),
        _words(row.verdict),
        shown(row.metrics.get("runtime_seconds")),
    ]


def _standing(row: RegisteredVersion) -> str:
    """Its aliases, and what became of it as the one that served."""
    forced = " (forced)" if row.forced else ""
    words = [alias + forced if alias == "champion" else alias for alias in row.aliases]
    if row.superseded_by is not None and "champion" not in row.aliases:
        words.append(f"superseded by {row.superseded_by}")
    return ", ".join(words) or "-"


def print_comparison(title: str, rows: Sequence[RegisteredVersion]) -> None:
    """One column a version, one line a number that any of them has."""
    lines = [
        [
            "made from",
            *("-" if row.parent_version is None else f"{row.parent_version}" for row in rows),
        ],
        ["removed rows", *(str(row.n_removed) for row in rows)],
        ["verdict", *(_words(row.verdict) for row in rows)],
        *([name, *(shown(row.metrics.get(name)) for row in rows)] for name in HEADLINE_METRICS),
    ]
    kept = [line for line in lines if set(line[1:]) != {"-"}]
    columns = tuple(f"{row.version} {row.method}" for row in rows)
    print_table(title, ("", *columns), kept, wrapped=columns)


def _words(verdict: str | None) -> str:
    """With spaces, where a narrow column may break it."""
    return "-" if verdict is None else verdict.replace("_", " ")


def shown(value: float | None) -> str:
    """Three decimals, or more where there are only zeros in them."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"
