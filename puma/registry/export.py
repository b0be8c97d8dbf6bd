"""Exporting a model so that a full disk is an exception."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def exports_through_memory() -> Iterator[None]:
    """Let ``torch.export.save`` build its archive in memory and write it at once.

    If it writes to a full disk itself, PyTorch ends the process without an exception.
    """
    import torch

    save = torch.export.save

    def save_at_once(program: Any, path: str | Path, **options: Any) -> None:
        archive = io.BytesIO()
        save(program, archive, **options)
        Path(path).write_bytes(archive.getbuffer())

    torch.export.save = save_at_once  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.export.save = save
