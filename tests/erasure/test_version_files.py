"""Which files and objects are a version's, by their content alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dvc.repo import Repo

from puma.erasure.dvc_cache import DvcCache
from puma.erasure.version_files import VersionDigests, VersionFiles, version_files
from puma.lineage.records import ModelRecord
from puma.project.workspace import Workspace
from puma.settings import ORIGINAL
from tests.registry.projects import DATASET, make_project

NAMES = {letter: letter * 32 for letter in "abcdef"}


def digests_of(
    workspace: Workspace, method: str, *, shares_weights: bool = False
) -> VersionDigests:
    record = ModelRecord.read(workspace.model_record(DATASET, method))
    return VersionDigests(DATASET, record.fingerprint, record.weights_digest, shares_weights)


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    workspace = make_project(tmp_path / "project")
    Repo.init(str(workspace.root), no_scm=True).close()
    return workspace


def put(workspace: Workspace, letter: str, content: bytes | dict[str, str]) -> Path:
    """An object of the cache; a folder's list, of path -> letter, for a dictionary."""
    name = NAMES[letter]
    if isinstance(content, dict):
        files = [{"relpath": path, "md5": NAMES[one]} for path, one in content.items()]
        name, content = f"{name}.dir", json.dumps(files).encode()
    path = workspace.root / ".dvc/cache/files/md5" / name[:2] / name[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def find(workspace: Workspace, *holding: Path, method: str = ORIGINAL) -> VersionFiles:
    cache = DvcCache.of(workspace.root)
    return version_files(workspace, cache, digests_of(workspace, method), holding)


def in_cache(found: VersionFiles) -> set[Path]:
    return {path for path in found.files if ".dvc" in path.parts}


def test_records_are_recognised_by_their_digests(project: Workspace) -> None:
    digests = digests_of(project, ORIGINAL)
    shared = digests_of(project, ORIGINAL, shares_weights=True)
    record = project.model_record(DATASET, ORIGINAL).read_bytes()
    audit = project.audit(DATASET, ORIGINAL).read_bytes()
    fingerprint = f"{digests.fingerprint}\n".encode()
    others = [project.model_record(DATASET, "puma"), project.audit(DATASET, "puma")]
    nothing = [b"{", b"{}", b"", b"\x80", *(path.read_bytes() for path in others)]
    assert [digests.match(text) for text in (record, audit, fingerprint)] == [True] * 3
    assert [shared.match(text) for text in (record, audit, fingerprint)] == [True, False, True]
    assert [digests.match(text) for text in nothing] == [False] * 6


def test_files_of_the_working_tree(project: Workspace) -> None:
    root, found = project.root, find(project, method="puma")
    assert {str(path.relative_to(root)) for path in found.files} == {
        "artifacts/toy/puma.pt",
        "lineage/toy/puma.json",
        "lineage/toy/puma.audit.json",
        "plots/toy/puma",
    }
    assert (found.stages, found.kept) == ({}, {})


def test_weights_and_records_in_the_cache(project: Workspace) -> None:
    weights = put(project, "a", b"weights")
    record = put(project, "b", project.model_record(DATASET, ORIGINAL).read_bytes())
    put(project, "c", project.model_record(DATASET, "puma").read_bytes())
    put(project, "d", b"metrics")
    assert in_cache(find(project, weights)) == {weights, record}


def test_training_records_go_with_the_weights_unless_another_folder_has_them(
    project: Workspace,
) -> None:
    weights, batches = put(project, "a", b"weights"), put(project, "b", b"batches")
    put(project, "c", b"the same for every original")
    folder = put(project, "d", {"weights.pt": "a", "records/batches": "b", "records/split": "c"})
    put(project, "e", {"weights.pt": "f", "records/split": "c"})
    assert in_cache(find(project, weights)) == {weights, batches, folder}


def test_a_folder_of_the_users_own_is_no_originals(project: Workspace) -> None:
    weights = put(project, "a", b"weights")
    put(project, "b", b"another version's")
    put(project, "c", {"mine/weights.pt": "a", "mine/puma.pt": "b"})
    assert in_cache(find(project, weights)) == {weights}


def lock(workspace: Workspace, stages: dict[str, dict[str, str]]) -> None:
    """Write ``dvc.yaml`` and ``dvc.lock``; stage -> path of an out -> letter of its object."""
    plain = {name: {"cmd": "x", "outs": list(outs)} for name, outs in stages.items()}
    locked = {
        name: {"cmd": "x", "outs": [{"path": out, "md5": NAMES[one]} for out, one in outs.items()]}
        for name, outs in stages.items()
    }
    (workspace.root / "dvc.yaml").write_text(json.dumps({"stages": plain}))
    (workspace.root / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": locked}))


def test_stages_that_made_it_are_forgotten_and_other_needs_are_named(project: Workspace) -> None:
    root = project.root
    weights = put(project, "a", b"weights")
    record = put(project, "b", project.model_record(DATASET, ORIGINAL).read_bytes())
    stages = {
        "train": {"lineage/toy/original.json": "b", "notebook": "d"},
        "copy": {"mine.pt": "a"},
        "other": {"other": "e"},
    }
    lock(project, stages)
    for name in ("notebook", "mine.pt", "other"):
        (root / name).touch()
    found = find(project, weights)
    assert found.stages == {root / "dvc.lock": {"train", "copy"}}
    assert root / "notebook" in found.files
    assert not {root / "mine.pt", root / "other"} & found.files  # mine.pt: the search names it
    assert (in_cache(found), found.kept) == ({weights, record}, {})

    (root / "mine.dvc").write_text(f"outs:\n- md5: {NAMES['a']}\n  path: mine\n")
    found = find(project, weights)
    assert in_cache(found) == {record}
    assert found.kept == {weights: f"{root / 'mine.dvc'} tracks it"}


def test_a_stage_that_made_other_versions_too_keeps_its_files(project: Workspace) -> None:
    outs = {"lineage/toy/original.json": "a", "lineage/toy/puma.json": "b", "notes": "c"}
    (project.root / "notes").touch()
    lock(project, {"all": outs})
    found = find(project)
    assert found.stages == {project.root / "dvc.lock": {"all"}}
    assert project.model_record(DATASET, ORIGINAL) in found.files
    kept = {project.model_record(DATASET, "puma"), project.root / "notes"}
    assert not kept & found.files
