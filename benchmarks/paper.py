"""A verdict for every cell of the paper's tables, and the page that shows them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from benchmarks.agreement import HOLDS, INCOMPARABLE, LIMIT, VERDICTS
from benchmarks.paper_cells import PUMA, RESULTS
from benchmarks.paper_explanations import EXPLANATIONS, Evidence
from benchmarks.tables import NOTHING
from puma.project.files import write_text
from puma.project.workspace import Workspace

VERDICTS_CSV = Path("paper") / "results" / "verdicts.csv"
PAGE = Path("docs") / "paper.md"
REPORT = "paper.html"  # in the folder of the results
WIDE = 10.0  # points of joint deviation, beyond which agreement says little
DIGITS = 2
TITLES = {
    1: "Table 1: test accuracy after removing a share of the rows, %",
    2: "Table 2: removed rows that the shadow attack calls members, %",
    3: "Table 3: seconds of a ranking, in PUMA's own",
}
UNEXPLAINED = "No explanation was found for these."
HEAD = """\
# The paper's tables, cell by cell

`python -m benchmarks paper` writes this page and `{verdicts}` from the CSV files in `{results}/` \
and `paper/reference/`; it runs nothing. Every number of the paper's Tables 1 to 3 stands beside \
ours, means and standard deviations over runs (ours: {seeds} seeds; the paper says 20 runs in a \
caption and 10 in the text). No number in the tables is typed by hand.
"""
RUN = """\
## Run it

`dvc repro paper/dvc.yaml` makes all of it, offline: the measurements, the verdicts, the \
demonstrations of `notebooks/paper/`, and [one report]({report}) with tables, figures and \
pictures. The last line of `paper/params.yaml` names the profile:

- `quick`, which is set: two seeds, shorter rankings, smaller demonstrations; 10 minutes on 2 idle \
cores. It leaves everything in `paper/results/quick/`, with verdicts, a page and a report \
(`paper.html`) of its own.
- `full`: five seeds of everything that this page reads, in `docs/results/`, which takes hours, \
and this page anew. The DenseNet of MNIST is not part of it: \
`python -m benchmarks mnist-removal` measures that.

`dvc repro` without a file's name is the pipeline of the project, and runs none of this. \
`dvc repro --single-item paper/dvc.yaml:report` runs one stage alone.
"""
RULES = """\
## What the verdicts mean

- **holds**: the two means are at most {limit:g} joint deviations apart. The joint deviation is \
√(s₁² + s₂²), of the two standard deviations over runs. It does not shrink with more runs: where \
one run differs much from the next, agreement says little. *Of these wide* counts such cells, \
with a joint deviation of more than {wide:g} points.
- **pattern holds**: they are further apart, but the order of the methods is the paper's: every \
two methods of the dataset, scenario and column that the paper's numbers tell apart, by more \
than {limit:g} joint deviations, are told apart here by as much and in the same direction.
- **differs**: neither. **cannot be compared**: there is no number of ours that means the same, \
and the reason is stated.

