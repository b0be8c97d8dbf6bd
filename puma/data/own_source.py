"""Datasets of the user's own, and the digest of what each is read from."""

from __future__ import annotations

import hashlib
from pathlib import Path

from puma.data.base import Dataset
from puma.data.own_function import own_function
from puma.data.own_table import own_table
from puma.data.splitting import Extras
from puma.errors import DataError
from puma.project.files import sha256
from puma.project.user_code import code_digest
from puma.settings import SourceSettings


def load_source(
    name: str,
    source: SourceSettings,
    folder: Path,
    *,
    seed: int,
    test_fraction: float,
    extras: Extras,
) -> Dataset:
    """Load the user's own dataset, split and encoded.

    Args:
        name: Of the dataset.
        source: Its settings.
        folder: From which its path is seen, and where its module is looked for first.
        seed: Of the split, where the source does not say it.
        test_fraction: Share of the people to hold out.
        extras: What is wanted beside.

    Raises:
        DataError: The source cannot be read or used.
    """
    digest = source_digest(source, folder)
    path = _path(source, folder)
    if source.source is not None:
        return own_function(
            name,
            source.source,
            path,
            folder=folder,
            digest=digest,
            task=source.task,
            seed=seed,
            test_fraction=test_fraction,
            extras=extras,
        )
    assert path is not None  # the settings refuse a table without one
    return own_table(
        name,
        path,
        source,
        digest=digest,
        seed=seed,
        test_fraction=test_fraction,
        extras=extras,
    )


def source_digest(source: SourceSettings, folder: Path) -> str:
    """SHA-256 of the bytes of the source's file or folder, and of its function's module.

    Raises:
        DataError: One of them is not there or cannot be read.
    """
    parts = []
    path = _path(source, folder)
    if path is not None:
        parts += _contents(path)
    if source.source is not None:
        form = "package.module:function"
        parts.append(code_digest(source.source, "source", form, DataError, folder=folder))
    return sha256(*parts)


def _path(source: SourceSettings, folder: Path) -> Path | None:
    return None if source.path is None else folder / Path(source.path).expanduser()


def _contents(path: Path) -> list[bytes]:
    """The digest of a file; of a folder, the names and digests of all files in it."""
    if not path.is_dir():
        return [_of_file(path)]
    files = sorted(each for each in path.rglob("*") if each.is_file())
    return [
        part
        for file in files
        for part in (file.relative_to(path).as_posix().encode(), _of_file(file))
    ]


def _of_file(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; correct the path in params.yaml") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{str(path)!r}: cannot be read ({error})") from error
