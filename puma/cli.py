"""The command line: arguments in, tables out. What it says, the package computes.

MLflow and PyTorch take seconds to import, so that every command imports what it needs itself.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from puma.errors import PumaError, RegistryError, SettingsError
from puma.workspace import Workspace

if TYPE_CHECKING:
    from puma.deletion import DeletionSet
    from puma.registry import VersionRow

REFUSED = 2  # the exit code of every error that PUMA raises on purpose
COMPARED = (
    "accuracy",
    "retained_accuracy",
    "removed_accuracy",
    "attack_rate",
    "attack_rate_unseen",
    "attack_auc",
    "attack_quality",
    "criterion_drift",
    "runtime_seconds",
    "retrain_seconds",
    "speedup_vs_retrain",
)
SHOWN_DIGITS = 8  # of a digest, in a table


class _Group(TyperGroup):
    """Commands whose PUMA errors are a paragraph on stderr; all others keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PumaError as error:
            typer.echo(f"puma: {error}", err=True)
            raise typer.Exit(REFUSED) from error


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Remove people's rows from trained models, and read the evidence.",
)
DatasetName = Annotated[str, typer.Argument(metavar="DATASET", help="A dataset of params.yaml.")]


@app.command()
def versions(
    dataset: DatasetName,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """List every registered version of a dataset's model."""
    rows = _rows(_workspace(dataset), dataset)
    if as_json:
        print(json.dumps([row.to_dict() for row in rows], indent=2, allow_nan=False))
        return
    columns = ("", "method", "aliases", "from", "removed", "deletion", "accuracy", "attack", "secs")
    _print_table(f"Versions of puma-{dataset}", columns, [_listed(row) for row in rows])
    if not rows:
        typer.echo(f"no version of puma-{dataset} yet; run `dvc repro`", err=True)


@app.command()
def compare(dataset: DatasetName) -> None:
    """Show the versions of the current pipeline side by side."""
    workspace = _workspace(dataset)
    from puma.receipts import read_receipts

    current = {receipt.fingerprint for receipt in read_receipts(workspace, dataset)}
    rows = [row for row in _rows(workspace, dataset) if row.fingerprint in current]
    if len(rows) < len(current):
        raise RegistryError(
            f"{len(current) - len(rows)} of the {len(current)} versions of {dataset!r} are not "
            "registered yet; run `dvc repro`"
        )
    lines = [[name, *(_number(row.metrics.get(name)) for row in rows)] for name in COMPARED]
    lines.insert(0, ["removed rows", *(str(row.n_removed) for row in rows)])
    _print_table(
        f"Versions of puma-{dataset}",
        ("", *(f"{row.version} {row.method}" for row in rows)),
        lines,
    )


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

    uri = tracking_uri(workspace)
    if is_server(uri):
        typer.echo(f"this registry has a server already: {uri.rstrip('/')}/#/models")
        return
    _refuse_busy(host, port)
    open_store(workspace)
    typer.echo(f"Models: http://{host}:{port}/#/models   (stop with Ctrl-C)")
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
    without one, the smallest k-means cluster of every class stands in for it.
    """
    workspace = _workspace(dataset)
    chosen, source = _request(workspace, dataset)
    target = workspace.deletion_set(dataset)
    chosen.write(target, reason=source)
    typer.echo(f"{dataset}: {source}: {chosen.summary}")
    typer.echo(f"written to {target.relative_to(workspace.root)}")


def _request(workspace: Workspace, dataset: str) -> tuple[DeletionSet, str]:
    """The deletion set and, in words, where it came from."""
    from puma.data import Dataset
    from puma.deletion import DeletionSet

    settings = workspace.settings
    data = Dataset.load(workspace.data(dataset))
    allow = settings.deletion.allow_class_removal
    path = workspace.request(dataset)
    if path.exists():
        chosen = DeletionSet.read(path, data, allow_class_removal=allow)
        return chosen, f"request in {path.relative_to(workspace.root)}"
    from puma.marking import smallest_clusters

    rows = smallest_clusters(data, clusters=settings.marking.clusters, seed=settings.seed)
    ids = sorted(set(data.train.subject_ids[rows.numpy()].tolist()))
    chosen = DeletionSet.of(ids, data, allow_class_removal=allow)
    return chosen, "demonstration (smallest cluster of every class)"


def _workspace(dataset: str) -> Workspace:
    """The project around this folder. Raises SettingsError for a dataset that it has not."""
    workspace = Workspace.find()
    known = workspace.settings.datasets
    if dataset not in known:
        raise SettingsError(
            f"unknown dataset {dataset!r}; {workspace.root / 'params.yaml'} names "
            f"{', '.join(known)}"
        )
    return workspace


def _rows(workspace: Workspace, dataset: str) -> list[VersionRow]:
    from puma.registry import list_versions, open_store

    return list_versions(open_store(workspace), dataset)


def _refuse_busy(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise RegistryError(
                f"{host}:{port} cannot be served ({error.strerror}); choose another --port"
            ) from error


def _listed(row: VersionRow) -> list[str]:
    return [
        str(row.version),
        row.method,
        ", ".join(row.aliases) or "-",
        "-" if row.parent_version is None else str(row.parent_version),
        str(row.n_removed),
        "-" if row.deletion_digest is None else row.deletion_digest[:SHOWN_DIGITS],
        *(_number(row.metrics.get(n)) for n in ("accuracy", "attack_rate", "runtime_seconds")),
    ]


def _number(value: float | None) -> str:
    """Three decimals, or more where there are only zeros in them."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.1e}"


def _print_table(title: str, columns: tuple[str, ...], lines: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column != "aliases")
    for line in lines:
        table.add_row(*line)
    Console().print(table)
