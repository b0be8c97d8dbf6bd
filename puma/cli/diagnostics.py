"""``puma suspects``: which labels a person should look at.

What takes seconds to import is imported when a command runs; see puma.cli.main.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from puma.cli.common import SHOWN_IDS, DatasetName, may_show_ids
from puma.cli.tables import print_json, print_table
from puma.project.workspace import Workspace

if TYPE_CHECKING:
    from puma.label_errors.suspects import Suspects


def suspects(
    dataset: DatasetName,
    version: Annotated[
        str, typer.Option(metavar="VERSION", help="A number, an alias, or original, puma, …")
    ] = "champion",
    method: Annotated[
        str, typer.Option(help="loss, psi, self_influence, ntk, representer or g_shapley.")
    ] = "psi",
    criterion: Annotated[
        str | None,
        typer.Option(help="What a row harms, for psi and ntk; validation_loss if absent."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many rows.")] = 20,
    csv: Annotated[
        Path | None, typer.Option(help="A new file for their owners' ids, as a deletion request.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The rows as JSON, no ids.")] = False,
) -> None:
    """Rank the training rows whose labels look wrong, beside plain loss.

    Plain loss finds most wrong labels in most cases; psi on validation_loss tells which rows
    harm the held-out ones. Review the CSV before it becomes deletions/DATASET.csv. Ids are shown
    in a terminal alone, the first few.
    """
    workspace = Workspace.of(dataset)
    from puma.label_errors.suspects import rank, require_new, require_top
    from puma.workflows.suspects import load_version

    row, model, data = load_version(workspace, dataset, version)
    require_top(top, len(data.train))  # before the work
    if csv is not None:
        require_new(csv)
    decay = workspace.settings.for_dataset(dataset).training.weight_decay
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        # PyTorch's own, of what its forward-mode derivatives import.
        warnings.filterwarnings("ignore", ".*torch.jit.script", FutureWarning)
        found = rank(
            model, data, method=method, criterion=criterion, weight_decay=decay, progress=True
        )
    for each in caught:
        if each.category.__module__.startswith("puma."):
            typer.echo(f"puma: {each.message}", err=True)
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if as_json:
        described = {"dataset": dataset, "version": row.version, "method": method}
        shown = {**described, "criterion": found.criterion, "rows": len(found)}
        print_json({**shown, "suspects": _suspects(found, top)})
    else:
        print_table(
            f"Of the {len(found)} training rows of puma-{dataset} version {row.version} "
            f"({row.method}), the most suspect by {found.title}",
            *_suspects_table(found, top),
            wrapped=("subject", "labelled", "model says"),
        )
        shared = found.shared_with_loss(top)
        print(f"{shared} of these {top} are also among the {top} of largest loss.")
    if csv is not None:
        found.write(csv, top)
        typer.echo(
            f"written to {csv}: strike out who is not to go, then move it to "
            f"{workspace.request(dataset).relative_to(workspace.root)} and run `dvc repro`",
            err=as_json,
        )


def _suspects(found: Suspects, top: int) -> list[dict[str, Any]]:
    """What may be said anywhere of the most suspect rows."""
    labels = found.dataset.train.labels
    by_loss = found.rank_by_loss
    return [
        {
            "rank": place,
            "labelled": found.coarse(labels[row]),
            "model_says": found.coarse(found.predicted[row]),
            "suspicion": float(found.suspicion[row]),
            "rank_by_loss": int(by_loss[row]),
        }
        for place, row in enumerate(found.most(top).tolist(), start=1)
    ]


def _suspects_table(found: Suspects, top: int) -> tuple[tuple[str, ...], list[list[str]]]:
    """Columns and lines; the first ids, too, where they may be shown."""
    columns = ["rank", "labelled", "model says", "suspicion", "rank by loss"]
    lines = []
    for each in _suspects(found, top):
        rank, given, predicted, suspicion, by_loss = each.values()
        lines.append([str(rank), given, predicted, f"{suspicion:.4g}", str(by_loss)])
    if may_show_ids(sys.stdout):
        columns.insert(1, "subject")
        ids = found.dataset.train.subject_ids[found.most(top)[:SHOWN_IDS].numpy()].tolist()
        shown = [repr(each) for each in ids] + ["…"] * (len(lines) - len(ids))
        lines = [[line[0], name, *line[1:]] for line, name in zip(lines, shown, strict=True)]
    return tuple(columns), lines
