from __future__ import annotations

import json
from pathlib import Path

import pytest
from dvc.repo import Repo

from puma.erasure.dvc_cache import DvcCache, Stage, forget_stages
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
    sub = root / "sub"
    sub.mkdir()
    (sub / "dvc.yaml").write_text(
        "stages:\n  train:\n    matrix:\n      n: [x]\n    cmd: a\n    outs: [model, gone]\n"
        "  other:\n    cmd: b\n    deps: [model]\n  never-run:\n    cmd: c\n    outs: [later]\n"
    )
    (sub / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  train@x:\n    cmd: a\n    outs:\n"
        f"    - path: model\n      md5: {B}.dir\n"
        f"  other:\n    cmd: b\n    deps:\n    - path: model\n      md5: {B}.dir\n"
    )
    (root / "data.dvc").write_text(f"outs:\n- md5: {D}\n  path: data\n")
    found = {stage.name: stage for stage in cache_of(root).stages()}
    assert found == {
        "train@x": Stage(
            "train@x",
            sub / "dvc.lock",
            frozenset({sub / "model", sub / "gone"}),
            frozenset({f"{B}.dir", A, C}),
        ),
        "": Stage("", root / "data.dvc", frozenset({root / "data"}), frozenset({D})),
    }


@pytest.mark.parametrize("content", ["{", '[{"relpath": "x"}]'])
def test_a_broken_list_is_named(root: Path, content: str) -> None:
    path = put(root, f"{B}.dir", content)
    with pytest.raises(DataError, match="is not a list of a folder's files") as caught:
        cache_of(root).listed(f"{B}.dir")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["dvc.lock", "data.dvc"])
def test_what_dvc_cannot_read_is_refused(root: Path, name: str) -> None:
    (root / "dvc.yaml").write_text("stages:\n  a:\n    cmd: a\n")
    (root / name).write_text("stages: [")
    with pytest.raises(DataError, match=f"DVC cannot read this project .*{name}"):
        cache_of(root).stages()


def test_forgotten_stages_leave_the_rest_as_it_is_written(tmp_path: Path) -> None:
    kept = f"  b@y:\n    cmd: y -p 'x'\n    outs:\n    - path: y\n      md5: {A}.dir\n"
    head = "schema: '2.0'\nstages:\n"
    lock = tmp_path / "dvc.lock"
    lock.write_text(head + "  a@x:\n    cmd: a\n" + kept + "  c:\n    cmd: c\n")
    forget_stages(lock, {"a@x", "c", "never there"})
    assert lock.read_text() == head + kept


@pytest.mark.slow
def test_only_one_command_at_a_time(root: Path) -> None:
    with (
        cache_of(root).locked(),
        pytest.raises(DataError, match="a DVC command is running"),
        cache_of(root).locked(),
    ):
        pass
    with cache_of(root).locked():
        pass
