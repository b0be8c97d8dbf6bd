from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from puma.errors import SettingsError
from puma.project.files import require_writable, sha256, write_bytes, write_json, write_text


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_writes_replace_the_content_and_create_folders(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file"
    write_bytes(path, b"\x00old")
    assert path.read_bytes() == b"\x00old"
    write_text(path, "né\n")
    assert path.read_bytes() == b"n\xc3\xa9\n"
    assert names(path.parent) == ["file"]


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_mode_is_that_of_the_finished_file(tmp_path: Path, mode: int) -> None:
    write_bytes(tmp_path / "file", b"", mode=mode)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_is_respected(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_bytes(tmp_path / "new", b"")
        write_text(tmp_path / "private", "", mode=0o600)
    finally:
        assert os.umask(before) == umask
    assert (tmp_path / "new").stat().st_mode & 0o777 == mode
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_in_the_middle_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), fail)
    with pytest.raises(OSError, match="disk full"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_an_interrupt_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "file", b"new")
    assert names(tmp_path) == []


def test_content_reaches_the_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    seen = []

    def look(descriptor: int) -> None:
        seen.append((path.exists(), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", look)
    write_bytes(path, b"12345")
    assert seen == [(False, 5)]


def test_json_is_sorted_and_ends_in_a_newline(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1, 0.1], "a": None})
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text) == {"a": None, "b": [1, 0.1]}
    assert text.index('"a"') < text.index('"b"')
    assert text.endswith("}\n")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_json_refuses_what_is_no_number(tmp_path: Path, value: float) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"accuracy": value})
    assert path.read_text() == "old"


def test_digest_prefixes_every_part_with_its_length() -> None:
    framed = bytes(7) + b"\x02ab" + bytes(8) + bytes(7) + b"\x01c"
    assert sha256(b"ab", b"", b"c") == hashlib.sha256(framed).hexdigest()
    assert len({sha256(b"ab", b"c"), sha256(b"a", b"bc"), sha256(b"abc"), sha256(b"abc", b"")}) == 4


def test_what_can_be_written_is_known_before_and_nothing_changes(tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("kept")
    for path in (there, tmp_path / "new.csv", tmp_path / "deep" / "er" / "new.csv"):
        require_writable(path)
    assert names(tmp_path) == ["there.csv"]
    assert there.read_text() == "kept"
    refused = {
        Path("/proc/x.csv"): r"cannot be written \(.*name another path",
        there / "x.csv": r"cannot be written \(Not a directory\)",
        tmp_path / ("x" * 250): r"cannot be written \(File name too long\)",
        tmp_path: "is a folder; name a file",
    }
    for path, message in refused.items():
        with pytest.raises(SettingsError, match=message):
            require_writable(path)
    assert names(tmp_path) == ["there.csv"]
