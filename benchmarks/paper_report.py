"""What the report on the paper shows: its tables beside ours, and the demonstrations' pictures."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import nbformat
import pandas as pd
import PIL.Image
from IPython.display import Image
from pandas.io.formats.style import Styler

from benchmarks.agreement import DIFFERS, HOLDS, INCOMPARABLE, PATTERN
from benchmarks.paper import forgot, number
from benchmarks.paper_cells import PUMA
from benchmarks.tables import NOTHING
from puma.errors import DataError

DEMONSTRATIONS = ("dessert", "two_moons", "digits", "projection", "reliability")
SHADES = {HOLDS: "#d5efd0", PATTERN: "#fdf3c0", DIFFERS: "#f9d5c4", INCOMPARABLE: "#ececec"}
COLOURS = 128  # of a picture
PAPER, OURS, FORGOT = "paper", "ours", "removed : unseen, gap"


def beside(cells: pd.DataFrame, table: int, scenario: str = "") -> Styler:
    """One scenario of one table: the paper's numbers and ours, shaded by the verdict.

    Of an accuracy after a removal also the shares of removed and unseen rows that the attack calls
    members, and the gap of the loss attack's AUC to that after retraining. Table 3 has no scenario.

    Raises DataError where there are no such cells.
    """
    chosen = cells[(cells["table"] == table) & (cells["scenario"] == scenario)]
    if chosen.empty:
        raise DataError(f"no cells of table {table} and scenario {scenario!r}")
    texts: dict[tuple[str, ...], dict[tuple[str, str], str]] = {}
    shades: dict[tuple[str, ...], dict[tuple[str, str], str]] = {}
    for _, cell in chosen.iterrows():
        if table == 3:  # one line for a dataset: there is one number of each method
            line: tuple[str, ...] = (str(cell["dataset"]),)
            column = f"{cell['method']} ({cell['run']})"
        else:
            line = (str(cell["dataset"]), str(cell["method"]), _run(chosen, cell))
            column = re.sub(r"removed(\d+)", r"\1 % removed", str(cell["column"]))
        digits = 2 if table == 3 else 1
        shown = {
            PAPER: number(cell["paper_mean"], cell["paper_std"], digits),
            OURS: NOTHING
            if math.isnan(cell["our_mean"])
            else number(cell["our_mean"], cell["our_std"], digits),
        }
        if not math.isnan(cell["our_removed_rate"]):
            shown[FORGOT] = forgot(cell)
        for kind, text in shown.items():
            texts.setdefault(line, {})[column, kind] = text
        shades.setdefault(line, {})[column, OURS] = f"background: {SHADES[str(cell['verdict'])]}"
    names = ["dataset"] if table == 3 else ["dataset", "method", "ours is"]
    shown_frame, colours = (_frame(each, names) for each in (texts, shades))
    colours = colours.reindex(columns=shown_frame.columns).astype(object).fillna("")
    shaded = shown_frame.fillna(NOTHING).style.apply(lambda _: colours, axis=None)
    return shaded.set_table_styles([{"selector": "td", "props": "white-space: nowrap"}])


def _run(cells: pd.DataFrame, cell: pd.Series) -> str:
    """Which of PUMA's runs; of the other methods, which have one line, all that the cells name."""
    if cell["method"] == PUMA:
        return str(cell["run"])
    same = (cells["dataset"] == cell["dataset"]) & (cells["method"] == cell["method"])
    return ", ".join(filter(None, dict.fromkeys(cells.loc[same, "run"]))) or NOTHING


def _frame(
    lines: dict[tuple[str, ...], dict[tuple[str, str], str]], names: list[str]
) -> pd.DataFrame:
    index = pd.MultiIndex.from_tuples(list(lines), names=names)
    columns = list(dict.fromkeys(key for line in lines.values() for key in line))
    first = list(dict.fromkeys(column for column, _ in columns))
    kinds = [PAPER, OURS, FORGOT]
    columns.sort(key=lambda key: (first.index(key[0]), kinds.index(key[1])))
    frame = pd.DataFrame(list(lines.values()), index=index)
    return frame.reindex(columns=pd.MultiIndex.from_tuples(columns))


def legend() -> str:
    """The shades of :func:`beside`, as HTML."""
    return " ".join(
        f'<span style="background: {shade}; padding: 0 0.5em">{verdict}</span>'
        for verdict, shade in SHADES.items()
    )


def question(notebook: Path) -> str:
    """Title and question of a notebook as Markdown: the first two paragraphs of its first cell.

    Raises DataError where there is no notebook.
    """
    try:
        first = nbformat.read(notebook, as_version=4).cells[0].source
    except OSError as error:
        raise DataError(f"{notebook}: cannot be read ({error.strerror}); check it out") from error
    return "\n\n".join(first.split("\n\n")[:2]).replace("# ", "### ", 1)


def pictures(folder: Path, demonstration: str) -> list[Path]:
    """The pictures that a notebook of ``notebooks/paper/`` saved below ``folder``.

    Raises DataError where there are none: then that notebook was not run.
    """
    found = sorted((folder / demonstration).glob("*.png"))
    if not found:
        raise DataError(
            f"{folder / demonstration} has no picture; run notebooks/paper/{demonstration}.ipynb, "
            "which the stage demonstrations of paper/dvc.yaml does"
        )
    return found


def picture(path: Path, alt: str) -> Image:
    """A PNG for the report, in :data:`COLOURS` colours: it looks the same, and is far smaller."""
    buffer = io.BytesIO()
    with PIL.Image.open(path) as found:
        found.convert("RGB").quantize(COLOURS).save(buffer, "PNG", optimize=True)
    return Image(buffer.getvalue(), format="png", alt=alt)
