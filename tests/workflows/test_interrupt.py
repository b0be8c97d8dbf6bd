"""Ctrl-C in the middle of a command whose training runs in processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from puma.project.workspace import Workspace
from puma.references import Population
from puma.registry import list_versions, open_store
from tests.audited import DATASET
from tests.audited_fixtures import own, project
from tests.command import pool_of
from tests.registry.fixtures import _default_store, template

__all__ = ["_default_store", "own", "project", "template"]

MODELS = 2000  # more than can be trained meanwhile, in more tasks than processes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
def test_an_interrupted_removal_is_quiet_and_leaves_nothing(own: Workspace, tmp_path: Path) -> None:
    params = own.root / "params.yaml"
    params.write_text(
        params.read_text().replace("models: 5", f"models: {MODELS}").replace("jobs: 1", "jobs: 2")
    )
    stored = own.reference(DATASET, "original", "with")
    few = Population.load(stored)
    lines = np.arange(MODELS) % len(few)
    Population(few.margins[lines], few.correct[lines], few.member[lines]).save(stored)
    request = own.root / "request.csv"
    request.write_text("subject_id\nzz-train-20\nzz-train-21\nzz-train-22\n")
    before = len(list_versions(open_store(own), DATASET))
    files = {path for path in own.root.rglob("*") if path.is_file()}
    (tmp_path / "temporary").mkdir()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "puma.cli", "remove", "--method", "retrain"),
            *("--model", f"models:/puma-{DATASET}/1", "--deletions", str(request)),
        ],
        cwd=own.root,
        env=os.environ | {"TMPDIR": str(tmp_path / "temporary")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        workers = _workers(process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        output, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, output) == (130, ""), errors
    assert "Traceback" not in errors
    assert errors.endswith("\npuma: interrupted; the same command completes what was begun\n")
    psutil.wait_procs(workers, timeout=20)
    assert not any(each.is_running() for each in workers)
    assert len(list_versions(open_store(own), DATASET)) == before
    assert list((tmp_path / "temporary").iterdir()) == []
    assert {path for path in own.root.rglob("*") if path.is_file()} - files <= {
        *(own.root / ".puma" / name for name in ("mlflow.lock", "register.lock")),
    }


def _workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The two processes of the pool, as soon as they are there."""
    latest = time.monotonic() + 120
    while time.monotonic() < latest and process.poll() is None:
        found = pool_of(process)
        if len(found) == 2:
            return found
        time.sleep(0.02)
    process.kill()
    pytest.fail(f"no pool of two processes: {process.communicate(timeout=5)}")
