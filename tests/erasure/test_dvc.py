"""Erasing a version from a real DVC project: what its cache and dvc.lock have of it."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from dvc.repo import Repo
from dvc.utils.serialize import dumps_yaml, loads_yaml

from puma.erasure.dvc_cache import DvcCache
from puma.erasure.erase import Erasure, erase
from puma.errors import RegistryError
from puma.lineage.records import ModelRecord
from puma.models import save_weights
from puma.project.workspace import Workspace
from puma.registry import list_versions, open_store, register_all
from puma.registry.certificate.verify import verify_version
from puma.registry.promotion import promote
from puma.settings import ORIGINAL
from tests.registry.projects import (
    DATASET,
    DELETION,
    copy_store,
    make_model,
    make_project,
    write_version,
)

pytestmark = pytest.mark.slow

VERSIONS = ("original", "retrain", "puma")
# What a stage "makes" is unpacked from a text, in which no search finds it.
UNPACK = "base64 -d made/{name}.b64 | tar -x"


# What the erased version's stages made besides weights and records.
RESULTS = ("original of 0", "audit-original of 0", "metrics of original of 0")


def outs(version: str) -> list[str]:
    weights = "originals/original" if version == ORIGINAL else f"{version}.pt"
    return [
        f"artifacts/{DATASET}/{weights}",
        f"lineage/{DATASET}/{version}.json",
        f"reports/{version}.ipynb",
    ]


def audit_outs(version: str) -> list[str]:
    return [
        f"lineage/{DATASET}/{version}.audit.json",
        f"reports/audit-{version}.ipynb",
        f"metrics/{DATASET}/{version}.json",
        f"plots/{DATASET}/{version}",
    ]


def stages() -> dict[str, object]:
    made: dict[str, object] = {
        "data": {
            "cmd": "mkdir -p artifacts && cp made/data artifacts/data",
            "deps": ["made/data"],
            "outs": ["artifacts/data"],
        }
    }
    for version in VERSIONS:
        needs = [] if version == ORIGINAL else [f"artifacts/{DATASET}/originals"]
        made[f"make-{version}"] = {
            "cmd": UNPACK.format(name=version),
            "deps": [f"made/{version}.b64", "artifacts/data", *needs],
            "outs": outs(version),
        }
        made[f"audit-{version}"] = {
            "cmd": UNPACK.format(name=f"audit-{version}"),
            "deps": [f"made/audit-{version}.b64", f"lineage/{DATASET}/{version}.json"],
            "outs": audit_outs(version),
        }
    return made


def dvc(workspace: Workspace, *arguments: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["dvc", *arguments],
        cwd=workspace.root,
        env=os.environ | {"PATH": path, "DVC_NO_ANALYTICS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def stages_run(output: str) -> set[str]:
    return set(re.findall(r"Running stage '([\w-]+)'", output))


def layers(seed: int) -> dict[str, bytes]:
    """Version -> the bytes of its first layer, when it was packed with ``seed``."""
    return {
        version: make_model(seed + place).state_dict()["0.weight"].numpy().tobytes()
        for place, version in enumerate(VERSIONS)
    }


def pack(workspace: Workspace, seed: int) -> None:
    """Pack what the stages of three versions and of their audits are to make."""
    root = workspace.root
    scratch = make_project(root.parent / f"scratch-{seed}")
    original = write_version(scratch, ORIGINAL, weights_seed=seed)
    for place, method in enumerate(("retrain", "puma"), start=1):
        write_version(
            scratch, method, weights_seed=seed + place, parent=original, deletion=DELETION
        )
    scratch.identity(DATASET, ORIGINAL).write_text(original.fingerprint + "\n")

    def dated(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = 1_000_000_000 + seed  # DVC takes a file of the same date for the same
        return member

    records = scratch.records(DATASET, ORIGINAL)
    records.mkdir(exist_ok=True)
    (records / "batches.bin").write_text(f"records of {seed}")
    (root / "made").mkdir(exist_ok=True)
    for version in VERSIONS:
        for name in (version, f"audit-{version}"):
            (scratch.root / "reports").mkdir(exist_ok=True)
            (scratch.root / "reports" / f"{name}.ipynb").write_text(f"{name} of {seed}")
        path = scratch.metrics(DATASET, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"metrics of {version} of {seed}")
        for name, parts in ((version, outs(version)), (f"audit-{version}", audit_outs(version))):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                for part in parts:
                    archive.add(scratch.root / part, part, filter=dated)
            text = base64.encodebytes(buffer.getvalue())
            (root / "made" / f"{name}.b64").write_bytes(text)


def holders(root: Path, wanted: bytes) -> list[Path]:
    files = (path for path in root.rglob("*") if path.is_file())
    return [path for path in files if wanted in path.read_bytes()]


def cached(workspace: Workspace, text: str) -> bool:
    """Whether any object of the cache is ``text``."""
    objects = (workspace.root / ".dvc/cache/files/md5").rglob("*")
    return any(path.is_file() and path.read_bytes() == text.encode() for path in objects)


def named_in_lock(workspace: Workspace) -> set[str]:
    lock = loads_yaml((workspace.root / "dvc.lock").read_text())
    return {out["md5"] for stage in lock["stages"].values() for out in stage["outs"]}


@pytest.fixture
def project(template: Workspace, tmp_path: Path) -> Workspace:
    """Versions 1 to 3 of the first weights, whose stages have run; version 3 serves."""
    root = tmp_path / "project"
    root.mkdir()
    shutil.copy(template.root / "params.yaml", root)
    workspace = Workspace(root.resolve())
    pack(workspace, 0)
    (root / "made/data").write_text("the data")
    (root / "dvc.yaml").write_text(dumps_yaml({"stages": stages()}))
    dvc(workspace, "init", "--no-scm", "-q")
    dvc(workspace, "repro", "-q")
    copy_store(template, workspace)
    register_all(workspace, progress=False)
    promote(workspace, DATASET, 3, force="for the test")
    return workspace


def act(workspace: Workspace, version: int = 1) -> Erasure:
    return erase(workspace, DATASET, version, act=True, progress=False)


def test_the_version_that_the_tree_has(project: Workspace) -> None:
    """Afterwards DVC takes its stages for such as never ran, and makes the same model again."""
    first = layers(0)
    lock = loads_yaml((project.root / "dvc.lock").read_text())["stages"]
    done = act(project)
    assert done.left == done.kept == []
    assert done.removed["stages"] == ["audit-original in dvc.lock", "make-original in dvc.lock"]
    assert holders(project.root, first[ORIGINAL]) == []
    for out in (*outs(ORIGINAL), *audit_outs(ORIGINAL)):
        assert not (project.root / out).exists()
    assert not cached(project, "records of 0")
    rest = loads_yaml((project.root / "dvc.lock").read_text())["stages"]
    assert rest == {name: lock[name] for name in lock if "original" not in name}
    cache = DvcCache.of(project.root)
    assert cache is not None
    assert named_in_lock(project) <= cache.objects.keys()

    assert all(cached(project, text) for text in RESULTS)
    assert any("left to `dvc gc --workspace`" in line for line in done.out_of_reach)
    dvc(project, "gc", "--workspace", "--force")
    assert not any(cached(project, text) for text in RESULTS)
    assert named_in_lock(project) <= DvcCache(Repo(str(project.root))).objects.keys()

    assert "make-original" in dvc(project, "status")
    assert stages_run(dvc(project, "repro")) == {"make-original", "audit-original"}
    with pytest.raises(RegistryError, match="was erased as version 1"):
        register_all(project, progress=False)
    assert act(project).left == []
    assert holders(project.root, first[ORIGINAL]) == []


def test_versions_of_earlier_runs_are_found_by_their_content(project: Workspace) -> None:
    """dvc.lock does not name them any more; the versions beside them stay restorable."""
    first, second = layers(0), layers(10)
    pack(project, 10)
    dvc(project, "repro", "-q")
    register_all(project, progress=False)
    before = {path: path.read_bytes() for path in project.root.rglob("lineage/**/*.json")}
    lock = (project.root / "dvc.lock").read_bytes()
    assert len(holders(project.root / ".dvc", first[ORIGINAL])) == 1
    done = act(project)
    assert (done.left, done.removed["files"], done.removed["stages"]) == ([], [], [])
    assert done.kept == []
    assert holders(project.root, first[ORIGINAL]) == []
    assert not cached(project, "records of 0")
    for text in (
        "records of 10",
        "puma of 0",
        "retrain of 0",
        "original of 10",
        "audit-puma of 10",
    ):
        assert cached(project, text)
    assert {path: path.read_bytes() for path in before} == before
    assert (project.root / "dvc.lock").read_bytes() == lock
    assert "up to date" in dvc(project, "status")
    for version, wanted in second.items():
        assert len(holders(project.root / ".dvc", wanted)) == 1, version

    pack(project, 0)  # back to the first: DVC makes the erased ones, and restores the others
    assert stages_run(dvc(project, "repro")) == {"make-original", "audit-original"}
    assert (project.root / "reports/puma.ipynb").read_text() == "puma of 0"
    assert verify_version(project, DATASET, 3).failed == ()


def test_killed_half_way_through_the_cache(
    project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are gone first: what was made with them is still known by the note."""
    first = layers(0)
    unlink, gone = Path.unlink, []

    def killed(self: Path, **named: bool) -> None:
        if self.is_relative_to(project.root / ".dvc") and len(gone) == 2:
            raise KeyboardInterrupt
        gone.append(self)
        unlink(self, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            act(project)
    assert act(project).left == []
    assert holders(project.root, first[ORIGINAL]) == []
    assert not cached(project, "records of 0")


def test_what_another_needs_is_kept_and_named(project: Workspace) -> None:
    shared = project.model_record(DATASET, ORIGINAL)
    shutil.copy(shared, project.root / "mine.json")
    dvc(project, "add", "-q", "mine.json")
    done = act(project)
    assert [line.split(": ")[1] for line in done.kept] == [
        f"{project.root}/mine.json.dvc tracks it"
    ]
    assert done.left == []
    assert not shared.exists()
    assert "up to date" in dvc(project, "status", "mine.json.dvc")


def test_weights_that_the_user_tracks_are_left_and_named(project: Workspace) -> None:
    shutil.copy(project.weights(DATASET, ORIGINAL), project.root / "mine.pt")
    dvc(project, "add", "-q", "mine.pt")
    done = act(project)
    assert len(done.left) == 2
    assert "mine.pt.dvc tracks it" in done.left[0]
    assert done.left[1].startswith(f"{project.root}/mine.pt: holds the weights")
    assert [row.version for row in list_versions(open_store(project), DATASET)] == [1, 2, 3]
    dvc(project, "remove", "-q", "mine.pt.dvc")
    (project.root / "mine.pt").unlink()
    assert act(project).left == []


def test_a_cache_elsewhere_is_found_and_named(project: Workspace, tmp_path: Path) -> None:
    first = layers(0)
    (project.root / ".dvc/cache").rename(tmp_path / "shared")
    dvc(project, "config", "cache.dir", str(tmp_path / "shared"))
    dvc(project, "remote", "add", "-q", "offsite", str(tmp_path / "remote"))
    done = act(project)
    assert holders(tmp_path / "shared", first[ORIGINAL]) == []
    assert done.removed["cache"]
    assert all(line.startswith(str(tmp_path / "shared")) for line in done.removed["cache"])
    assert any("that share the DVC cache" in line for line in done.out_of_reach)
    assert any("DVC remotes (offsite)" in line for line in done.out_of_reach)


@pytest.mark.parametrize("kind", ["hardlink", "symlink"])
def test_a_working_tree_of_links_into_the_cache(project: Workspace, kind: str) -> None:
    """Nothing is written through a link, and erasing one removes the object, too."""
    dvc(project, "config", "cache.type", kind)
    dvc(project, "checkout", "-q", "--relink", "--force")
    linked = project.weights(DATASET, "puma")
    assert linked.is_symlink() if kind == "symlink" else linked.stat().st_nlink == 2

    save_weights(make_model(30), linked)  # as every stage and command writes
    record = ModelRecord.read(project.model_record(DATASET, "puma"))
    record.write(project.model_record(DATASET, "puma"))
    workspace_files = (linked, project.model_record(DATASET, "puma"))
    assert not any(path.is_symlink() or path.stat().st_nlink > 1 for path in workspace_files)
    dvc(project, "checkout", "-q", "--force")

    done = act(project)
    assert (done.left, done.kept) == ([], [])
    assert holders(project.root, layers(0)[ORIGINAL]) == []
    assert not any(path.is_symlink() and not path.exists() for path in project.root.rglob("*"))
    cache = DvcCache.of(project.root)
    assert cache is not None
    for name, (path, *_) in cache.objects.items():
        assert hashlib.md5(path.read_bytes()).hexdigest() == name.removesuffix(".dir")
    assert stages_run(dvc(project, "repro")) == {"make-original", "audit-original"}
    assert verify_version(project, DATASET, 3).failed == ()


def test_not_while_dvc_runs_a_stage(project: Workspace) -> None:
    cache = DvcCache.of(project.root)
    assert cache is not None
    with cache.locked(), pytest.raises(RegistryError, match="a DVC command is running"):
        act(project)
    assert ModelRecord.read(project.model_record(DATASET, ORIGINAL)).method == ORIGINAL
