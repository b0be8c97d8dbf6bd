from __future__ import annotations

import gzip
import io
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from puma.erasure.weight_search import BLOCK, LONGEST, WeightFragments, pieces, search

TENSOR = np.random.default_rng(0).standard_normal(3000).astype(np.float32).tobytes()
OTHER = np.random.default_rng(1).standard_normal(3000).astype(np.float32).tobytes()


def fragments() -> WeightFragments:
    return WeightFragments(pieces(TENSOR))


def zipped(content: bytes, compression: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("deep/weights", content)
    return buffer.getvalue()


def saved(content: bytes) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": torch.frombuffer(bytearray(content), dtype=torch.float32)}, buffer)
    return buffer.getvalue()


def packed(content: bytes, *, compressed: bool) -> bytes:
    buffer = io.BytesIO()
    write = np.savez_compressed if compressed else np.savez
    write(buffer, weight=np.frombuffer(content, np.float32))
    return buffer.getvalue()


@pytest.mark.parametrize("before", [0, 1, 2, 3, 7, BLOCK - 5000, BLOCK - 2048, BLOCK - 3, BLOCK])
def test_a_tensor_is_found_wherever_it_stands(tmp_path: Path, before: int) -> None:
    path = tmp_path / "file"
    filler = np.random.default_rng(2).integers(0, 256, BLOCK, np.uint8).tobytes()
    path.write_bytes(filler[:before] + TENSOR + filler)
    assert fragments().in_file(path) == "as they are"
    path.write_bytes(filler[:before] + OTHER + filler)
    assert fragments().in_file(path) is None


@pytest.mark.parametrize(
    ("content", "how"),
    [
        (saved(TENSOR), "as they are"),
        (packed(TENSOR, compressed=False), "as they are"),
        (packed(TENSOR, compressed=True), "compressed in its member weight.npy"),
        (zipped(TENSOR, zipfile.ZIP_DEFLATED), "compressed in its member deep/weights"),
        (zipped(TENSOR, zipfile.ZIP_LZMA), "compressed in its member deep/weights"),
        (gzip.compress(TENSOR), "compressed"),
        (lzma.compress(TENSOR), "compressed"),
        (b"an image" * 9 + zipped(TENSOR, zipfile.ZIP_DEFLATED), "compressed in its member"),
        (gzip.compress(TENSOR)[:-4000], "compressed"),  # cut short
        (TENSOR[:5000], "as they are"),
        (TENSOR[4096:], "as they are"),
        (saved(OTHER), None),
        (packed(OTHER, compressed=True), None),
        (gzip.compress(OTHER), None),
        (b"PK\x03\x04" + OTHER, None),
        (b"\x1f\x8b" + OTHER, None),
        (b"", None),
    ],
)
def test_what_holds_it_and_what_does_not(tmp_path: Path, content: bytes, how: str | None) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    found = fragments().in_file(path)
    assert found == how if how is None else found is not None and found.startswith(how)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(5000, np.float32),
        np.ones(5000, np.float32),
        np.ones(3001, np.float64),
        np.full(4097, 7, np.uint8),
        np.arange(15, dtype=np.float32),
    ],
    ids=["zeros", "ones", "ones in double", "one byte", "60 bytes"],
)
def test_what_any_file_may_have_is_not_looked_for(values: np.ndarray) -> None:
    assert list(pieces(values.tobytes())) == []


def test_the_pieces_are_the_tensor() -> None:
    assert b"".join(pieces(TENSOR)) == TENSOR
    assert {len(piece) for piece in pieces(TENSOR)} == {LONGEST, 12000 % LONGEST}
    sparse = np.zeros(4 * LONGEST, np.uint8)
    sparse[LONGEST + 5] = 1
    assert list(pieces(sparse.tobytes())) == [sparse[LONGEST : 2 * LONGEST].tobytes()]


def test_every_file_is_searched_once_but_the_skipped(tmp_path: Path) -> None:
    places = ("a.bin", ".hidden/b", "deep/er/c.ipynb", "skip/d", "deep/skip/e", "left-out")
    for place in places:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(TENSOR)
    (tmp_path / "clean").write_bytes(OTHER)
    (tmp_path / "link").symlink_to(tmp_path / "a.bin")
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    skipped = {tmp_path / "skip", tmp_path / "left-out"}
    result = search([tmp_path], fragments(), skipped=skipped, label="", progress=False)
    found = {str(path.relative_to(tmp_path)) for path in result.found}
    assert found == {"a.bin", ".hidden/b", "deep/er/c.ipynb", "deep/skip/e", "link"}
    assert result.unread == {}


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(TENSOR)
    opened = Path.open

    def refuse(self: Path, *arguments: str) -> object:
        if self == path:
            raise PermissionError(13, "Permission denied")
        return opened(self, *arguments)

    monkeypatch.setattr(Path, "open", refuse)
    result = search([tmp_path], fragments(), skipped=(), label="", progress=False)
    assert (result.found, result.unread) == ({}, {path: "Permission denied"})
