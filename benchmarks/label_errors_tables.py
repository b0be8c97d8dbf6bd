"""The tables of the debugging benchmarks, for docs/results.md, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.label_errors import CURVE_COLUMNS, DEBUGGING_COLUMNS
from benchmarks.label_errors_runtime import RUNTIME_COLUMNS
from benchmarks.tables import NOTHING, lined_up
from puma.errors import DataError

SECONDS = "table3_debugging_seconds.csv"
# How the paper's Table 3 calls what is compared here.
PAPER_DATASETS = {
    "two_moons": "Two Moons",
    "spiral": "Spiral",
    "radial": "Radial",
    "rectangular": "Rectangulars",
    "german_credit": "German Credit",
    "breast_cancer": "Breast Cancer",
}
PAPER_METHODS = {
    "psi": "PUMA",
    "representer": "RSP",
    "ntk_per_example": "NTK",
    "g_shapley": "GShapley",
    "self_influence_per_point": "SelfInfluence",
}
# How many times as long as psi each should take, after the paper's Table 3.
TARGETS = {
    "representer": 2.0,
    "ntk_per_example": 3.0,
    "g_shapley": 12.0,
    "self_influence_per_point": 200.0,
}


def read_rows(path: Path, columns: Sequence[str], command: str) -> pd.DataFrame:
    """The rows of a CSV as ``puma command`` writes it, blank texts as "".

    Raises DataError when it is absent or has other columns.
    """
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: no rows of python -m benchmarks {command} ({error}); run it"
        ) from error
    if list(frame.columns) != list(columns):
        raise DataError(
            f"{path}: expected the columns {list(columns)}; "
            f"run python -m benchmarks {command} again"
        )
    texts = [name for name in ("criterion", "note") if name in columns]
    return frame.astype(dict.fromkeys(texts, object)).fillna(dict.fromkeys(texts, ""))


def read_debugging(path: Path) -> pd.DataFrame:
    """The rankings that ``python -m benchmarks label-errors`` wrote; see :func:`read_rows`."""
    return read_rows(path, DEBUGGING_COLUMNS, "label-errors")


def read_curves(path: Path) -> pd.DataFrame:
    """The curves that ``python -m benchmarks label-errors`` wrote; see :func:`read_rows`."""
    return read_rows(path, CURVE_COLUMNS, "label-errors")


def read_runtime(path: Path) -> pd.DataFrame:
    """The seconds that ``label-errors-runtime`` wrote; see :func:`read_rows`."""
    return read_rows(path, RUNTIME_COLUMNS, "label-errors-runtime")


def debugging_table(
    frame: pd.DataFrame, column: str = "found_at_10pct"
) -> tuple[list[str], list[list[str]]]:
    """Heading and lines: mean ± std over seeds of ``column``, methods down, datasets across.

    Two models stand under each other, so each line names the weight decay of its own. ``*``: on
    some seed the ranking warned that it may be noise or has not settled; ``[k/n]``: only k of n
    seeds have an answer.
    """
    datasets = list(dict.fromkeys(frame["dataset"]))
    lines = []
    for (method, criterion, decay), rows in frame.groupby(
        ["method", "criterion", "weight_decay"], sort=False
    ):
        cells = [_found(rows[rows["dataset"] == name], column) for name in datasets]
        lines.append([str(method), str(criterion), f"{decay:g}", *cells])
    return ["method", "criterion", "weight decay", *datasets], lines


def _found(rows: pd.DataFrame, column: str) -> str:
    values = rows[column].dropna()
    if values.empty:
        return NOTHING
    text = f"{values.mean():.2f}"
    if len(values) > 1:
        text += f" ± {values.std():.2f}"
    if (rows["warned"] == True).any():  # noqa: E712  blank where a ranking failed
        text += "*"
    return text if len(values) == len(rows) else f"{text} [{len(values)}/{len(rows)}]"


def debugging_markdown(frame: pd.DataFrame) -> str:
    """Shares found in the most suspect tenth and areas under the curve, for docs/results.md."""
    parts = [
        "Mean ± standard deviation over seeds. `*`: on some seed the ranking warned that it "
        "may be noise, or that it had not converged.",
        "### Share of the flipped labels in the most suspect tenth of the rows",
        lined_up(*debugging_table(frame)),
        "### Chance that a flipped row is more suspect than another (AUC)",
        lined_up(*debugging_table(frame, "auc")),
    ]
    notes = frame[frame["note"] != ""]
    if len(notes):
        counted = notes.groupby(["dataset", "method", "criterion"], sort=False)["note"]
        parts.append(
            "\n".join(
                f"- {' '.join(filter(None, map(str, key)))} ({len(found)} seeds): {found.iloc[0]}"
                for key, found in counted
            )
        )
    return "\n\n".join(parts) + "\n"


def runtime_table(
    frame: pd.DataFrame, reference: Path | None = None
) -> tuple[list[str], list[list[str]]]:
    """Heading and lines: seconds and, of ψ's, how many times; the paper's times in brackets.

    ``reference``: the folder that holds the paper's numbers as CSV, ``paper/reference``. ``~``:
    extrapolated from a sample of the rows. ``>``: G-Shapley had not settled.
    """
    paper = None if reference is None else _paper(reference)
    datasets = list(dict.fromkeys(frame["dataset"]))
    sizes = frame.groupby("dataset")["train_rows"].first()
    lines = []
    for method, rows in frame.groupby("method", sort=False):
        cells = []
        for name in datasets:
            (row,) = (found for _, found in rows[rows["dataset"] == name].iterrows())
            sign = "~" if row["extrapolated"] else ">" if str(row["settled"]) == "False" else ""
            text = f"{sign}{row['seconds']:.3g} s = {row['ratio_to_psi']:.3g}×"
            if paper is not None and method in PAPER_METHODS:
                text += f" ({_ratio(paper, name, str(method)):.3g}×)"
            cells.append(text)
        lines.append([str(method), *cells])
    return ["method", *(f"{name} ({sizes[name]} rows)" for name in datasets)], lines


def runtime_targets(frame: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heading and lines: on how many datasets each method takes TARGETS times ψ's seconds."""
    lines = []
    for method, least in TARGETS.items():
        ratios = frame[frame["method"] == method]["ratio_to_psi"]
        reached = f"{int((ratios >= least).sum())} of {len(ratios)}"
        lines.append([method, f"{least:g}×", f"{ratios.min():.3g}–{ratios.max():.3g}×", reached])
    return ["method", "at least", "measured", "reached on"], lines


def runtime_markdown(frame: pd.DataFrame, reference: Path) -> str:
    """Both runtime tables for docs/results.md; ``reference`` as of :func:`runtime_table`.

    Raises DataError when the paper's numbers cannot be read.
    """
    parts = [
        "CPU seconds of one thread, and how many times psi's; in brackets, how many times in the "
        "paper's Table 3. `~`: extrapolated from a sample of the rows. `>`: stopped before "
        "its values had converged.",
        lined_up(*runtime_table(frame, reference)),
        lined_up(*runtime_targets(frame)),
    ]
    return "\n\n".join(parts) + "\n"


def _paper(folder: Path) -> pd.Series:
    path = folder / SECONDS
    try:
        return pd.read_csv(path).set_index(["dataset", "method"])["seconds_mean"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: the paper's numbers cannot be read ({error})") from error


def _ratio(paper: pd.Series, dataset: str, method: str) -> float:
    name = PAPER_DATASETS[dataset]
    return float(paper[name, PAPER_METHODS[method]] / paper[name, PAPER_METHODS["psi"]])
