from __future__ import annotations

import json
from pathlib import Path

import pytest
from dvc.repo import Repo

from puma.erasure.dvc_cache import DvcCache, forget_stages
from puma.errors import DataError

A, B, C, D = (letter * 32 for letter in "abcd")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Repo.init(str(tmp_path), no_scm=True).close()
    return tmp_path


def put(root: Path, name: str, content: str, *, earlier: bool = False) -> Path:
    """An object of the cache, or one where DVC before version 3 put it."""
    layout = "" if earlier else "files/md5"
    path = root / ".dvc" / "cache" / layout / name[:2] / name[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def cache_of(root: Path) -> DvcCache:
    cache = DvcCache.of(root)
    assert cache is not None
    return cache


def test_no_project_has_no_cache(tmp_path: Path) -> None:
    assert DvcCache.of(tmp_path) is None


def test_objects_of_every_layout(root: Path) -> None:
    now, before = put(root, A, "1"), put(root, A, "1", earlier=True)
    folder = put(root, f"{B}.dir", "[]")
    put(root, "e" * 31, "no object")
    assert cache_of(root).objects == {A: [now, before], f"{B}.dir": [folder]}
    assert cache_of(root).inside


def test_who_names_which_objects(root: Path) -> None:
    put(root, f"{B}.dir", json.dumps([{"md5": A, "relpath": "x"}, {"md5": C, "relpath": "y"}]))
    put(root, A, "")
    (root / "sub").mkdir()
    lock = root / "sub" / "dvc.lock"
    lock.write_text(
        "schema: '2.0'\nstages:\n  train@x:\n    cmd: a\n    outs:\n"
        f"    - path: model\n      md5: {B}.dir\n    - path: gone\n"
        f"  other:\n    cmd: b\n    deps:\n    - path: model\n      md5: {B}.dir\n"
    )
    (root / "data.dvc").write_text(f"outs:\n- md5: {D}\n  path: data\n")
    run = root / ".dvc/cache/runs/ab/abc/def"
    run.parent.mkdir(parents=True)
    run.write_text(f"cmd: train\nouts:\n- path: model\n  md5: {A}\n")
    found = {(one.kind, one.path, one.name): one for one in cache_of(root).records()}
    folder = root / ".dvc/cache/files/md5/bb" / f"{B[2:]}.dir"
    whole = {f"{B}.dir", A, C}
    assert {key: set(one.objects) for key, one in found.items()} == {
        ("folder", folder, f"{B}.dir"): whole,
        ("run", run, "train"): {A},
        ("stage", lock, "train@x"): whole,
        ("stage", lock, "other"): set(),
        ("pointer", root / "data.dvc", "data.dvc"): {D},
    }
    assert found["stage", lock, "train@x"].outs == (root / "sub/model", root / "sub/gone")


@pytest.mark.parametrize(
    ("place", "content", "words"),
    [
        ("dvc.lock", "stages: [", "is no YAML"),
        (f".dvc/cache/files/md5/bb/{B[2:]}.dir", "{", "is no list of a folder's files"),
        (f".dvc/cache/files/md5/bb/{B[2:]}.dir", '[{"relpath": "x"}]', "is no list"),
    ],
)
def test_what_is_broken_is_named(root: Path, place: str, content: str, words: str) -> None:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    with pytest.raises(DataError, match=words) as caught:
        cache_of(root).records()
    assert str(path) in str(caught.value)


def test_forgotten_stages_leave_the_rest_as_it_is_written(tmp_path: Path) -> None:
    kept = f"  b@y:\n    cmd: y -p 'x'\n    outs:\n    - path: y\n      md5: {A}.dir\n"
    head = "schema: '2.0'\nstages:\n"
    lock = tmp_path / "dvc.lock"
    lock.write_text(head + "  a@x:\n    cmd: a\n" + kept + "  c:\n    cmd: c\n")
    forget_stages(lock, {"a@x", "c", "never there"})
    assert lock.read_text() == head + kept


def test_only_one_command_at_a_time(root: Path) -> None:
    with (
        cache_of(root).alone(),
        pytest.raises(DataError, match="a DVC command is running"),
        cache_of(root).alone(),
    ):
        pass
    with cache_of(root).alone():
        pass
