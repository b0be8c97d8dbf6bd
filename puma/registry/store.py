"""The tracking store: its address, its creation, and the errors of a store that cannot be used.

By default it is what plain ``mlflow ui`` opens in the project root: ``mlflow.db``, with the
artifacts under ``mlruns/``. MLFLOW_TRACKING_URI names another one (PostgreSQL, a server).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

from filelock import FileLock

from puma.errors import PumaError, RegistryError
from puma.project.workspace import Workspace
from puma.registry.connection import BUSY, REBUILD, alone, connect, has_experiment
from puma.registry.store_errors import first_line, is_fault, remedy, showable, without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

P = ParamSpec("P")
T = TypeVar("T")
EXPERIMENT = "puma"
KIND = {"mlflow.experimentKind": "custom_model_development"}  # else the UI takes it for GenAI's
OVERRIDE = "MLFLOW_TRACKING_URI"
# Only where the user has not set them.
DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # One bar for every small file that is read, on the terminal that is to show an answer.
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # A server's client would print addresses among the answers of a command.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # A kept connection would go on writing into a mlflow.db that was deleted meanwhile.
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",
    # A server that is away is to be reported within seconds, not after minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "PGCONNECT_TIMEOUT": "10",
}
SQLITE = "sqlite:///"


class NoRegistryError(RegistryError):
    """There is no registry at the address, or none yet."""


def database(workspace: Workspace) -> Path:
    """The SQLite file of the default store. It is not used with an override."""
    return workspace.root.resolve() / "mlflow.db"


def tracking_uri(workspace: Workspace) -> str:
    """The address of the store of ``workspace``, the same from every working directory.

    Raises:
        RegistryError: MLflow cannot use the store or the project folder.
    """
    uri = os.environ.get(OVERRIDE)
    if not uri:
        path = str(database(workspace))
        if found := sorted(set(path) & set("#%?")):
            raise RegistryError(
                f"the project folder {workspace.root} has {' and '.join(found)} in its path, "
                "and MLflow cannot load models from there; rename the folder"
            )
        return f"{SQLITE}{path}"
    if "://" not in uri or uri.startswith("file:"):
        raise RegistryError(
            f"{OVERRIDE} is {uri!r}: MLflow keeps no model registry in plain files; name a "
            "database (sqlite:///…, postgresql://…) or a server (http://…), or unset it"
        )
    relative = uri.removeprefix(SQLITE)
    if relative != uri and not Path(relative).is_absolute() and not relative.startswith("file:"):
        # Left as it is, it would be another store in every working directory.
        return f"{SQLITE}{workspace.root.resolve() / relative}"
    if uri.startswith("postgresql://") and importlib.util.find_spec("psycopg2"):
        # Which driver SQLAlchemy takes when none is named depends on its version.
        return uri.replace("postgresql://", "postgresql+psycopg2://", 1)
    return uri


def is_default() -> bool:
    """Whether the store is the project's own SQLite file."""
    return not os.environ.get(OVERRIDE)


def is_server(uri: str) -> bool:
    """Whether the store is behind an MLflow server."""
    return uri.startswith(("http://", "https://"))


