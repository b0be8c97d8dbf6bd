"""A stage's notebook in JupyterLab, as a person runs it: a real page, a real kernel."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import nbformat
import pytest

from puma.project.workspace import Workspace
from tests.browser.chromium import Chromium, until
from tests.browser.fixtures import NEEDS_BROWSER, browser
from tests.browser.notebook import bars, choose, open_notebook, run_all
from tests.browser.servers import jupyterlab
from tests.test_end_to_end import TINY, copy_project, run

__all__ = ["browser"]
DATASET = "german_credit"  # of the notebook's parameters
STAGE = f"remove@{DATASET}-puma"
pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A committed project whose pipeline has run up to the removal."""
    workspace = copy_project(
        tmp_path_factory.mktemp("lab") / "project", TINY | {"datasets": [DATASET]}
    )
    run(workspace, "dvc", "repro", STAGE)
    git(workspace, "add", "--all")
    git(workspace, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "made")
    return workspace


def git(workspace: Workspace, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=workspace.root, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_removal_runs_to_its_last_assertion_and_leaves_git_and_dvc_as_they_were(
    browser: Chromium, project: Workspace, tmp_path: Path
) -> None:
    path = project.root / "notebooks" / "remove.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    before = json.loads(run(project, "dvc", "status", "--json").stdout)
    assert STAGE not in before
    with jupyterlab(project.root, tmp_path) as address:
        open_notebook(browser, address, path.name, len(cells))
        done = run_all(browser)
        code = [
            cell for cell, source in zip(done, cells, strict=True) if source.cell_type == "code"
        ]
        assert [cell.prompt for cell in code] == [f"[{n}]:" for n in range(1, len(code) + 1)]
        assert [cell.output for cell in done if cell.faulty] == []
        assert done[-1].output.strip() == "The claim holds."
        finished = bars(browser)
        assert finished
        assert {*finished} == {"progress-bar-success"}

        browser.true("document.querySelector('.lm-mod-current.jp-mod-dirty')")
        saved = path.stat().st_mtime_ns
        choose(browser, "File", "docmanager:save")
        until(lambda: path.stat().st_mtime_ns != saved, lambda: "saved notebook")
        browser.true("!document.querySelector('.lm-mod-current.jp-mod-dirty')")
    assert git(project, "status", "--porcelain") == ""
    assert json.loads(run(project, "dvc", "status", "--json").stdout) == before
