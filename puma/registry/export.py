"""Exporting a model to a disk that may be full."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def exports_through_memory() -> Iterator[None]:
    """``torch.export.save`` makes its archive in memory and writes it at once.

    Where it writes to a file by itself and cannot, PyTorch ends the whole process, without an
    exception that anybody could report.
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
