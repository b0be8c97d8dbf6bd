"""A registered version, loaded with the rows it was trained on, so that these can be ranked."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from puma.data import Dataset
from puma.errors import RegistryError
from puma.lineage.records import ModelRecord
from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, list_versions, model_name, open_store
from puma.registry.loading import load_module
from puma.registry.store import reaches_store
from puma.registry.versions import get_version
from puma.requests.archive import find_data, find_request


@reaches_store
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
        The registry's row, the model with trainable layers, and the dataset.

    Raises:
        RegistryError: There is no such version, or PUMA did not register it.
        DataError: The project does not hold its data or its request.
    """
    row = _find(workspace, dataset, version)
    client = open_store(workspace)
    found = client.get_model_version(model_name(dataset), str(row.version))
    model = load_module(client, found, workspace)
    data = find_data(workspace, dataset, row.data_digest)
    if row.deletion_digest is not None:
        removed = find_request(workspace, data, row.deletion_digest)
        data = replace(data, train=data.train.without(removed.rows))
    return row, model, data


@reaches_store
def _find(workspace: Workspace, dataset: str, version: str | int) -> RegisteredVersion:
    """By the name of a version that the pipeline made last; else by number or alias."""
    client = open_store(workspace)
    if str(version) not in workspace.settings.versions:
        return get_version(client, dataset, version)
    fingerprint = ModelRecord.read(workspace.model_record(dataset, str(version))).fingerprint
    for row in list_versions(client, dataset):
        if row.fingerprint == fingerprint:
            return row
    raise RegistryError(f"{version!r} of {dataset!r} is not registered yet; run `dvc repro`")
