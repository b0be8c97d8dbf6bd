"""Connecting to a store: one migration at a time, and errors that say what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from puma.errors import RegistryError
from puma.registry.store_errors import first_line, remedy, showable, without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from sqlalchemy import Connection

RESTORE = (  # a version of which something was changed or is gone
    "restore mlruns/ and mlflow.db from a backup; without one, see docs/operations.md, "
    '"Without a backup"'
)
REBUILD = "delete mlflow.db and mlruns/puma, then run `dvc repro`, which registers every version"
BUSY = 20.0  # seconds, as long as MLflow itself waits for a SQLite file that is written to
PATIENCE = 60  # seconds to wait for a migration by another process


@contextlib.contextmanager
def alone(uri: str) -> Iterator[None]:
    """Hold the lock of a PostgreSQL database, across machines; other stores need none.

    MLflow migrates the database on the first connection, and not safely if two do.

    Raises:
        RegistryError: The database cannot be reached, or its driver is not installed.
    """
    if not uri.startswith("postgresql"):
        yield
        return
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    with contextlib.ExitStack() as held:
        connection = held.enter_context(_connection(uri))
        try:
            connection.execute(text(f"SET LOCAL lock_timeout = '{PATIENCE}s'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('puma'))"))
        except SQLAlchemyError as error:
            raise _cannot_open(uri, error) from showable(error)
        yield


def has_experiment(uri: str, name: str) -> bool:
    """Whether the database holds MLflow's experiment of that name. Nothing is created.

    Raises:
        RegistryError: The database cannot be reached, or its driver is not installed.
    """
    from sqlalchemy import inspect, text
    from sqlalchemy.exc import SQLAlchemyError

    with _connection(uri) as connection:
        try:
            if not inspect(connection).has_table("experiments"):
                return False
            query = text("SELECT 1 FROM experiments WHERE name = :name")
            return connection.execute(query, {"name": name}).first() is not None
        except SQLAlchemyError as error:
            raise _cannot_open(uri, error) from showable(error)


def _connection(uri: str) -> Connection:
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    waiting = {"timeout": BUSY} if uri.startswith("sqlite") else {}
    try:
        return create_engine(uri, poolclass=NullPool, connect_args=waiting).connect()
    except ImportError as error:
        raise RegistryError(
            f"{without_password(uri)}: its driver is not installed ({error}); run "
            "`pip install 'puma-unlearning[postgresql]'`"
        ) from error
    except SQLAlchemyError as error:
        raise _cannot_open(uri, error) from showable(error)


def connect(uri: str) -> MlflowClient:
    """A client of the store, whose tables are created if there are none.

    Raises:
        RegistryError: The store cannot be used, or is of another release of MLflow.
    """
    from alembic.util import CommandError
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    if not uri.startswith("http"):
        _refuse_other_schema(uri)
    try:
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_registered_models(max_results=1)
    except (MlflowException, SQLAlchemyError, CommandError) as error:
        raise _cannot_open(uri, error) from showable(error)
    return client


def _refuse_other_schema(uri: str) -> None:
    """Check before MLflow, which brings some older databases up to date without asking."""
    import mlflow
    from alembic.script import ScriptDirectory
    from sqlalchemy import inspect, text

    with _connection(uri) as connection:
        if not inspect(connection).has_table("alembic_version"):
            return
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    migrations = Path(mlflow.__file__).parent / "store" / "db_migrations"
    due = ScriptDirectory(str(migrations)).get_current_head()
    if found != due:
        message = _other_schema(uri, f"found version {found}, but expected {due}")
        raise RegistryError(f"{without_password(uri)}: {message}")


def _cannot_open(uri: str, error: Exception) -> RegistryError:
    what = first_line(error)
    if (known := remedy(uri, error)) is not None:
        message = f"cannot be opened ({what}); {known}"
    else:
        message = (
            f"cannot be migrated ({what}): a migration was interrupted in the middle. If it held "
            f"runs of your own, restore a backup; otherwise {REBUILD}"
        )
    return RegistryError(f"{without_password(uri)}: {message}")


def _other_schema(uri: str, what: str) -> str:
    message = f"its schema is not the installed MLflow's ({what}). Made by an older MLflow: "
    if uri.startswith("sqlite:"):
        return message + (
            f"copy the file, then run `mlflow db upgrade '{uri}'`. If that fails, its first "
            f"creation was interrupted: {REBUILD}"
        )
    return message + (
        "when nobody uses it, back it up and run `mlflow db upgrade <its address>`. Made by a "
        "newer one: install that MLflow"
    )
