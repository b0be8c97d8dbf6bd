"""Loading a registered model. Nothing here runs what a file says: exported graphs and JSON only."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from puma.errors import ModelError, RegistryError
from puma.lineage.records import ModelIdentity
from puma.project.workspace import Workspace
from puma.registry.archive import GraphArchive
from puma.registry.certificate.build import read_artifact
from puma.registry.connection import RESTORE
from puma.registry.store import environment_kept, open_store, reaches_store
from puma.registry.store_errors import is_away
from puma.registry.versions import FINGERPRINT, IDENTITY, WEIGHTS, RegisteredVersion, get_version

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from torch import Tensor, nn

Read = TypeVar("Read")

ARCHIVE = Path("data", "model.pt2")  # in a logged model's folder
PICKLE = Path("data", "model.pth")
PICKLES = "MLFLOW_ALLOW_PICKLE_DESERIALIZATION"


class ChangedIdentityError(RegistryError):
    """A version differs from what was registered."""


def load_graph(
    found: ModelVersion | RegisteredVersion, *, allow_pickle: Collection[str] = ()
) -> nn.Module:
    """The graph that was registered as ``found``: its weights, but not its layers.

    ``allow_pickle``: the names, such as "puma-toy/4", of versions that may be pickles. Loading a
    pickle RUNS the program in it: name only what you would run.

    Raises RegistryError when it cannot be loaded, for any other pickle, unread, and when the
    weights are not those that PUMA registered.
    """
    from puma.models import weights_digest

    graph = _held_graph(found, allow_pickle)
    if FINGERPRINT in found.tags and weights_digest(graph) != found.tags.get(WEIGHTS):
        raise RegistryError(
            f"{found.name}/{found.version} has other weights than were registered; {RESTORE}"
        )
    return graph


def load_state(found: ModelVersion | RegisteredVersion) -> Mapping[str, Tensor]:
    """The weights that were registered as ``found``, by their names in its state dict.

    Raises RegistryError as :func:`load_graph` does, which reads what is laid out in another way.
    """
    from puma.models.weights import state_digest

    archive = from_files(found, read_archive)
    if archive is not None and state_digest(state := archive.state) == found.tags.get(WEIGHTS):
        return state
    return load_graph(found).state_dict()


def read_archive(folder: Path) -> GraphArchive | None:
    """A logged model's archive; None beside a pickle, or if only PyTorch can read it."""
    return None if (folder / PICKLE).exists() else GraphArchive.read(folder / ARCHIVE)


def from_files(found: ModelVersion | RegisteredVersion, read: Callable[[Path], Read]) -> Read:
    """What ``read`` makes of a copy of the files that the store holds as ``found``.

    Raises:
        RegistryError: The files are gone, or cannot be read.
    """
    import mlflow.artifacts

    name = f"{found.name}/{found.version}"
    try:
        with tempfile.TemporaryDirectory(prefix="puma-") as folder:
            # MLflow's own copy of what it fetches would stay behind.
            fetched = Path(mlflow.artifacts.download_artifacts(found.source, dst_path=folder))
            if not (fetched / "MLmodel").is_file():
                raise RegistryError(f"{name} cannot be loaded (its files are gone); {RESTORE}")
            return read(fetched)
    except RegistryError:
        raise
    except Exception as error:  # MLflow, zip and torch.export fail in ways of their own
        if is_away(error):
            raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise RegistryError(f"{name} cannot be loaded ({first}); {RESTORE}") from error


def _held_graph(
    found: ModelVersion | RegisteredVersion, allow_pickle: Collection[str] = ()
) -> nn.Module:
    """What the store holds as ``found``, whether or not it was registered so."""
    name = f"{found.name}/{found.version}"

    def read(folder: Path) -> nn.Module:
        import mlflow.pytorch

        if name in allow_pickle:
            loaded: nn.Module = mlflow.pytorch.load_model(str(folder), weights_only=False)
            return loaded
        if not (folder / ARCHIVE).is_file():
            raise RegistryError(
                f"{name} is no exported graph (it has no {ARCHIVE}), so that loading it may "
                "run whatever is in it, and PUMA did not register it; if you trust its maker, "
                f"allow it by name: load_predictor(…, allow_pickle=['{name}'])"
            )
        if (folder / PICKLE).exists():  # what others would load by MLflow
            raise RegistryError(f"{name} cannot be loaded (it also has a pickle); {RESTORE}")
        return load_archive(folder / ARCHIVE)

    return from_files(found, read)