def open_store(workspace: Workspace, *, create: bool = True) -> MlflowClient:
    """Connect to the store, which also becomes the current one for ``mlflow.*`` calls.

    Args:
        workspace: The project.
        create: Whether to create the store and its experiment ``puma`` on first use.

    Raises:
        NoRegistryError: There is no store, or no experiment in it, and none is to be created.
            Nothing was written.
        RegistryError: The store cannot be used.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    uri = tracking_uri(workspace)
    import mlflow

    # It logs what it raises as well, with the statement and all of its values.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    # It tells of missing files, which raise an error that says what to do.
    logging.getLogger("mlflow.store.artifact.artifact_repo").setLevel(logging.WARNING)
    with reaching(workspace), contextlib.ExitStack() as held:
        if create:
            # MLflow's first migration is not safe against a second process that starts it too.
            held.enter_context(_lock(workspace, "mlflow.lock"))
            held.enter_context(alone(uri))
        else:  # nothing is written, so that who may only read can do so
            _refuse_missing(workspace, uri)
        if is_default():
            _refuse_file_store(workspace)
            if create:
                _create(workspace)
        if (path := _sqlite_file(uri)) is not None:
            _refuse_unknown_schema(path)
        client = connect(uri)
        _check_experiment(client, workspace, uri)
        if create:
            _set_kind(client)
    _make_current(mlflow, uri)
    return client


@contextlib.contextmanager
def reaching(workspace: Workspace) -> Iterator[None]:
    """Raise RegistryError in place of a failure of the store's disk, database or server.

    Other exceptions pass unchanged.
    """
    try:
        yield
    except PumaError:
        raise
    except Exception as error:
        if not is_fault(error):
            raise
        uri = tracking_uri(workspace)
        raise RegistryError(
            f"{without_password(uri)}: {first_line(error)}; {remedy(uri, error) or 'see to that'} "
            "and run the same command again. Every version is registered as a whole or not at all"
        ) from showable(error)


def reaches_store(
    act: Callable[Concatenate[Workspace, P], T],
) -> Callable[Concatenate[Workspace, P], T]:
    """Decorate a function of a workspace: all of it runs within :func:`reaching`."""

    def within(workspace: Workspace, /, *arguments: P.args, **named: P.kwargs) -> T:
        with reaching(workspace):
            return act(workspace, *arguments, **named)

    functools.update_wrapper(within, act)
    return within


def writing(workspace: Workspace) -> FileLock:
    """The lock to hold while creating versions or moving aliases, against other processes here."""
    return _lock(workspace, "register.lock")


def _lock(workspace: Workspace, name: str) -> FileLock:
    folder = workspace.root / ".puma"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FileLock(folder / name)


def experiment_id(client: MlflowClient) -> str:
    """The id of the experiment of all runs that PUMA logs. The store must have been opened."""
    return str(client.get_experiment_by_name(EXPERIMENT).experiment_id)


def _make_current(mlflow: object, uri: str) -> None:
    """Point MLflow's global functions at ``uri`` and leave the environment as the user set it.

    MLflow exports what it is given, and the next project opened by this process would take
    that for the user's own override.
    """
    with environment_kept(OVERRIDE, "MLFLOW_REGISTRY_URI"):
        mlflow.set_tracking_uri(uri)  # type: ignore[attr-defined]
        mlflow.set_registry_uri(uri)  # type: ignore[attr-defined]


@contextlib.contextmanager
def environment_kept(*names: str) -> Iterator[None]:
    """Restore these environment variables afterwards."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _refuse_missing(workspace: Workspace, uri: str) -> None:
    path = _sqlite_file(uri)
    if is_server(uri):
        found = connect(uri).get_experiment_by_name(EXPERIMENT) is not None
    elif path is not None and (not path.exists() or path.stat().st_size == 0):
        found = False  # to connect would create it
    else:
        if path is not None:
            _refuse_unknown_schema(path)
        found = has_experiment(uri, EXPERIMENT)
    if found:
        return
    if is_default():
        raise NoRegistryError(
            f"{database(workspace)}: there is no registry yet; run `dvc repro`, which makes it"
        )
    raise NoRegistryError(
        f"{without_password(uri)}: there is no registry of PUMA at this address; correct or unset "
        f"{OVERRIDE}, or run `dvc repro`, which makes one there"
    )


