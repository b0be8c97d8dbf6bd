"""Where models are computed: the device that was asked for, and what some devices lack."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor

from puma.errors import DataError, SettingsError

WITHOUT_DOUBLE = {"mps"}  # kinds of device that have no float64


def chosen_device(name: str) -> torch.device:
    """The device of that name: auto, cpu, cuda, cuda:N or mps.

    ``auto`` is cuda, then mps, then cpu, whichever is there first. ``cuda`` is, among the processes
    that torchrun started on a machine, the GPU of the process's own number there.

    Raises:
        SettingsError: It is not here.
    """
    cuda, mps = torch.cuda.device_count(), torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if cuda else "mps" if mps else "cpu"
    if name == "cuda" and cuda:
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % cuda}"
    device = torch.device(name)
    here = {"cpu": True, "mps": mps, "cuda": (device.index or 0) < cuda}
    if not here[device.type]:
        raise SettingsError(
            f"device is {name}, and PyTorch finds {_found(cuda, mps)} here; set it to one of these "
            "or to auto, or install a PyTorch that is built for it"
        )
    return device


def _found(cuda: int, mps: bool) -> str:
    return ", ".join([*(f"cuda:{number}" for number in range(cuda)), *["mps"] * mps, "cpu"])


def with_double(values: Tensor) -> Tensor:
    """``values`` where they are, or on the CPU where that has no double precision."""
    return values.cpu() if values.device.type in WITHOUT_DOUBLE else values


def exact(values: Tensor) -> Tensor:
    """``values`` in double precision; on the CPU where their device has none."""
    return with_double(values).double()


def require_one_device(tensors: Iterable[Tensor], features: Tensor) -> None:
    """Raise DataError unless the ``features`` are where all the model's ``tensors`` are."""
    others = sorted({str(each.device) for each in tensors if each.device != features.device})
    if others:
        raise DataError(
            f"the features are on {features.device} and the model on {', '.join(others)}; move one "
            "of them, such as by dataset.to(device) or model.to(device)"
        )