def load_archive(archive: Path) -> nn.Module:
    """The graph that ``torch.export`` wrote to ``archive``, of which no pickle is read.

    Nothing that lies beside it is: MLflow would put code that came with a model on ``sys.path``.
    """
    import mlflow.pytorch
    import torch

    with tempfile.TemporaryDirectory(prefix="puma-") as folder, _no_pickle():
        alone = Path(folder)
        flavor = {"model_data": ARCHIVE.parent.name, "pytorch_version": torch.__version__}
        (alone / "MLmodel").write_text(json.dumps({"flavors": {"pytorch": flavor}}))
        (alone / ARCHIVE.parent).mkdir()
        (alone / ARCHIVE).symlink_to(archive.resolve())
        graph: nn.Module = mlflow.pytorch.load_model(str(alone))
    return graph


@contextlib.contextmanager
def _no_pickle() -> Iterator[None]:
    """MLflow looks into an archive for pickles only where the environment forbids them."""
    with environment_kept(PICKLES):
        os.environ[PICKLES] = "false"
        yield


def registered_weights(found: ModelVersion | RegisteredVersion) -> str:
    """The digest of the weights that the store holds of ``found``, registered so or not.

    Raises:
        RegistryError: The model cannot be loaded.
    """
    from puma.models.weights import state_digest

    archive = from_files(found, read_archive)
    state = _held_graph(found).state_dict() if archive is None else archive.state
    return state_digest(state)


def load_identity(client: MlflowClient, found: ModelVersion | RegisteredVersion) -> ModelIdentity:
    """What ``found`` was registered as.

    Raises:
        RegistryError: Its run has no identity.json.
        ChangedIdentityError: identity.json does not match the fingerprint.
    """
    name = f"{found.name}/{found.version}"
    text = read_artifact(client, found.run_id, IDENTITY) if found.run_id else None
    if FINGERPRINT not in found.tags or text is None:
        raise RegistryError(
            f"{name} has no {IDENTITY}: it was not registered by PUMA, or by an earlier one, and "
            "nothing says how its model is built; choose another version"
        )
    try:
        identity = ModelIdentity.model_validate_json(text)
    except ValidationError as error:
        raise ChangedIdentityError(
            f"{IDENTITY} of {name} was changed ({error.error_count()} problems); {RESTORE}"
        ) from error
    if identity.fingerprint != found.tags[FINGERPRINT]:
        raise ChangedIdentityError(
            f"{IDENTITY} of {name} or its tag {FINGERPRINT} was changed: they do not agree; "
            f"{RESTORE}"
        )
    return identity


def load_module(
    client: MlflowClient, found: ModelVersion | RegisteredVersion, workspace: Workspace
) -> nn.Module:
    """The registered model with its layers, on the CPU in eval mode, to be trained or patched.

    Raises RegistryError as :func:`load_graph` and :func:`load_identity` do, and for a model of
    the user's own that params.yaml does not name: to build one is to run it.
    """
    from puma.models import new_model

    identity, name = load_identity(client, found), f"{found.name}/{found.version}"
    trusted = workspace.settings.for_dataset(identity.dataset).model.name
    if ":" in identity.model.name and identity.model.name != trusted:
        raise RegistryError(
            f"{name} is of {identity.model.name!r}, and params.yaml names the model {trusted!r}; "
            "code is run only by the name that params.yaml gives: name it there if you trust it"
        )
    state = load_state(found)
    try:
        module = new_model(
            identity.model,
            identity.shape,
            identity.outputs,
            seed=identity.seed,
            task=identity.task,
        )
        module.load_state_dict(state)
    except (ModelError, RuntimeError) as error:
        raise RegistryError(
            f"{name} does not fit the model that it was registered as ({error}); {RESTORE}"
        ) from error
    return module.eval()


def predictor(
    version: RegisteredVersion, *, allow_pickle: Collection[str] = ()
) -> Callable[[Tensor], Tensor]:
    """The registered model as a function: (n, d) float32 -> (n, classes) logits, any n >= 1.

    Other tasks give one output: the logit of the second of two classes, or a regression's label,
    whose unit the tags ``puma.target_centre`` and ``puma.target_scale`` say.

    Needs neither the class of the model nor a pickle.

    Args:
        version: The version to load.
        allow_pickle: As for :func:`load_graph`.

    Raises:
        RegistryError: As :func:`load_graph`.
    """
    import torch

    model = load_graph(version, allow_pickle=allow_pickle)

    @torch.no_grad()
    def predict(features: Tensor) -> Tensor:
        logits: Tensor = model(features)
        return logits

    return predict


@reaches_store
def load_predictor(
    workspace: Workspace,
    dataset: str,
    version_or_alias: str | int,
    *,
    allow_pickle: Collection[str] = (),
) -> Callable[[Tensor], Tensor]:
    """:func:`predictor` of the version of that number or alias, for a single call."""
    version = get_version(open_store(workspace, create=False), dataset, version_or_alias)
    return predictor(version, allow_pickle=allow_pickle)
