"""How weights are kept: a plain state dict, never a pickle."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from puma.errors import ModelError
from puma.project.files import sha256, write_bytes


def weights_digest(model: nn.Module) -> str:
    """Return the SHA-256 over every named parameter and buffer of ``model``."""
    return state_digest(model.state_dict())


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return :func:`weights_digest` of the model that has this state dict."""
    parts: list[bytes] = []
    for name, tensor in sorted(state.items()):
        parts += [f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()]
        parts += [tensor.detach().cpu().contiguous().numpy().tobytes()]
    return sha256(*parts)


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the state dict of ``model``, as one of the CPU, whole or not at all."""
    state = model.state_dict()
    for name in state:
        state[name] = state[name].cpu()
    buffer = io.BytesIO()  # saved to a path, torch would write the temporary name into the file
    torch.save(state, buffer)
    write_bytes(path, buffer.getvalue())


def load_weights(model: nn.Module, path: Path) -> nn.Module:
    """Fill ``model`` with the weights at ``path`` and return it.

    Raises:
        ModelError: The file is absent, is not a plain state dict, or does not fit.
    """
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
        model.load_state_dict(state)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such weights; run the stage that writes them") from error
    except Exception as error:  # torch raises pickle, zip and runtime errors alike here
        raise ModelError(f"{path}: not the weights of this model ({error})") from error
    return model
