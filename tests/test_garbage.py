"""Processes of our own collect rarely, from their start to their end."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.registry.projects import run_python

ROOT = Path(__file__).parents[1]
AT_THE_END = """import atexit, gc, sys
before = gc.get_threshold()
def tell():
    *younger, oldest = gc.get_threshold()
    print(tuple(younger) == before[:2], oldest, gc.get_freeze_count() > 0)
atexit.register(tell)
"""


@pytest.mark.parametrize(
    "process",
    [
        "from puma.cli import app; app(['--help'])",
        "import runpy; runpy.run_path('notebooks/startup.py')",
    ],
    ids=["command", "kernel"],
)
def test_few_full_collections_and_none_at_the_end(process: str) -> None:
    printed = run_python(AT_THE_END + process, ROOT)
    assert printed.splitlines()[-1] == "True 100 True"


def test_every_kernel_of_the_pipeline_starts_so() -> None:
    pipeline = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    (run,) = (each["run"] for each in pipeline["vars"] if "run" in each)
    assert "PYTHONSTARTUP=notebooks/startup.py papermill" in run
    commands = [stage["cmd"] for stage in pipeline["stages"].values()]
    assert all(command.startswith(("${run}/", "puma ")) for command in commands)
