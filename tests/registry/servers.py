"""PostgreSQL and MLflow's tracking server, each a process of its own on this machine."""

from __future__ import annotations

import getpass
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from puma.registry import open_store
from tests.registry.projects import make_project

USER, PASSWORD = "puma", "open-sesame"
STARTED_WITHIN = 60  # seconds
BINARIES = [*map(Path, os.environ["PATH"].split(":")), *Path("/usr/lib/postgresql").glob("*/bin")]
NUMBERS = count(1)


@dataclass(frozen=True)
class Cluster:
    """A running PostgreSQL, and a database of it in which MLflow's tables are made already."""

    port: int

    def address(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def create(self, *, migrated: bool = True) -> str:
        """The address of a new database."""
        name = f"test{next(NUMBERS)}"
        self.execute(f"CREATE DATABASE {name}" + (" TEMPLATE migrated" if migrated else ""))
        return self.address(name)

    def empty(self, address: str) -> None:
        """Forget everything that was ever logged or registered in a database."""
        self.execute("TRUNCATE registered_models, experiments CASCADE", address.rpartition("/")[2])

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        import psycopg2

        with closing(psycopg2.connect(self.address(database))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """PostgreSQL of this test run's own."""
    initdb, postgres = _binary("initdb"), _binary("postgres")
    if initdb is None or postgres is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    if importlib.util.find_spec("psycopg2") is None:
        pytest.skip("its driver is not installed: pip install psycopg2-binary")
    folder = Path(tempfile.mkdtemp(prefix="puma-postgresql-"))
    owner = _owner()
    shutil.chown(folder, owner)
    password = folder / "password"
    password.write_text(PASSWORD)
    shutil.chown(password, owner)
    data = folder / "data"
    options = ["-A", "scram-sha-256", "-U", USER, f"--pwfile={password}", "-E", "UTF8", "--no-sync"]
    subprocess.run(
        [initdb, "-D", data, *options], check=True, capture_output=True, cwd=folder, user=owner
    )
    port = free_port()
    settings = {
        **{"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": folder},
        **dict.fromkeys(("fsync", "full_page_writes", "synchronous_commit"), "off"),
    }
    given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [postgres, "-D", data, *given], cwd=folder, stdout=log, stderr=log, user=owner
        )
    try:
        made = Cluster(port)
        _wait(lambda: bool(made.execute("SELECT 1")), process, folder / "log")
        made.execute("CREATE DATABASE migrated")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MLFLOW_TRACKING_URI", made.address("migrated"))
            open_store(make_project(tmp_path_factory.mktemp("postgresql")))
        made.execute("TRUNCATE experiment_tags, experiments CASCADE", "migrated")
        yield made
    finally:
        process.send_signal(signal.SIGINT)  # does not wait for its clients
        process.wait()
        shutil.rmtree(folder)


@contextmanager
def tracking_server(
    store: str, folder: Path, *, port: int | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of an MLflow server in front of ``store``, with its artifacts in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    places = ["--backend-store-uri", store, "--artifacts-destination", str(folder / "artifacts")]
    listening = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *places, *listening],
            cwd=folder,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=log,
            stderr=log,
            start_new_session=True,  # its workers end with it
        )
    try:
        _wait(lambda: _answers(port), process, folder / "log")
        yield f"http://127.0.0.1:{port}", process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """At once, with the workers."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _binary(name: str) -> Path | None:
    return next((folder / name for folder in BINARIES if (folder / name).exists()), None)


def _owner() -> str:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return getpass.getuser()
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _answers(port: int) -> bool:
    import requests

    return requests.get(f"http://127.0.0.1:{port}/health", timeout=1).ok


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Until ``ready`` neither raises nor is false."""
    latest = time.monotonic() + STARTED_WITHIN
    while True:
        try:
            if ready():
                return
        except Exception:  # of the driver or of the client: it does not listen yet
            if process.poll() is not None or time.monotonic() > latest:
                raise AssertionError(log.read_text()[-2000:]) from None
        time.sleep(0.05)
