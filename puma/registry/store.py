"""The tracking store: where it is, how it is made once, and what can be wrong with it.

By default it is what plain ``mlflow ui`` opens in the project root: ``mlflow.db``, with the
artifacts under ``mlruns/``. MLFLOW_TRACKING_URI names another one (PostgreSQL, a server).
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from puma.errors import RegistryError
from puma.workspace import Workspace

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "puma"
PATIENCE = 60  # seconds, with a migration by somebody else
OVERRIDE = "MLFLOW_TRACKING_URI"
REBUILD = "delete mlflow.db and mlruns/puma, then run `dvc repro`, which registers every version"


def database(workspace: Workspace) -> Path:
    """The SQLite file of the default store; with an override, nothing is kept there."""
    return workspace.root.resolve() / "mlflow.db"


def tracking_uri(workspace: Workspace) -> str:
    """The store of ``workspace``, anchored at its root whatever the working directory is.

    Raises RegistryError for a store or a project folder that MLflow cannot use.
    """
    uri = os.environ.get(OVERRIDE)
    if not uri:
        path = str(database(workspace))
        if found := sorted(set(path) & set("#%?")):
            raise RegistryError(
                f"the project folder {workspace.root} has {' and '.join(found)} in its path, "
                "and MLflow cannot load models from there; rename the folder"
            )
        return f"sqlite:///{path}"
    if "://" not in uri or uri.startswith("file:"):
        raise RegistryError(
            f"{OVERRIDE} is {uri!r}: MLflow keeps no model registry in plain files; name a "
            "database (sqlite:///…, postgresql://…) or a server (http://…), or unset it"
        )
    relative = uri.removeprefix("sqlite:///")
    if relative != uri and not Path(relative).is_absolute():
        # Left as it is, it would be another store in every working directory.
        return f"sqlite:///{workspace.root.resolve() / relative}"
    if uri.startswith("postgresql://") and importlib.util.find_spec("psycopg2"):
        # Which driver SQLAlchemy takes when none is named depends on its version.
        return uri.replace("postgresql://", "postgresql+psycopg2://", 1)
    return uri


def is_default() -> bool:
    """Whether the store is the project's own SQLite file."""
    return not os.environ.get(OVERRIDE)


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def without_password(text: str) -> str:
    """An address, or a message that may hold one, as it may be shown."""
    hidden = re.sub(r"//\S*@", "//***@", text)  # the last @: a password may hold one, or a slash
    return re.sub(r"(password=)[^&\s]*", r"\1***", hidden)