def _sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for another store, and for a `file:` address."""
    path = uri.removeprefix(SQLITE)
    return None if path == uri or path.startswith("file:") else Path(path.partition("?")[0])


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
    folder = workspace.root / ".puma"
    for killed in folder.glob("mlflow-*/"):  # who made it held the lock that is held now
        shutil.rmtree(killed)
    for leftover in ("-journal", "-wal", "-shm"):  # of a deleted database: would corrupt this one
        path.with_name(path.name + leftover).unlink(missing_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="mlflow-", dir=folder) as made,
        contextlib.chdir(workspace.root),  # where experiment "Default" puts its artifacts
    ):
        new = Path(made, path.name)
        client = connect(f"sqlite:///{new.resolve()}")
        _create_experiment(client, workspace, "sqlite:")
        new.replace(path)


def _artifacts(workspace: Workspace) -> str:
    return (workspace.root.resolve() / "mlruns" / EXPERIMENT).as_uri()


def _refuse_unknown_schema(path: Path) -> None:
    """Check before MLflow: it would alter a newer database, and retry two minutes on a bad file.

    A missing file is made, empty, as MLflow would.
    """
    import mlflow

    try:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
            if ("alembic_version",) not in tables:
                return
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error as error:
        if is_fault(error):
            raise
        raise RegistryError(f"{path}: not a usable database ({error}); {_rebuild()}") from error
    known = Path(mlflow.__file__).parent / "store" / "db_migrations" / "versions"
    if row and not any(known.glob(f"{row[0]}_*.py")):
        raise RegistryError(
            f"{path}: made by a newer MLflow than the installed {mlflow.__version__} (schema "
            f"{row[0]}); install the newer MLflow again, or {_rebuild()}"
        )


def _rebuild() -> str:
    return REBUILD if is_default() else f"restore a backup, or name another store in {OVERRIDE}"


def _create_experiment(client: MlflowClient, workspace: Workspace, uri: str) -> None:
    from mlflow.exceptions import MlflowException

    location = None if is_server(uri) else _artifacts(workspace)
    if location is not None:  # whether it is there tells whether a machine has the artifacts
        _artifact_folder(location).mkdir(parents=True, exist_ok=True)
    try:
        client.create_experiment(EXPERIMENT, artifact_location=location, tags=KIND)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":  # somebody else was quicker
            raise


def _set_kind(client: MlflowClient) -> None:
    """Set the kind of an experiment that has none: of an earlier PUMA."""
    experiment = client.get_experiment_by_name(EXPERIMENT)
    for name, value in KIND.items():
        if name not in experiment.tags:
            client.set_experiment_tag(experiment.experiment_id, name, value)


def _check_experiment(client: MlflowClient, workspace: Workspace, uri: str) -> None:
    """Make experiment ``puma`` where it is missing; refuse one that cannot take artifacts.

    One that the UI's server made would place its artifacts at an address which only works
    through that server; MLflow keeps absolute artifact paths, which a moved folder breaks.
    """
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        _create_experiment(client, workspace, uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment.lifecycle_stage != "active":
        raise RegistryError(
            f"{without_password(uri)}: experiment {EXPERIMENT!r} was deleted, and the runs of "
            f"every version with it; run `{OVERRIDE}='{without_password(uri)}' mlflow experiments "
            f"restore --experiment-id {experiment.experiment_id}`"
        )
    if is_default():
        _refuse_moved(workspace, experiment.artifact_location)
    elif not is_server(uri) and experiment.artifact_location.startswith("file:"):
        folder = _artifact_folder(experiment.artifact_location)
        if not folder.is_dir():
            raise RegistryError(
                f"{without_password(uri)}: the files of its models lie in {folder}, where it was "
                "first used, and that folder is not here; share it, or put `mlflow server "
                f"--artifacts-destination …` in front of the database and {OVERRIDE} to that"
            )


def _artifact_folder(location: str) -> Path:
    return Path(url2pathname(urlsplit(location).path))


def _refuse_moved(workspace: Workspace, location: str) -> None:
    if location != _artifacts(workspace):
        raise RegistryError(
            f"{database(workspace)}: its models lie in {location}, not in "
            f"{_artifacts(workspace)}: the project folder was moved or copied, and MLflow keeps "
            f"absolute paths. Move it back, or {REBUILD} at the new place"
        )
