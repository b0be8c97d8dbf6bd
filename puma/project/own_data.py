"""What datasets there are, and the digest of what the user's own are read from."""

from __future__ import annotations

import hashlib
from pathlib import Path

from puma.errors import DataError, require_type
from puma.project.files import sha256
from puma.project.user_code import code_digest
from puma.settings import BUILT_IN_DATASETS, SourceSettings


def require_known(name: str, source: SourceSettings | None) -> None:
    """Raise DataError unless ``name`` comes with PUMA, or else has a ``source``."""
    comes_with_puma = isinstance(name, str) and name in BUILT_IN_DATASETS
    if source is None and not comes_with_puma:
        raise DataError(
            f"unknown dataset {name!r}; choose one of {', '.join(sorted(BUILT_IN_DATASETS))}, or "
            "describe your own under `sources` in params.yaml"
        )
    if source is not None:
        require_type(source, SourceSettings, "the source", DataError, "make it as params.yaml does")
        if comes_with_puma:
            raise DataError(
                f"sources names {name!r}, which is a dataset that comes with PUMA; choose another "
                "name"
            )


def source_digest(source: SourceSettings, folder: Path) -> str:
    """SHA-256 of the bytes of the source's file or folder, and of its function's module.

    Raises:
        DataError: One of them is not there or cannot be read.
    """
    parts = []
    path = path_of(source, folder)
    if path is not None:
        parts += _contents(path)
    if source.source is not None:
        form = "package.module:function"
        parts.append(code_digest(source.source, "source", form, DataError, folder=folder))
    return sha256(*parts)


def path_of(source: SourceSettings, folder: Path) -> Path | None:
    """Where the source's file or folder lies, seen from the project's ``folder``."""
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
