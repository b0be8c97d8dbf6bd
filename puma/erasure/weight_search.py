"""Searching files, whatever they are called, for the bytes of a model's tensors."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from tqdm.auto import tqdm

SHORTEST = 64  # bytes; fewer could be in a file by chance
LONGEST = 4096  # bytes; shorter than a tensor, so that a part of a file is found, too
KEY = 8  # bytes that are compared first
BLOCK = 1 << 22  # bytes to read at once
COMPRESSED: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
# What a damaged or encrypted archive, or one of another kind with the same first bytes, raises.
UNREADABLE: tuple[type[Exception], ...] = (
    *(OSError, EOFError, RuntimeError, NotImplementedError, ValueError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)


def pieces(tensor: bytes) -> Iterator[bytes]:
    """Cut a tensor's bytes into pieces of 64 to 4096.

    Pieces that any file may have by chance are left out: shorter ones, and those of a single
    value, such as zeros.
    """
    for start in range(0, len(tensor), LONGEST):
        piece = tensor[start : start + LONGEST]
        if len(piece) >= SHORTEST and piece != (piece[:8] * (len(piece) // 8 + 1))[: len(piece)]:
            yield piece


class WeightFragments:
    """What to search for.

    Args:
        parts: Pieces of tensors. A file that has any one of them holds the weights.
    """

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.parts = tuple(sorted(set(parts)))
        self._longest = max(map(len, self.parts), default=0)
        self._keyed: dict[int, list[tuple[int, bytes]]] = {}
        self._first = np.zeros(1 << 16, dtype=bool)  # by a key's first two bytes
        for part in self.parts:
            start, key = _key(part)
            self._keyed.setdefault(key, []).append((start, part))
            self._first[key & 0xFFFF] = True
        self._keys = np.array(sorted(self._keyed), dtype=np.uint64)

    def in_file(self, path: Path) -> str | None:
        """Say how ``path`` holds the weights: "as they are" or inside what; None if it does not.

        Zip archives and what gzip, bzip2 or xz compressed are unpacked, one level deep.

        Raises:
            OSError: The file cannot be read.
        """
        with path.open("rb") as stream:
            if self._in_stream(stream.read):
                return "as they are"
            stream.seek(0)
            head = stream.read(8)
            stream.seek(0)
            for mark, unpack in COMPRESSED.items():
                if head.startswith(mark) and self._in_packed(partial(unpack, stream)):
                    return "compressed"
            return self._in_zip(stream) if zipfile.is_zipfile(stream) else None

    def _in_zip(self, stream: IO[bytes]) -> str | None:
        try:
            archive = zipfile.ZipFile(stream)
        except UNREADABLE:  # it only ends like one
            return None
        for member in archive.infolist():
            # A stored member lies in the file as it is, and was seen.
            packed = member.compress_type != zipfile.ZIP_STORED
            if packed and self._in_packed(partial(archive.open, member)):
                return f"compressed in its member {member.filename}"
        return None

    def _in_packed(self, unpack: Callable[[], Any]) -> bool:
        """Whether it is in there; a damaged file is searched up to the damage."""
        try:
            with unpack() as unpacked:
                return self._in_stream(unpacked.read1)
        except UNREADABLE:
            return False

    def _in_stream(self, read: Callable[[int], bytes]) -> bool:
        kept = b""
        while block := read(BLOCK):
            text = kept + block
            if self._in_bytes(text):
                return True
            kept = text[max(0, len(text) - self._longest + 1) :]
        return False

    def _in_bytes(self, text: bytes) -> bool:
        if not self.parts or len(text) < KEY:
            return False
        values = np.frombuffer(text, np.uint8)
        for shift in (0, 1):  # words of two bytes, from even and from odd places
            pairs = values[shift : shift + (len(values) - shift) // 2 * 2].view("<u2")
            places = np.flatnonzero(self._first[pairs]) * 2 + shift
            places = places[places <= len(values) - KEY]
            windows = np.lib.stride_tricks.sliding_window_view(values, KEY)[places]
            found = np.ascontiguousarray(windows).view("<u8").reshape(-1)
            likely = np.isin(found, self._keys)
            for place, key in zip(places[likely].tolist(), found[likely].tolist(), strict=True):
                for start, part in self._keyed[key]:
                    if start <= place and text.startswith(part, place - start):
                        return True
        return False


def _key(part: bytes) -> tuple[int, int]:
    """The place of the eight most varied bytes of ``part``, and these as a number."""
    starts = range(0, len(part) - KEY + 1, 4)
    start = max(starts, key=lambda place: len(set(part[place : place + KEY])))
    return start, int.from_bytes(part[start : start + KEY], "little")


@dataclass(frozen=True)
class Search:
    """The result of a search.

    Attributes:
        found: How a file holds the weights, by file.
        unread: Why a file was not read, by file.
    """

    found: dict[Path, str]
    unread: dict[Path, str]


def search(
    roots: Iterable[Path],
    fragments: WeightFragments,
    *,
    skipped: Collection[Path],
    label: str,
    progress: bool = True,
) -> Search:
    """Search every file below ``roots``, except those below ``skipped``.

    Files that are deleted meanwhile are ignored. Links to folders are not followed.

    Args:
        roots: Folders, none of which lies in another.
        fragments: What to search for.
        skipped: Files and folders.
        label: The title of the progress bar.
        progress: Whether to show it.
    """
    found: dict[Path, str] = {}
    unread: dict[Path, str] = {}
    files = dict(_files(roots, set(skipped), unread))
    with tqdm(
        total=sum(files.values()),
        desc=label,
        unit="B",
        unit_scale=True,
        disable=not progress,
    ) as bar:
        for path, size in files.items():
            try:
                if (how := fragments.in_file(path)) is not None:
                    found[path] = how
            except FileNotFoundError:
                pass
            except OSError as error:
                unread[path] = error.strerror or str(error)
            bar.update(size)
    return Search(found, unread)


def _files(
    roots: Iterable[Path], skipped: set[Path], unread: dict[Path, str]
) -> Iterator[tuple[Path, int]]:
    def failed(error: OSError) -> None:
        unread[Path(error.filename)] = error.strerror or str(error)

    for root in roots:
        for folder, below, names in os.walk(root, onerror=failed):
            below[:] = [name for name in below if Path(folder, name) not in skipped]
            for name in names:
                path = Path(folder, name)
                try:
                    status = path.stat()
                except FileNotFoundError:  # removed meanwhile, or a link to nothing
                    continue
                if stat.S_ISREG(status.st_mode) and path not in skipped:
                    yield path, status.st_size
