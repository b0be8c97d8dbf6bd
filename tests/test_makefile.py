"""`make` in a folder that is not a clone, or with a Python that will not do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a downloaded archive: no .git."""
    project = tmp_path / "project"
    (project / "notebooks").mkdir(parents=True)
    (project / ".dvc").mkdir()
    for name in (
        "Makefile",
        "pyproject.toml",
        "constraints.txt",
        "notebooks/jupyter_server_config.py",
        ".dvc/config",
    ):
        shutil.copy(ROOT / name, project / name)
    return project


@pytest.mark.slow
def test_the_pipeline_runs_without_git(folder: Path) -> None:
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (folder / ".venv" / ".ready").touch()
    (folder / "dvc.yaml").write_text("stages: {a: {cmd: echo ran > a, outs: [a]}}")
    done = make(folder, "repro")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "a").read_text() == "ran\n"
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    assert make(folder, "repro").returncode == 0


def test_a_python_without_venv_is_refused_in_one_line(folder: Path) -> None:
    done = make(folder, "install", "PYTHON=false")
    assert done.returncode != 0
    assert "false must be Python 3.11 or newer with venv and ensurepip" in done.stderr
    assert "make install PYTHON=" in done.stderr
    assert not (folder / ".venv").exists()


def test_what_is_pinned_installs_with_the_oldest_python_that_is_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines()]
    needs = {pin.name: metadata(pin.name).get("Requires-Python") for pin in pins}
    assert {
        name: need for name, need in needs.items() if need and oldest not in SpecifierSet(need)
    } == {}
