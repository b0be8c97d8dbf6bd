"""Logging a model: its network is exported, or the parent's graph is taken over.

A removal changes weights and nothing else. To trace the network again, and to have MLflow search
the installed packages for what it needs, takes three seconds for what the parent's files say.
"""

from __future__ import annotations

import json
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puma.errors import RegistryError
from puma.lineage.records import ModelRecord
from puma.project.files import sha256, write_bytes
from puma.registry.export import exports_through_memory
from puma.registry.loading import ARCHIVE, from_files, load_identity, read_archive
from puma.registry.versions import GRAPH

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models import Model
    from torch import nn

MLMODEL = "MLmodel"
FETCHED_FROM = "registered_model_meta"  # written by MLflow into a copy that it fetches
# What MLmodel says of the graph; the rest of it is about one logged model.
OF_THE_GRAPH = ("flavors", "signature", "saved_input_example_info")


def log_model(
    client: MlflowClient,
    model: nn.Module,
    record: ModelRecord,
    parent: ModelVersion | None,
    tags: dict[str, str],
) -> tuple[str, dict[str, str]]:
    """Log ``model`` to the active run as pt2, which holds no pickle.

    The graph is the parent's if both are the same network of PUMA's own, and if the parent's files
    are as PUMA wrote them, with the same PyTorch and MLflow. Otherwise it is exported.

    Returns:
        The logged model's id, and the tag by which its graph is known again, if it can be.
    """
    from mlflow.models import Model

    flavor = _Flavor(client, model, record, parent)
    info = Model.log(
        None,
        flavor,
        name="model",
        tags=tags,
        serialization_format="pt2",
        validate_serving_input=parent is None,
    )
    return str(info.model_id), flavor.tags


class _Flavor:
    """Writes the files of a logged model, as :meth:`mlflow.models.Model.log` asks a flavour to."""

    def __init__(
        self,
        client: MlflowClient,
        model: nn.Module,
        record: ModelRecord,
        parent: ModelVersion | None,
    ) -> None:
        self.client, self.model, self.record, self.parent = client, model, record, parent
        self.tags: dict[str, str] = {}

    def save_model(self, path: str, mlflow_model: Model, **_: Any) -> None:
        folder = Path(path)
        if not self._take_over(folder, mlflow_model):
            self._export(folder, mlflow_model)
        if (digest := graph_digest(folder)) is not None:
            self.tags[GRAPH] = digest

    def _take_over(self, folder: Path, mlflow_model: Model) -> bool:
        """Write the parent's files with this model's weights, or nothing."""
        if (taken := self._parents_files()) is None:
            return False
        described, files = taken
        for name, content in files.items():
            write_bytes(folder / name, content)
        mlflow_model.flavors = described.flavors
        mlflow_model.signature = described.signature
        mlflow_model.saved_input_example_info = described.saved_input_example_info
        mlflow_model.model_size_bytes = described.model_size_bytes
        mlflow_model.save(str(folder / MLMODEL))
        return True

    def _parents_files(self) -> tuple[Model, dict[str, bytes]] | None:
        """What MLmodel says, and the other files, with this model's weights; or nothing."""
        parent = self.parent
        if parent is None or not parent.run_id:
            return None
        graph = self.client.get_run(parent.run_id).data.tags.get(GRAPH)
        try:
            # What an earlier PUMA registered has no such tag.
            if graph is None or not self._is_of_the_same_network(parent):
                return None
            return from_files(parent, lambda folder: self._with_weights(folder, graph))
        except RegistryError:  # the parent's files are gone or were changed: its own fault alone
            return None

    def _is_of_the_same_network(self, parent: ModelVersion) -> bool:
        if ":" in self.record.model.name:  # the user's own, whose code may have changed since
            return False
        identity = load_identity(self.client, parent)
        of_both = ("model", "shape", "outputs", "task")
        return all(getattr(identity, name) == getattr(self.record, name) for name in of_both)

    def _with_weights(self, folder: Path, graph: str) -> tuple[Model, dict[str, bytes]] | None:
        import mlflow
        import torch
        from mlflow.models import Model

        archive, described = read_archive(folder), Model.load(str(folder))
        made_by = (described.mlflow_version, described.flavors["pytorch"]["pytorch_version"])
        if (
            archive is None
            or made_by != (mlflow.__version__, torch.__version__)
            or graph_digest(folder) != graph
            or (content := archive.with_state(self.model.state_dict())) is None
        ):
            return None
        return described, _other_files(folder) | {ARCHIVE.as_posix(): content}

    def _export(self, folder: Path, mlflow_model: Model) -> None:
        import mlflow.pytorch
        import numpy as np

        with exports_through_memory():
            mlflow.pytorch.save_model(
                self.model,
                str(folder),
                mlflow_model=mlflow_model,
                serialization_format="pt2",
                # Zeros: it is stored beside the model. Two rows: the export would make a batch
                # size of one a constant.
                input_example=np.zeros((2, *self.record.shape), dtype=np.float32),
                # Otherwise MLflow would import the model in a new process to find them.
                pip_requirements=[f"torch=={installed_version('torch')}"],
            )


def graph_digest(folder: Path) -> str | None:
    """The digest of a logged model's files but for its weights; None if they cannot be told."""
    from mlflow.models import Model

    archive = read_archive(folder)
    if archive is None:
        return None
    stated = Model.load(str(folder)).to_dict()
    parts = [json.dumps({name: stated.get(name) for name in OF_THE_GRAPH}, sort_keys=True).encode()]
    for name, content in sorted(_other_files(folder).items()):
        parts += [name.encode(), content]
    return sha256(archive.graph_digest.encode(), *parts)


def _other_files(folder: Path) -> dict[str, bytes]:
    files = {each.relative_to(folder).as_posix(): each for each in folder.rglob("*")}
    known = {MLMODEL, ARCHIVE.as_posix(), FETCHED_FROM}
    return {
        name: files[name].read_bytes() for name in files.keys() - known if files[name].is_file()
    }
