"""The chart of a model's versions, logged with each of them: that of the newest shows them all.

It is SVG, written by hand: MLflow's UI shows that, and no drawing library has to be imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from puma.html_table import in_words
from puma.lineage.records import ModelRecord
from puma.registry.versions import list_versions

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHART = "versions.svg"
MOST = 40  # versions, so that the chart can be read
HEAD, LINE = 64, 26  # heights (pixels) of what is above the first version, and of each version
NAME, TEXT = 170, 330  # widths (pixels) of the names, and of names and verdicts
PANEL, BAR = 210, 130  # widths (pixels) of a panel and of its longest bar
BLUE, ORANGE, GREY = "#4c78a8", "#f58518", "#555"


class Row(NamedTuple):
    """What the chart shows of one version.

    Attributes:
        name: Its number and its method.
        verdict: Of its audit; None if it was not audited.
        metrics: In the units of their names.
    """

    name: str
    verdict: str | None
    metrics: Mapping[str, float]


def log_chart(
    client: MlflowClient, run_id: str, record: ModelRecord, version: int | None = None
) -> None:
    """Log the chart beside the run of a version; it replaces an earlier one.

    Args:
        client: The store.
        run_id: The run of the version.
        record: What the version is and what was measured of it.
        version: Its number; None while it has none, because it is registered last.
    """
    rows = {
        each.version: Row(f"{each.version} {each.method}", each.verdict, each.metrics)
        for each in list_versions(client, record.dataset)
    }
    name = f"this: {record.method}" if version is None else f"{version} {record.method}"
    last = max(rows, default=0) + 1
    rows[version or last] = Row(name, record.verdict, record.metrics)
    client.log_text(run_id, draw(f"Versions of {record.dataset}", list(rows.values())), CHART)


def draw(title: str, rows: Sequence[Row]) -> str:
    """Draw the accuracy, the attack rate and the runtime of each version as bars.

    Args:
        title: Above the bars.
        rows: Oldest first. Of more than :data:`MOST`, the newest are drawn.

    Returns:
        An SVG document. What was not measured is a dash.
    """
    shown = rows[-MOST:]
    if len(shown) < len(rows):
        title += f": the newest {len(shown)} of {len(rows)}"
    regression = any("test_r2" in row.metrics for row in shown)
    panels = [
        ("test_r2", "R² (test)") if regression else ("accuracy", "accuracy (test)"),
        ("attack_rate", "attack rate (| unseen rows)"),
        ("runtime_seconds", "runtime (seconds)"),
    ]
    slowest = max((row.metrics.get("runtime_seconds", 0.0) for row in shown), default=0.0)
    parts = [_text(8, 22, title, size=16)]
    parts += [_text(_left(at), 48, words, fill=GREY) for at, (_, words) in enumerate(panels)]
    for place, row in enumerate(shown):
        middle = HEAD + LINE * place + LINE // 2
        parts += [_text(8, middle + 5, row.name), _text(NAME, middle + 5, in_words(row.verdict))]
        for at, (name, _) in enumerate(panels):
            value = row.metrics.get(name)
            whole = slowest if name == "runtime_seconds" else 1.0
            colour = ORANGE if name == "attack_rate" else BLUE
            parts.append(_bar(_left(at), middle, value, whole, colour))
        unseen = row.metrics.get("attack_rate_unseen")
        if unseen is not None:
            x = _left(1) + BAR * unseen
            parts.append(f'<path d="M{x:.1f} {middle - 10}v20" stroke="#000" stroke-width="2"/>')
    width, height = TEXT + PANEL * len(panels), HEAD + LINE * len(shown) + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _left(panel: int) -> int:
    return TEXT + PANEL * panel


def _bar(left: int, middle: int, value: float | None, whole: float, colour: str) -> str:
    """A bar and its number; a negative R² has no length."""
    length = 0.0 if value is None or whole <= 0 else BAR * min(max(value / whole, 0.0), 1.0)
    number = "–" if value is None else f"{value:.3g}"
    return (
        f'<rect x="{left}" y="{middle - 8}" width="{length:.1f}" height="16" fill="{colour}"/>'
        + _text(left + BAR + 8, middle + 5, number)
    )


def _text(x: float, y: int, words: str, *, size: int = 13, fill: str = "#000") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{fill}">{escape(words)}</text>'
