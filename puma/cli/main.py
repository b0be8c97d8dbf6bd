"""The command line: arguments in, tables out. What it says, the package computes.

MLflow and PyTorch take seconds to import, so that every command imports what it needs itself.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from puma.cli.common import (
    REFUSED,
    SHOWN_IDS,
    DatasetName,
    crash_exits_with_2,
    may_show_ids,
    project_of,
)
from puma.cli.console import print_table
from puma.cli.registry import erase, promote, verify
from puma.cli.remove import remove
from puma.cli.suspects import suspects
from puma.cli.tables import listed, print_comparison, shown
from puma.errors import DeletionError, PumaError, RegistryError
from puma.project.workspace import Workspace
from puma.settings import ORIGINAL, is_original

if TYPE_CHECKING:
    from puma.registry import RegisteredVersion
    from puma.registry.tombstones import Tombstone
    from puma.requests.deletion_set import DeletionSet


class CommandGroup(TyperGroup):
    """Commands whose PUMA errors are a paragraph on stderr; all others keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PumaError as error:
            typer.echo(f"puma: {error}", err=True)
            if isinstance(error, DeletionError) and error.unknown_ids:
                typer.echo(_unknown(error.unknown_ids), err=True)
            raise typer.Exit(REFUSED) from error


app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Remove people's rows from trained models, and read the evidence.",
)
app.command("remove")(remove)
app.command("promote")(promote)
app.command("verify")(verify)
app.command("erase")(erase)
app.command("suspects")(suspects)


