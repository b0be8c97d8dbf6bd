"""Exporting a model so that a full disk is an exception."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from puma.project.files import write_bytes


@contextlib.contextmanager
def exports_through_memory() -> Iterator[None]:
    """Let ``torch.export.save`` build its archive in memory and write it whole or not at all.

    If it writes to a full disk itself, PyTorch ends the process without an exception.
    """
    import torch

    save = torch.export.save

    def save_at_once(program: Any, path: str | Path, **options: Any) -> None:
        archive = io.BytesIO()
        save(program, archive, **options)
        write_bytes(Path(path), archive.getvalue())

    torch.export.save = save_at_once  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.export.save = save
