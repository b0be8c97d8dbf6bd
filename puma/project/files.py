"""Writing files so that a reader finds the old content or the new, never half of one."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from puma.errors import SettingsError

PUBLIC = 0o666
PRIVATE = 0o600  # of what names people or holds their rows


def write_bytes(path: Path, content: bytes, *, mode: int = PUBLIC) -> None:
    """Write ``content`` as :func:`written` does."""
    with written(path, mode=mode) as stream:
        stream.write(content)


@contextmanager
def written(path: Path, *, mode: int = PUBLIC) -> Iterator[BinaryIO]:
    """Open a temporary name beside ``path`` to write to; flush and rename it at the end.

    After an exception nothing is left of it, and a file at ``path`` stays. Parent folders are
    created. ``mode`` is the permission of the file, less the umask.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    # The system applies the umask; to ask for it is to change it, for every thread.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def require_writable(path: Path) -> None:
    """Raise SettingsError unless a file can be written to ``path``, which a user named.

    Called before a long computation. Nothing is left behind, and a file at ``path`` stays.
    """
    try:
        if path.is_dir():
            raise SettingsError(f"{path} is a folder; name a file")
        folder = next(each for each in path.absolute().parents if os.path.lexists(each))
        probe = _temporary(folder / path.name)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
        probe.unlink()
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written ({error.strerror}); name another path, or let this user "
            "write there"
        ) from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def write_text(path: Path, content: str, *, mode: int = PUBLIC) -> None:
    """:func:`write_bytes` for UTF-8 text."""
    write_bytes(path, content.encode(), mode=mode)


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as sorted, indented JSON.

    Raises:
        ValueError: A number is NaN or infinite.
    """
    write_text(path, json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")


def framed(*parts: bytes) -> Iterator[bytes]:
    """Yield ``parts``, each after its length in 8 bytes, so that borders count in a digest."""
    for part in parts:
        yield len(part).to_bytes(8, "big")
        yield part


def sha256(*parts: bytes) -> str:
    """Hex SHA-256 of the :func:`framed` ``parts``."""
    digest = hashlib.sha256()
    for piece in framed(*parts):
        digest.update(piece)
    return digest.hexdigest()
