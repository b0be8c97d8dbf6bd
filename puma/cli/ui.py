"""``puma ui``: the MLflow UI of this project's registry."""

from __future__ import annotations

import errno
import os
import socket
import sys
from typing import Annotated

import typer

from puma.errors import RegistryError
from puma.project.workspace import Workspace

OF_MODELS = "?workflowType=machine_learning"  # else MLflow opens its side for GenAI


def ui(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
) -> None:
    """Serve the MLflow UI of this project's registry, until Ctrl-C."""
    workspace = Workspace.find()
    from puma.registry import Registry
    from puma.registry.store import is_server, tracking_uri
    from puma.registry.store_errors import without_password

    uri = tracking_uri(workspace)
    if is_server(uri):
        shown = without_password(uri).rstrip("/")
        typer.echo(f"this registry has a server already: {shown}/#/models{OF_MODELS}")
        return
    _refuse_busy(host, port)
    registry = Registry.open(workspace)  # MLflow would make another store where there is none
    address = f"http://{_authority(host, port)}/#"
    typer.echo(f"Models: {address}/models{OF_MODELS}   (stop with Ctrl-C)")
    typer.echo(f"Runs:   {address}/experiments/{registry.experiment()}{OF_MODELS}")
    sys.stdout.flush()
    # Passed in the environment: the address of a database may hold its password, and the
    # arguments of a process are for all to see.
    environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": uri}
    arguments = ["-m", "mlflow", "ui", "--host", host, "--port", str(port), "--workers", "1"]
    os.chdir(workspace.root)
    os.execve(sys.executable, [sys.executable, *arguments], environment)


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
    except (OSError, UnicodeError) as error:  # the latter of a name that none can be
        reason = error.strerror if isinstance(error, OSError) else "no such name"
        raise RegistryError(
            f"{_authority(host, port)} cannot be served ({reason}); choose another --port or --host"
        ) from error


def _authority(host: str, port: int) -> str:
    """Host and port as an address of the web has them: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
