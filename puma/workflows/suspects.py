"""A registered version, loaded with the rows it was trained on, so that these can be ranked."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from puma.data import Dataset
from puma.errors import RegistryError
from puma.lineage.records import ModelRecord
from puma.models.tasks import weighted
from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, Registry
from puma.requests.archive import find_data, find_request


def load_version(
    workspace: Workspace, dataset: str, version: str | int = "champion"
) -> tuple[RegisteredVersion, nn.Module, Dataset]:
    """Load a registered version and the dataset with the rows it was trained on.

    A removal was not trained on the rows that it took out, so these are left out.

    Args:
        workspace: The project.
        dataset: The dataset's name.
        version: A number, an alias, or the name of a version in params.yaml, such as "original".

    Returns:
        The version, the model with trainable layers, and the dataset, with the class weights of
        params.yaml.

    Raises:
        RegistryError: There is no such version, or PUMA did not register it.
        DataError: The project does not hold its data or its request.
    """
    registry = Registry.open(workspace)
    found = _find(registry, dataset, version)
    model = registry.load_module(found)
    data = find_data(workspace, dataset, found.data_digest)
    if found.deletion_digest is not None:
        removed = find_request(workspace, data, found.deletion_digest)
        data = removed.remaining
    rows = weighted(data.train, workspace.settings.for_dataset(dataset).training.class_weights)
    return found, model, replace(data, train=rows)


def _find(registry: Registry, dataset: str, version: str | int) -> RegisteredVersion:
    """By the name of a version that the pipeline made last; else by number or alias."""
    workspace = registry.workspace
    if str(version) not in workspace.settings.versions:
        return registry.version(dataset, version)
    fingerprint = ModelRecord.read(workspace.model_record(dataset, str(version))).fingerprint
    found = registry.find(dataset, fingerprint)
    if found is None:
        raise RegistryError(f"{version!r} of {dataset!r} is not registered yet; run `dvc repro`")
    return found