The paper's PUMA is compared twice: with its Algorithm 1 as printed (`puma_paper`), and with the \
method of this package (`puma`). Its Amnesiac ML is compared without our repair \
(`amnesiac_unrepaired`), its ordered SISA with the removed rows side by side in the shards \
(`sisa_ordered`). Table 2 is compared with the removal of the smallest of 8 clusters of every \
class, in both scenarios: neither retraining nor PUMA depends on the order of the rows. Seconds \
are compared as ratios to PUMA's, and the deviation of a median of three is its range over 1.69.
"""
FORGETTING = """\
An accuracy alone says nothing about forgetting: doing nothing keeps all of it. In each place: \
the paper's accuracy, **ours**, the share of the removed rows that the shadow attack calls \
members : that of the unseen rows, and how far the loss attack's AUC is from that after \
retraining. A method that forgets as retraining does has retraining's shares, and no gap. \
Where the removed rows are spread over the data, as here, retraining calls as many of them \
members as of the unseen rows: there is little to forget, and Table 2 is the harder test.
"""


def page(evidence: Evidence, csv: Path, shown: Path) -> str:
    """The Markdown of the page ``shown``, whose cells are in ``csv``; both from the root on."""
    head = HEAD.format(
        verdicts=csv.as_posix(), results=evidence.results.as_posix(), seeds=_seeds(evidence)
    )
    run = RUN.format(report=os.path.relpath(evidence.results / REPORT, shown.parent))
    forgot = ["## Table 1, and what the methods forget\n", FORGETTING, *forgetting(evidence.cells)]
    return "\n".join([head, run, verdicts(evidence), *forgot])


def verdicts(evidence: Evidence) -> str:
    """Counts first, then the cells that differ with their explanations, then those not compared."""
    cells = evidence.cells
    parts = ["## Counts\n", counts(cells), orders(cells), RULES.format(limit=LIMIT, wide=WIDE)]
    parts.append(f"## More than {LIMIT:g} joint deviations apart\n")
    for table, title in TITLES.items():
        far = cells[(cells["table"] == table) & (cells["deviations_apart"] > LIMIT)]
        parts.append(f"### {title}\n")
        parts += [f"{said}\n\n{_lines(rows)}" for said, rows in _grouped(evidence, far)]
    return "\n".join([*parts, "## Not compared\n", reasons(cells)])


def _seeds(evidence: Evidence) -> str:
    """How many a number of ours has, at least and at most."""
    runs = evidence.cells.loc[evidence.cells["table"] != 3, "our_runs"].dropna().astype(int)
    return " to ".join(map(str, sorted({runs.min(), runs.max()}))) if len(runs) else "no"


def counts(cells: pd.DataFrame) -> str:
    """How many cells of each table and method have which verdict."""
    heading = ["table", "method", "ours", "cells", HOLDS, "of these wide", *VERDICTS[1:]]
    lines = []
    for table, tabled in cells.groupby("table"):
        for method, ours in tabled.groupby("method", sort=False):
            lines += [
                [table, method, run or NOTHING, *_counted(rows)]
                for run, rows in ours.groupby("run", sort=False)
            ]
        lines.append([table, "**all**", "", *_counted(tabled)])
    return _table(heading, lines)


def _counted(cells: pd.DataFrame) -> list[int]:
    found = cells["verdict"].value_counts()
    wide = (cells["verdict"] == HOLDS) & (cells["joint_deviation"] > WIDE)
    rest = [found.get(name, 0) for name in VERDICTS[1:]]
    return [len(cells), found.get(HOLDS, 0), wide.sum(), *rest]


def orders(cells: pd.DataFrame) -> str:
    """In how many columns the order of the methods is the paper's."""
    lines = []
    own = cells[cells["method"] == PUMA]
    for (table, run), rows in own.groupby(["table", "run"], sort=False):
        kept, lost = (rows["pattern"] == True).sum(), (rows["pattern"] == False).sum()  # noqa: E712
        lines.append([table, run, len(rows), kept, lost, len(rows) - kept - lost])
    heading = ["table", "PUMA is", "columns", "order kept", "order not kept", "no order to test"]
    said = (
        "The order of the methods, in every column of every dataset and scenario. *No order to "
        "test*: the paper tells no two of the methods apart that have numbers here.\n"
    )
    return f"{said}\n{_table(heading, lines)}"


def forgetting(cells: pd.DataFrame) -> list[str]:
    """A table per scenario: of Table 1, accuracies with what was forgotten beside each."""
    own = cells[cells["our_removed_rate"].notna()]
    shares = list(dict.fromkeys(own["column"]))
    heading = ["dataset", "method", "ours is"]
    heading += [f"{share.removeprefix('removed')} % removed" for share in shares]
    tables = []
    for scenario, found in own.groupby("scenario", sort=False):
        lines = []
        for key, rows in found.groupby(["dataset", "method", "run"], sort=False):
            by_share = {cell["column"]: _beside(cell) for _, cell in rows.iterrows()}
            lines.append([*key, *(by_share.get(share, NOTHING) for share in shares)])
        tables.append(f"### {scenario}\n\n{_table(heading, lines)}")
    return tables