def open_store(workspace: Workspace) -> MlflowClient:
    """A client of the store, which is created on first use; experiment ``puma`` exists in it.

    The store is also made the current one of this process, for ``mlflow.*`` calls. Raises
    RegistryError, saying what to do, for a store that cannot be used.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # One bar for every small file that is read, on the terminal that is to show an answer.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # A kept connection would go on writing into a mlflow.db that was deleted meanwhile.
    os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    uri = tracking_uri(workspace)
    import mlflow

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    folder = workspace.root / ".puma"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # MLflow's first migration is not safe against a second process that starts it too.
    with FileLock(folder / "mlflow.lock"), _alone(uri):
        if is_default():
            _refuse_file_store(workspace)
            _create(workspace)
            _refuse_unknown_schema(database(workspace))
        client = _connect(uri)
        _check_experiment(client, workspace, uri)
    _make_current(mlflow, uri)
    return client


def writing(workspace: Workspace) -> FileLock:
    """Held by whoever creates versions or moves aliases. The store must have been opened.

    Two at once would both find a version missing and create it, or both a champion to follow.
    """
    return FileLock(workspace.root / ".puma" / "register.lock")


def experiment_id(client: MlflowClient) -> str:
    """The experiment of every run that PUMA logs. The store must have been opened."""
    return str(client.get_experiment_by_name(EXPERIMENT).experiment_id)


def _make_current(mlflow: object, uri: str) -> None:
    """Point MLflow's global functions at ``uri`` and leave the environment as the user set it.

    MLflow exports what it is given, and the next project opened by this process would take
    that for the user's own override.
    """
    names = (OVERRIDE, "MLFLOW_REGISTRY_URI")
    before = {name: os.environ.get(name) for name in names}
    mlflow.set_tracking_uri(uri)  # type: ignore[attr-defined]
    mlflow.set_registry_uri(uri)  # type: ignore[attr-defined]
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _refuse_file_store(workspace: Workspace) -> None:
    runs = workspace.root / "mlruns"
    for found in sorted(runs.glob("*/meta.yaml")):
        if found.parent.name.isdigit():
            raise RegistryError(
                f"{found}: left by MLflow's old file store; because of it, plain `mlflow ui` "
                "would open mlruns instead of mlflow.db, and die. Move the folder "
                f"{found.parent} out of the project (it is no part of PUMA's registry)"
            )


def _create(workspace: Workspace) -> None:
    """Make the default store, unless it exists: under another name, then renamed.

    Killed half-way through its first migration, a database can neither be used nor migrated.
    """
    path = database(workspace)
    if path.exists() and path.stat().st_size > 0:
        return
    for leftover in ("-journal", "-wal", "-shm"):  # of a deleted database: would corrupt this one
        path.with_name(path.name + leftover).unlink(missing_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="mlflow-", dir=workspace.root / ".puma") as folder,
        contextlib.chdir(workspace.root),  # where experiment "Default" puts its artifacts
    ):
        new = Path(folder, path.name)
        client = _connect(f"sqlite:///{new.resolve()}")
        client.create_experiment(EXPERIMENT, artifact_location=_artifacts(workspace))
        new.replace(path)


def _artifacts(workspace: Workspace) -> str:
    return (workspace.root.resolve() / "mlruns" / EXPERIMENT).as_uri()


def _refuse_unknown_schema(path: Path) -> None:
    """Look before MLflow does: it would alter a newer database, and retry for two minutes on
    a file that is no database."""
    import mlflow

    try:
        with contextlib.closing(sqlite3.connect(path, timeout=20)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
            if ("alembic_version",) not in tables:
                return
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        raise RegistryError(f"{path}: not a usable database ({error}); {REBUILD}") from error
    known = Path(mlflow.__file__).parent / "store" / "db_migrations" / "versions"
    if row and not any(known.glob(f"{row[0]}_*.py")):
        raise RegistryError(
            f"{path}: made by a newer MLflow than the installed {mlflow.__version__} (schema "
            f"{row[0]}); install the newer MLflow again, or {REBUILD}"
        )


@contextlib.contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Held by whoever may be the first in a PostgreSQL database, on whatever machine.

    Raises RegistryError, sooner than MLflow would, for a database that cannot be reached.
    """
    if not uri.startswith("postgresql"):
        yield
        return
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    with contextlib.ExitStack() as held:
        try:
            connection = held.enter_context(create_engine(uri, poolclass=NullPool).connect())
            connection.execute(text(f"SET LOCAL lock_timeout = '{PATIENCE}s'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('puma'))"))
        except ImportError as error:
            raise RegistryError(
                f"{without_password(uri)}: its driver is not installed ({error}); run "
                "`pip install 'puma-unlearning[postgresql]'`"
            ) from error
        except SQLAlchemyError as error:
            raise _cannot_open(uri, error) from error
        yield


def _connect(uri: str) -> MlflowClient:
    from alembic.util import CommandError
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_registered_models(max_results=1)
    except (MlflowException, SQLAlchemyError, CommandError) as error:
        raise _cannot_open(uri, error) from error
    return client


def _cannot_open(uri: str, error: Exception) -> RegistryError:
    what = without_password(str(error).splitlines()[0])
    return RegistryError(f"{without_password(uri)}: {_remedy(uri, what)}")


def _remedy(uri: str, what: str) -> str:
    if not uri.startswith("sqlite:"):
        return f"cannot be opened ({what}); check the address in {OVERRIDE} and that it is up"
    if "out-of-date database schema" in what:
        return (
            f"its schema is not the installed MLflow's ({what.split('. ')[0]}). Made by an older "
            f"MLflow: copy the file, then run `mlflow db upgrade '{uri}'`. If that fails, its "
            f"first creation was interrupted: {REBUILD}"
        )
    return (
        f"cannot be migrated ({what}): a migration was interrupted in the middle. If it held "
        f"runs of your own, restore a backup; otherwise {REBUILD}"
    )


def _create_experiment(client: MlflowClient, location: str | None) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_experiment(EXPERIMENT, artifact_location=location)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":  # somebody else was quicker
            raise


def _check_experiment(client: MlflowClient, workspace: Workspace, uri: str) -> None:
    """Make experiment ``puma`` where it is missing; refuse one that cannot take artifacts.

    One that the UI's server made would place its artifacts at an address which only works
    through that server; MLflow keeps absolute artifact paths, which a moved folder breaks.
    """
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        _create_experiment(client, None if is_server(uri) else _artifacts(workspace))
        experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment.lifecycle_stage != "active":
        raise RegistryError(
            f"{without_password(uri)}: experiment {EXPERIMENT!r} was deleted, and the runs of "
            "every version with it; restore it: MLFLOW_TRACKING_URI=<the store> mlflow "
            f"experiments restore --experiment-id {experiment.experiment_id}"
        )
    if is_default() and experiment.artifact_location != _artifacts(workspace):
        raise RegistryError(
            f"{database(workspace)}: its models lie in {experiment.artifact_location}, not in "
            f"{_artifacts(workspace)}: the project folder was moved or copied, and MLflow keeps "
            f"absolute paths. Move it back, or {REBUILD} at the new place"
        )
