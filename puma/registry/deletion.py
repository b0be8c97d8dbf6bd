"""Deleting runs, models and versions for good, as far as the tracking store allows it.

MLflow's client only marks runs and models as deleted. Where this process opens the database
itself (SQLite, PostgreSQL) their rows are deleted as `mlflow gc` does it. Those behind a server
stay.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from puma.errors import RegistryError
from puma.project.workspace import Workspace
from puma.registry.store import EXPERIMENT, database, experiment_id, is_default
from puma.registry.tombstones import Tombstone, write_tombstone
from puma.registry.versions import every_version

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

    from puma.registry.registry import Registry

NOT_THERE = "RESOURCE_DOES_NOT_EXIST"


class RunAndModel(NamedTuple):
    """MLflow's ids of a run and of the model logged in it. An empty id names nothing."""

    run_id: str
    model_id: str


def local_folder(location: str) -> Path | None:
    """Return the folder of artifacts that lie on this machine; None for those elsewhere."""
    from mlflow.utils.file_utils import local_file_uri_to_path

    if urlsplit(location).scheme not in ("", "file"):
        return None
    return Path(local_file_uri_to_path(location)).resolve()


def artifact_store(registry: Registry) -> Path | None:
    """Return the folder of all models and runs; None where it is on another machine."""
    experiment = registry.client.get_experiment_by_name(EXPERIMENT)
    return local_folder(experiment.artifact_location)


def artifact_locations(registry: Registry, logged: Iterable[RunAndModel]) -> list[str]:
    """Return the addresses of the artifacts of runs and models, of those that still exist."""
    locations = []
    for run_id, model_id in logged:
        model = find_model(registry.client, model_id) if model_id else None
        run = find_run(registry.client, run_id) if run_id else None
        locations += [] if model is None else [str(model.artifact_location)]
        locations += [] if run is None else [str(run.info.artifact_uri)]
    return locations


def artifact_folders(registry: Registry, logged: Iterable[RunAndModel]) -> list[Path]:
    """Return those of :func:`artifact_locations` that are folders on this machine."""
    folders = map(local_folder, artifact_locations(registry, logged))
    return [folder for folder in folders if folder is not None]


def versions_of_run(registry: Registry, run_id: str) -> list[tuple[str, int]]:
    """Return the name and number of every version, of any registered model, of this run."""
    found = every_version(registry.client, f"run_id='{run_id}'")
    return [(version.name, int(version.version)) for version in found]


def find_unfinished(
    registry: Registry, holding: Iterable[Path], known: Collection[RunAndModel]
) -> list[RunAndModel]:
    """Return what interrupted attempts to register a version left behind.

    Args:
        registry: The registry.
        holding: The files that hold the version's weights.
        known: Runs and models that are accounted for.

    Returns:
        The models with such a file to which no registered version leads. The id of the run is
        empty where a registered version needs it.
    """
    taken = {logged.model_id for logged in known}
    runs = set()
    for version in every_version(registry.client, ""):
        taken.add(version.source.removeprefix("models:/"))
        runs.add(version.run_id)
    paths = tuple(holding)
    found = []
    for model in _logged_models(registry.client):
        folder = local_folder(model.artifact_location)
        held = folder is not None and any(path.is_relative_to(folder) for path in paths)
        if held and model.model_id not in taken:
            run_id = model.source_run_id or ""
            found.append(RunAndModel("" if run_id in runs else run_id, model.model_id))
    return found


def _logged_models(client: MlflowClient) -> Iterator[LoggedModel]:
    experiment, token = [experiment_id(client)], None
    while True:
        page = client.search_logged_models(experiment, page_token=token)
        yield from page
        if not (token := page.token):
            return


def delete_registered(registry: Registry, tombstone: Tombstone, logged: RunAndModel) -> None:
    """Write the tombstone of a version, then delete its model, its run, and last itself.

    Raises:
        RegistryError: Files are there all the same, or the database cannot be compacted.
    """
    folders = artifact_folders(registry, [logged])
    write_tombstone(registry.client, tombstone)
    delete_logged(registry, logged)
    delete_version(registry.client, tombstone.name, tombstone.version)
    if is_default():
        compact(registry.workspace)
    if left := [str(folder) for folder in folders if folder.exists()]:
        raise RegistryError(
            f"{', '.join(left)}: MLflow did not delete it; delete it by hand, and run the command "
            "again"
        )


def deletes_rows(registry: Registry) -> bool:
    """Whether rows can be deleted from here, not only be marked."""
    return _deletes_rows(registry.client)


def find_run(client: MlflowClient, run_id: str) -> Run | None:
    """Return a run, also one that is marked as deleted; None when it is gone."""
    return _or_none(lambda: client.get_run(run_id))


def find_model(client: MlflowClient, model_id: str) -> LoggedModel | None:
    """Return a logged model, also one that is marked as deleted; None when it is gone."""
    return _or_none(lambda: _store(client).get_logged_model(model_id, allow_deleted=True))


def delete_logged(registry: Registry, logged: RunAndModel) -> None:
    """Delete a model and its run, if they exist."""
    if logged.model_id:
        delete_model(registry.client, logged.model_id)
    if logged.run_id:
        delete_run(registry.client, logged.run_id)


def delete_model(client: MlflowClient, model_id: str) -> None:
    """Delete a logged model, if it exists: its files, then its rows."""
    model = find_model(client, model_id)
    if model is None:
        return
    _delete_files(model.artifact_location)
    client.delete_logged_model(model_id)
    if _deletes_rows(client):
        _store(client)._hard_delete_logged_model(model_id)


def delete_run(client: MlflowClient, run_id: str) -> None:
    """Delete a run, if it exists: its files, then its parameters, metrics, tags and itself."""
    run = find_run(client, run_id)
    if run is None:
        return
    _delete_files(run.info.artifact_uri)
    client.delete_run(run_id)
    if _deletes_rows(client):
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


def _deletes_rows(client: MlflowClient) -> bool:
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
