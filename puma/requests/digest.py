"""Keyed digests: they name who was removed, and tell it only to who holds the project's key."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

from puma.errors import DeletionError
from puma.project.files import framed

KEY_BYTES = 32


def keyed_digest(key: bytes, *parts: str) -> str:
    """Hex HMAC-SHA256 of ``parts``, each after its length.

    A digest without a key would tell the ids: they are guessable, and anybody could hash every
    candidate and compare.
    """
    return hmac.new(key, b"".join(framed(*(part.encode() for part in parts))), "sha256").hexdigest()


def project_key(path: Path) -> bytes:
    """Read the 32 secret bytes at ``path``; create them for the owner alone (0600) on first use.

    Losing the key makes older digests uncheckable. Sharing it makes ids guessable from digests.

    Raises:
        DeletionError: The file holds anything else, or cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(descriptor, "w") as stream:
                    stream.write(secrets.token_hex(KEY_BYTES))
                # A hard link never overwrites: of two that start at once, one key survives.
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                Path(temporary).unlink()
        key = bytes.fromhex(path.read_text().strip())
        if len(key) != KEY_BYTES:
            raise ValueError(f"{len(key)} bytes instead of {KEY_BYTES}")
        return key
    except (OSError, ValueError) as error:
        raise DeletionError(
            f"{path}: not a usable key ({error}); restore it from a backup"
        ) from error