@app.command()
def versions(
    dataset: DatasetName,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """List every registered version of a dataset's model."""
    workspace = project_of(dataset)
    rows = _rows(workspace, dataset)
    if as_json:
        print(json.dumps([row.to_dict() for row in rows], indent=2, allow_nan=False))
        return
    columns = ("", "method", "aliases", "from", "rows", "deletion", "acc.", "verdict", "secs")
    print_table(
        f"Versions of puma-{dataset}",
        columns,
        [listed(row) for row in rows],
        wrapped=("aliases", "verdict"),
    )
    for stone in _erased(workspace, dataset):
        words = f"version {stone.version} ({stone.method}) was erased on {stone.when}"
        typer.echo(f"{words}; the certificates that refer to it can still be checked")
    if not rows:
        typer.echo(f"no version of puma-{dataset} yet; run `dvc repro`", err=True)


@app.command()
def compare(dataset: DatasetName) -> None:
    """Show the versions of the current pipeline side by side.

    First the plain original and every removal; then what was trained for one method alone.
    """
    workspace = project_of(dataset)
    from puma.lineage.records import read_model_records

    current = {receipt.fingerprint for receipt in read_model_records(workspace, dataset)}
    rows = [row for row in _rows(workspace, dataset) if row.fingerprint in current]
    if len(rows) < len(current):
        raise RegistryError(
            f"{len(current) - len(rows)} of the {len(current)} versions of {dataset!r} are not "
            "registered yet; run `dvc repro`"
        )
    own = [row for row in rows if is_original(row.method) and row.method != ORIGINAL]
    print_comparison(f"Versions of puma-{dataset}", [row for row in rows if row not in own])
    if own:
        print_comparison("Originals that one method removes from", own)


@app.command()
def audit(
    dataset: DatasetName,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A number or an alias.")],
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Attack a registered version, and say whether its removal holds.

    Exit code: 0 passed, 1 any other verdict, 2 it could not be audited.
    """
    workspace = project_of(dataset)
    from puma.workflows.audit import audit_version

    with crash_exits_with_2():
        row, report = audit_version(workspace, dataset, version, progress=True)
    verdict = report.verdict
    if as_json:
        found = {
            "dataset": dataset,
            "version": row.version,
            "method": row.method,
            "verdict": verdict.name,
            "reason": verdict.reason,
            "metrics": report.metrics,
            "unresolved": report.unresolved,
        }
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        lines = [[name, shown(value)] for name, value in report.metrics.items()]
        title = f"Audit of puma-{dataset} version {row.version} ({row.method})"
        print_table(title, ("", "value"), lines)
        for name, reason in report.unresolved.items():
            print(f"{name} cannot be told: {reason}")
        print(f"{verdict.name}: {verdict.reason}")
    if not verdict.passed:
        raise typer.Exit(1)


@app.command()
def registered() -> None:
    """Exit with 0 when every receipt has its version, and with 1 when one has not."""
    workspace = Workspace.find()
    from puma.registry import missing

    gap = missing(workspace)
    typer.echo("every version is registered" if gap is None else f"not registered: {gap}")
    if gap is not None:
        raise typer.Exit(1)


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
) -> None:
    """Serve the MLflow UI of this project's registry, until Ctrl-C."""
    workspace = Workspace.find()
    from puma.registry.store import is_server, open_store, tracking_uri
    from puma.registry.store_errors import without_password

    uri = tracking_uri(workspace)
    if is_server(uri):
        shown = without_password(uri).rstrip("/")
        typer.echo(f"this registry has a server already: {shown}/#/models")
        return
    _refuse_busy(host, port)
    open_store(workspace)
    typer.echo(f"Models: http://{_authority(host, port)}/#/models   (stop with Ctrl-C)")
    sys.stdout.flush()
    # Passed in the environment: the address of a database may hold its password, and the
    # arguments of a process are for all to see.
    environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    arguments = ["-m", "mlflow", "ui", "--host", host, "--port", str(port), "--workers", "1"]
    os.chdir(workspace.root)
    os.execve(sys.executable, [sys.executable, *arguments], environment)


@app.command()
def request(dataset: DatasetName) -> None:
    """Check a dataset's deletion request, or mark the demonstration's, and write it down.

    The request is deletions/DATASET.csv (subject_id, request_id, requested_at, reason);
    without one, the rows that params.yaml's `marking` chooses stand in for it.
    """
    workspace = project_of(dataset)
    chosen, source = _request(workspace, dataset)
    target = workspace.deletion_set(dataset)
    from puma.requests.archive import archive_request
    from puma.requests.digest import project_key

    archive_request(workspace, chosen)
    chosen.write(target, reason=source, key=project_key(workspace.key))
    typer.echo(f"{dataset}: {source}: {chosen.summary}")
    typer.echo(f"written to {target.relative_to(workspace.root)}")


def _request(workspace: Workspace, dataset: str) -> tuple[DeletionSet, str]:
    """The deletion set and, in words, where it came from."""
    from puma.data import Dataset
    from puma.requests.deletion_set import DeletionSet

    settings = workspace.settings
    data = Dataset.load(workspace.data(dataset))
    allow = settings.deletion.allow_class_removal
    path = workspace.request(dataset)
    _refuse_strays(path.parent, settings.datasets)
    if os.path.lexists(path):  # a link to nowhere, too, was meant as a request
        chosen = DeletionSet.read(path, data, allow_class_removal=allow)
        return chosen, f"request in {path.relative_to(workspace.root)}"
    from puma.requests.demonstration import describe, mark

    rows = mark(data, settings.marking, seed=settings.seed)
    ids = sorted(set(data.train.subject_ids[rows.numpy()].tolist()))
    chosen = DeletionSet.of(ids, data, allow_class_removal=allow)
    return chosen, f"demonstration ({describe(settings.marking)})"


def _refuse_strays(folder: Path, datasets: tuple[str, ...]) -> None:
    """Raise DeletionError when ``folder`` holds what no dataset's request is read from."""
    from puma.data import DATASETS

    if not os.path.lexists(folder):
        return
    try:
        found = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise DeletionError(
            f"{folder}: cannot be read ({error.strerror}); make it a folder that you can read"
        ) from error
    read = {"README.md", *(f"{name}.csv" for name in (*DATASETS, *datasets))}
    strays = [name for name in found if name not in read and not name.startswith(".")]
    if strays:
        raise DeletionError(
            f"{folder}: {', '.join(map(repr, strays))} would go unread; a request is named "
            f"<dataset>.csv after a dataset ({', '.join(datasets)}): rename it, or move it away"
        )


def _unknown(ids: tuple[str, ...]) -> str:
    """The first of ``ids``, where they may be shown."""
    if not may_show_ids(sys.stderr):
        return "puma: which ids is shown in a terminal alone: run the command there"
    more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
    return f"puma: unknown: {', '.join(map(repr, ids[:SHOWN_IDS]))}{more}"


def _rows(workspace: Workspace, dataset: str) -> list[RegisteredVersion]:
    from puma.registry import list_versions, open_store
    from puma.registry.store import reaching

    with reaching(workspace):
        return list_versions(open_store(workspace), dataset)


def _erased(workspace: Workspace, dataset: str) -> list[Tombstone]:
    from puma.registry import open_store
    from puma.registry.store import reaching
    from puma.registry.tombstones import tombstones

    with reaching(workspace):
        return list(tombstones(open_store(workspace), dataset).values())


def _refuse_busy(host: str, port: int) -> None:
    """Raise RegistryError unless ``port`` is free at every address of ``host`` there is here."""
    try:
        bound, problem = 0, None
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(address)
                    bound += 1
                except OSError as error:
                    # localhost has an IPv6 address even where IPv6 is switched off.
                    if error.errno != errno.EADDRNOTAVAIL:
                        raise
                    problem = error
        if problem is not None and not bound:
            raise problem
    except OSError as error:
        raise RegistryError(
            f"{_authority(host, port)} cannot be served ({error.strerror}); "
            "choose another --port or --host"
        ) from error


def _authority(host: str, port: int) -> str:
    """Host and port as an address of the web has them: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