def _beside(cell: pd.Series) -> str:
    return f"{cell['paper_mean']:.1f}, **{cell['our_mean']:.1f}**, {forgot(cell)}"


def forgot(cell: pd.Series) -> str:
    """What stands beside an accuracy: "removed : unseen, gap"."""
    gap = cell["our_loss_auc_gap"]
    return (
        f"{cell['our_removed_rate']:.0f} : {cell['our_unseen_rate']:.0f}, "
        f"{NOTHING if math.isnan(gap) else format(gap, '.2f')}"
    )


def reasons(cells: pd.DataFrame) -> str:
    """Why cells cannot be compared, and how many."""
    without = cells[cells["verdict"] == INCOMPARABLE]
    grouped = without.groupby(["table", "reason"], sort=False)
    lines = [
        [table, len(rows), ", ".join(dict.fromkeys(rows["method"])), reason]
        for (table, reason), rows in grouped
    ]
    return _table(["table", "cells", "methods", "reason"], lines)


def _grouped(evidence: Evidence, far: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    """(a sentence, the cells it explains), each cell with the first one that covers it."""
    chosen = pd.Series(
        [
            next((i for i, one in enumerate(EXPLANATIONS) if one.covers(evidence, cell)), -1)
            for _, cell in far.iterrows()
        ],
        index=far.index,
        dtype=int,
    )
    for place, one in enumerate(EXPLANATIONS):
        if (chosen == place).any():
            yield one.sentence(evidence), far[chosen == place]
    if (chosen == -1).any():
        yield UNEXPLAINED, far[chosen == -1]


def _lines(far: pd.DataFrame) -> str:
    heading = ["scenario", "dataset", "column", "method", "ours is", "paper", "ours", "apart"]
    lines = []
    for _, cell in far.iterrows():
        ours = number(cell["our_mean"], cell["our_std"])
        note = f" ({cell['reason']})" if cell["reason"] else ""
        where = [cell["scenario"] or NOTHING, *cell[["dataset", "column", "method", "run"]]]
        paper = number(cell["paper_mean"], cell["paper_std"])
        apart = cell["deviations_apart"]
        far_by = "∞" if math.isinf(apart) else f"{apart:.{DIGITS}f}"
        lines.append([*where, paper, ours + note, far_by, cell["verdict"]])
    return _table([*heading, "verdict"], lines)


def number(mean: float, std: float, digits: int = DIGITS) -> str:
    """As the paper prints it, where ``digits`` are not fewer."""
    return f"{mean:.{digits}f} ± {std:.{digits}f}"


def _table(heading: Sequence[object], lines: Iterable[Sequence[object]]) -> str:
    rows = [heading, ["---"] * len(heading), *lines]
    return "".join("| " + " | ".join(map(str, row)) + " |\n" for row in rows)


def written_to(root: Path, results: Path) -> tuple[Path, Path]:
    """(the verdicts, the page) of ``results``, from ``root`` on."""
    if (root / results).resolve() == (root / RESULTS).resolve():
        return VERDICTS_CSV, PAGE
    return results / "verdicts.csv", results / "paper.md"


def main(
    results: Annotated[
        Path, typer.Option(help="Folder of the CSV files, in the project.")
    ] = RESULTS,
) -> None:
    """Compare every cell of the paper's tables with ours; write the verdicts and their page.

    Reads RESULTS and paper/reference/, and runs nothing. The verdicts of docs/results/ go to
    paper/results/verdicts.csv and docs/paper.md, all others beside the files that were read.
    """
    root = Workspace.find().root
    csv, shown = written_to(root, results)
    evidence = Evidence.of(root, results)
    write_text(root / csv, evidence.cells.to_csv(index=False))
    write_text(root / shown, page(evidence, csv, shown))
    found = evidence.cells["verdict"].value_counts()
    typer.echo(", ".join(f"{found.get(name, 0)} {name}" for name in VERDICTS))
    typer.echo(f"{len(evidence.cells)} cells: {root / csv}, {root / shown}")
