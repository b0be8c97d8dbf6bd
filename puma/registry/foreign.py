"""Models that somebody else registered, read so that a version can be made of one.

A file is read as what it is: a graph of ``torch.export``, or tensors by their names. A pickle,
which runs whatever is in it, is opened only for a version that the user allowed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puma.errors import RegistryError, SettingsError
from puma.registry.loading import ARCHIVE, PICKLE, load_archive
from puma.registry.store_errors import is_away
from puma.registry.versions import FINGERPRINT

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from torch import Tensor, nn

STATE_DICT = "state_dict.pth"  # of mlflow.pytorch.log_state_dict
SUFFIXES = (".pth", ".pt", ".bin")
CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model")  # of a state dict within a checkpoint


@dataclass(frozen=True, eq=False)
class ForeignModel:
    """A version of somebody else's registered model.

    Attributes:
        name: Of the registered model.
        version: Its number.
        run_id: Its run; empty if there is none.
        model_id: Of its logged model; empty if there is none.
        state: Its parameters and buffers by name, on the CPU.
        model: What was registered, as a module in eval mode; None where it was weights alone.
    """

    name: str
    version: int
    run_id: str
    model_id: str
    state: Mapping[str, Tensor]
    model: nn.Module | None

    @property
    def uri(self) -> str:
        """How MLflow names it."""
        return f"models:/{self.name}/{self.version}"


def load_foreign(
    client: MlflowClient, name: str, version_or_alias: str, *, allow_pickle: bool = False
) -> ForeignModel:
    """Load the weights of a registered model that PUMA did not make.

    Args:
        client: The store.
        name: Of the registered model.
        version_or_alias: Its version.
        allow_pickle: Whether a pickle may be opened. That RUNS the program in it. Only of a version
            by number: an alias may point at another one by now.

    Raises:
        RegistryError: There is no such version, PUMA registered it, or its files hold no weights
            that can be read so.
        SettingsError: A pickle was allowed by an alias.
    """
    found = _version(client, name, version_or_alias)
    shown = f"models:/{name}/{found.version}"
    if allow_pickle and version_or_alias != str(found.version):
        raise SettingsError(
            f"a pickle is allowed by the number of its version alone, got {version_or_alias!r}; "
            f"that is {shown} now: look at who registered it, and name it so"
        )
    if FINGERPRINT in found.tags:
        raise RegistryError(
            f"{shown} was registered by PUMA, so there is nothing to adopt; remove from it in the "
            "project of its data"
        )
    import mlflow.artifacts

    try:
        with tempfile.TemporaryDirectory(prefix="puma-") as folder:
            fetched = Path(mlflow.artifacts.download_artifacts(found.source, dst_path=folder))
            state, model = _read(fetched, shown, allow_pickle=allow_pickle)
    except RegistryError:
        raise
    except Exception as error:  # MLflow, zip, pickle and PyTorch fail in ways of their own
        if is_away(error):
            raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise RegistryError(
            f"{shown} cannot be loaded ({type(error).__name__}: {first}); register it anew"
        ) from error
    source = found.source or ""
    model_id = source.removeprefix("models:/") if source.startswith("models:/m-") else ""
    return ForeignModel(name, int(found.version), found.run_id or "", model_id, state, model)


def _version(client: MlflowClient, name: str, version_or_alias: str) -> ModelVersion:
    from mlflow.exceptions import MlflowException

    try:
        if version_or_alias.isdecimal():
            return client.get_model_version(name, version_or_alias)
        return client.get_model_version_by_alias(name, version_or_alias)
    except MlflowException as error:
        if is_away(error):
            raise
        known = sorted(each.name for each in client.search_registered_models())
        raise RegistryError(
            f"there is no version or alias {version_or_alias!r} of {name!r} in this store, which "
            f"has the models {', '.join(known[:10]) or '(none)'}; PUMA sees one store: name theirs "
            "in MLFLOW_TRACKING_URI, or register a copy here"
        ) from error


def _read(
    folder: Path, shown: str, *, allow_pickle: bool
) -> tuple[dict[str, Tensor], nn.Module | None]:
    """The state dict and, where there is more than that, the module."""
    import torch

    if (folder / ARCHIVE).is_file():
        graph = load_archive(folder / ARCHIVE)
        return dict(graph.state_dict()), graph
    file = _weights_file(folder, shown)
    if not allow_pickle:
        if file == folder / PICKLE:
            raise RegistryError(f"{shown} is a pickle ({PICKLE.as_posix()}); {_ALLOW}")
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # what is no zip, or holds more than tensors
            raise RegistryError(
                f"{shown}: {file.name} holds more than tensors by name "
                f"({type(error).__name__}); {_ALLOW}"
            ) from error
    elif (folder / "MLmodel").is_file():
        import mlflow.pytorch

        content = mlflow.pytorch.load_model(str(folder), map_location="cpu", weights_only=False)
    else:
        content = torch.load(file, map_location="cpu", weights_only=False)
    if isinstance(content, torch.nn.Module):
        return dict(content.state_dict()), content.cpu().eval()
    return _state(content, f"{shown}: {file.name}"), None


_ALLOW = (
    "to open it runs whatever is in it. Register it as a graph instead: "
    "mlflow.pytorch.log_model(model, serialization_format='pt2', input_example=…), or its "
    "state_dict. If you trust its maker, name its version by number and add --allow-pickle"
)


def _weights_file(folder: Path, shown: str) -> Path:
    if (folder / PICKLE).is_file():
        return folder / PICKLE
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    chosen = [path for path in files if path.name == STATE_DICT] or [
        path for path in files if path.suffix in SUFFIXES
    ]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(path.relative_to(folder).as_posix() for path in files[:10]) or "nothing"
    raise RegistryError(
        f"{shown} holds {names}, and {'no' if not chosen else 'more than one'} file of weights "
        f"that PUMA reads: {ARCHIVE.as_posix()}, or one state dict ({STATE_DICT}, or another name "
        f"with {', '.join(SUFFIXES)}); register it so"
    )


def _state(content: Any, shown: str) -> dict[str, Tensor]:
    """The state dict that ``content`` is, or has as a checkpoint."""
    import torch

    def is_state(value: Any) -> bool:
        return isinstance(value, Mapping) and all(
            isinstance(name, str) and isinstance(tensor, torch.Tensor)
            for name, tensor in value.items()
        )

    if is_state(content) and content:
        return dict(content)
    if isinstance(content, Mapping):
        for key in CHECKPOINT_KEYS:
            if content.get(key) and is_state(content[key]):
                return dict(content[key])
    raise RegistryError(
        f"{shown} is a {type(content).__name__} and no state dict, nor a checkpoint with one under "
        f"{', '.join(CHECKPOINT_KEYS)}; register model.state_dict()"
    )
