"""``puma init``: a project of one's own.

What takes seconds to import is imported when a command runs; see puma.cli.main.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from puma.cli.common import FAILED, AsJson, may_show_ids
from puma.cli.tables import print_json, print_table
from puma.errors import ColumnError, DataError, SettingsError
from puma.html_table import rows_of_people
from puma.project.creation import OwnTable, create_project, place_in, require_room

if TYPE_CHECKING:
    from collections.abc import Sequence

    from puma.data import Dataset

EXAMPLE = "german_credit"  # of a project without a table; small, with the ids of people


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A new or empty folder; . is this one.")
    ],
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your table, CSV or Parquet.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What is to be predicted.")
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Whose row it is; each row its own if absent."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="classification (the default), binary or regression.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a project of your own: settings, pipeline, notebooks, and the manual.

    Without --data it learns German Credit, which comes with PUMA. A table that lies in DIR stays
    there; any other one is copied into DIR/data. Nothing is written over.

    Exit code: 0 `dvc repro` can follow, 1 params.yaml has to say more about the table first, 2
    nothing was written.
    """
    if data is None:
        given = {"--target": target, "--subject": subject, "--task": task}
        named = [option for option, value in given.items() if value is not None]
        if named:
            raise SettingsError(f"{', '.join(named)} tells of a table; name it, too: --data FILE")
        require_room(folder)
        create_project(folder, EXAMPLE)
        if as_json:
            _print_as_json(folder, EXAMPLE)
            return
        typer.echo(f"{folder}: a project on {EXAMPLE}, which comes with PUMA")
        _print_next(folder, EXAMPLE)
        return
    try:
        is_file = data.is_file()
    except OSError as error:
        raise DataError(f"{data}: {error.strerror}; --data names a CSV or Parquet table") from error
    if not is_file:
        fault = "is a folder" if data.is_dir() else "no such file"
        raise DataError(f"{data}: {fault}; --data names a CSV or Parquet table")
    table = _described(folder, data, target=target, subject=subject, task=task)
    dataset = _named_after(data)
    require_room(folder, table.inside)
    read, fault_of_column = None, None
    try:
        read = _read(dataset, table)
    except ColumnError as error:  # of which params.yaml may say more; nothing mends other faults
        fault_of_column = error
    create_project(folder, dataset, table)
    if as_json:
        _print_as_json(folder, dataset, table, read, fault_of_column)
        if read is None:
            raise typer.Exit(FAILED) from fault_of_column
        return
    place = "stays where it is" if table.inside else f"is copied to {table.path}, for you alone"
    typer.echo(f"{folder}: a project on {dataset}; {data} {place}")
    if subject is None:
        typer.echo("every row is its own person, row-1, row-2, …; --subject names an id column")
    if read is None:
        typer.echo(f"puma: {fault_of_column}", err=True)
        typer.echo(
            f"the project is written; before `dvc repro`, correct sources.{dataset} in "
            f"{folder / 'params.yaml'}, or the table {folder / table.path}"
        )
        _print_next(folder, dataset)
        raise typer.Exit(FAILED) from fault_of_column
    _print_columns(read)
    _print_next(folder, dataset)


def _described(
    folder: Path, file: Path, *, target: str | None, subject: str | None, task: str | None
) -> OwnTable:
    """The table as params.yaml will have it, once the columns that were named are found in it."""
    from pydantic import ValidationError

    from puma.data.table_file import column_names, require_columns
    from puma.settings import SourceSettings, problems_of

    named = [each for each in (target, subject) if each is not None]
    names = column_names(file, named)
    if not {*named} & {*names} and may_show_ids(sys.stderr):  # they may be somebody's row
        typer.echo(f"puma: the first line of {file}: {', '.join(map(repr, names))}", err=True)
    if target is None:
        raise SettingsError(
            f"--data {file} needs --target, the column that is to be predicted; it has "
            f"{len(names)} columns"
        )
    require_columns(file, names, named)
    given = {"target": target, "subject": subject, "task": task}
    settings = {key: value for key, value in given.items() if value is not None}
    table = OwnTable(file, settings, place_in(folder, file))
    try:
        SourceSettings.model_validate({"path": table.path, **settings})
    except ValidationError as error:
        raise SettingsError(f"{problems_of(error)}; correct these options") from error
    return table


def _named_after(file: Path) -> str:
    """The dataset's name: the file's, with what a name cannot have replaced."""
    from puma.data import DATASETS

    stem = re.sub(r"\.(csv|tsv|txt|parquet|pq)(\.gz)?$", "", file.name, flags=re.IGNORECASE)
    name = re.sub(r"[^\w.-]+", "_", stem).lstrip(".-")
    if not name or name in DATASETS:
        raise SettingsError(
            f"the dataset would be called {name!r}, after {file.name}: "
            f"{'that is a dataset of PUMA' if name else 'that is no name'}; rename the file"
        )
    return name


def _read(dataset: str, table: OwnTable) -> Dataset:
    """Read the table, where it is now, as the stage `prepare` of the project will."""
    from puma.data import load_dataset
    from puma.settings import Settings, SourceSettings

    settings = Settings()  # as those of a new project
    source = SourceSettings.model_validate({"path": str(table.file.resolve()), **table.settings})
    return load_dataset(
        dataset, seed=settings.seed, test_fraction=settings.data.test_fraction, source=source
    )


def _print_as_json(
    folder: Path,
    dataset: str,
    table: OwnTable | None = None,
    read: Dataset | None = None,
    fault: ColumnError | None = None,
) -> None:
    """Print what was written, and what became of the columns if the table could be read."""
    counts = {"rows": None, "people": None, "test_rows": None}
    print_json(
        {
            "folder": str(folder),
            "dataset": dataset,
            "table": None if table is None else table.path,
            **(counts if read is None else _counts(read)),
            "columns": None if read is None else [asdict(each) for each in read.columns],
            "to_correct": None if fault is None else str(fault),
        }
    )


def _counts(data: Dataset) -> dict[str, int]:
    people = {*data.train.subject_ids.tolist(), *data.test.subject_ids.tolist()}
    rows = len(data.train) + len(data.test)
    return {"rows": rows, "people": len(people), "test_rows": len(data.test)}


def _print_columns(data: Dataset) -> None:
    """Print what becomes of the columns of the table."""
    lines = [
        [each.column, each.type, str(each.missing), str(each.distinct), each.policy]
        for each in data.columns
    ]
    columns: Sequence[str] = ("column", "type", "missing", "values", "what becomes of it")
    rows, people, tested = _counts(data).values()
    title = f"{rows_of_people(rows, people)}, {tested} rows of them to test on"
    print_table(title, columns, lines, wrapped=("column", "what becomes of it"))


def _print_next(folder: Path, dataset: str) -> None:
    typer.echo("Next:")
    if shutil.which("dvc") is None or shutil.which("papermill") is None:
        typer.echo(f"  source {shlex.quote(sys.prefix)}/bin/activate")
    if folder.resolve() != Path.cwd():
        typer.echo(f"  cd {shlex.quote(str(folder))}")
    typer.echo("  dvc repro    # train, remove rows for a demonstration, audit, register")
    typer.echo(f"  puma compare {dataset}")
