"""Deleting runs, models and versions for good, as far as the tracking store allows it.

MLflow's client only marks runs and models as deleted. Where this process opens the database
itself (SQLite, PostgreSQL) their rows are deleted as `mlflow gc` does it. Those behind a server
stay.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from puma.errors import RegistryError
from puma.project.workspace import Workspace
from puma.registry.store import database

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

NOT_THERE = "RESOURCE_DOES_NOT_EXIST"


def local_folder(location: str) -> Path | None:
    """Return the folder of artifacts that lie on this machine; None for those elsewhere."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    if urlsplit(location).scheme not in ("", "file"):
        return None
    return Path(local_file_uri_to_path(location)).resolve()


def find_run(client: MlflowClient, run_id: str) -> Run | None:
    """Return a run, also one that is marked as deleted; None when it is gone."""
    return _or_none(lambda: client.get_run(run_id))


def find_model(client: MlflowClient, model_id: str) -> LoggedModel | None:
    """Return a logged model, also one that is marked as deleted; None when it is gone."""
    return _or_none(lambda: _store(client).get_logged_model(model_id, allow_deleted=True))


def delete_model(client: MlflowClient, model_id: str) -> None:
    """Delete a logged model, if it exists: its files, then its rows."""
    model = find_model(client, model_id)
    if model is None:
        return
    _delete_files(model.artifact_location)
    client.delete_logged_model(model_id)
    if can_delete_rows(client):
        _store(client)._hard_delete_logged_model(model_id)


def delete_run(client: MlflowClient, run_id: str) -> None:
    """Delete a run, if it exists: its files, then its parameters, metrics, tags and itself."""
    run = find_run(client, run_id)
    if run is None:
        return
    _delete_files(run.info.artifact_uri)
    client.delete_run(run_id)
    if can_delete_rows(client):
        _store(client)._hard_delete_run(run_id)


def delete_version(client: MlflowClient, name: str, version: int) -> None:
    """Delete a registered version, if it exists, with its tags.

    MLflow keeps the bare number and never gives it again.
    """
    found = _or_none(lambda: client.get_model_version(name, str(version)))
    if found is None:
        return
    for tag in found.tags:  # MLflow would keep them, out of sight
        client.delete_model_version_tag(name, str(version), tag)
    client.delete_model_version(name, str(version))


def compact(workspace: Workspace) -> None:
    """Rewrite the file of the default store: SQLite keeps deleted rows until it needs their room.

    Raises:
        RegistryError: Another process is using it.
    """
    path = database(workspace)
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=20)) as connection:
            connection.execute("VACUUM")
    except sqlite3.OperationalError as error:
        raise RegistryError(
            f"{path}: cannot be compacted ({error}); stop what uses it, such as `puma ui`, and run "
            "the command again"
        ) from error


def _delete_files(location: str) -> None:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    get_artifact_repository(location).delete_artifacts()
    folder = local_folder(location)
    if folder is not None and folder.parent.is_dir() and not any(folder.parent.iterdir()):
        folder.parent.rmdir()  # named for the run or the model


def can_delete_rows(client: MlflowClient) -> bool:
    """Whether rows can be deleted from here, not only be marked."""
    return hasattr(_store(client), "_hard_delete_run")


def _store(client: MlflowClient) -> Any:
    return client._tracking_client.store


def _or_none(call: Any) -> Any:
    """What ``call`` returns; None when the store does not have it."""
    from mlflow.exceptions import MlflowException

    try:
        return call()
    except MlflowException as error:
        if error.error_code == NOT_THERE:
            return None
        raise
