"""Deleting registered versions for good: where their artifacts are, and what else is theirs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from puma.errors import RegistryError
from puma.registry.deletion import (
    can_delete_rows,
    compact,
    delete_model,
    delete_run,
    delete_version,
    find_model,
    find_run,
    local_folder,
)
from puma.registry.registry import Registry
from puma.registry.store import EXPERIMENT, experiment_id, is_default
from puma.registry.tombstones import Tombstone, write_tombstone
from puma.registry.versions import every_version

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel


class RunAndModel(NamedTuple):
    """MLflow's ids of a run and of the model logged in it. An empty id names nothing."""

    run_id: str
    model_id: str


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


def delete_logged(registry: Registry, logged: RunAndModel) -> None:
    """Delete a model and its run, if they exist."""
    if logged.model_id:
        delete_model(registry.client, logged.model_id)
    if logged.run_id:
        delete_run(registry.client, logged.run_id)


def deletes_rows(registry: Registry) -> bool:
    """Whether rows can be deleted from here, not only be marked."""
    return can_delete_rows(registry.client)
