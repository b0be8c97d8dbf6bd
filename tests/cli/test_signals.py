"""Ctrl-C at any time, and output that nobody reads: no traceback, and no exit code 1."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from puma.project.workspace import Workspace
from tests.command import puma
from tests.registry.fixtures import _default_store, filled, template
from tests.registry.projects import DATASET

__all__ = ["_default_store", "filled", "template"]

# Sends Ctrl-C as soon as something imports the module of this name.
AT_IMPORT = """
import importlib.abc, os, runpy, signal, sys
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
sys.meta_path.insert(0, Interrupting())
sys.argv = ["puma", "versions", {dataset!r}]
runpy.run_module("puma.cli", run_name="__main__")
"""


def unread(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and errors of a command into a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "puma.cli", *arguments],
            cwd=folder,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["--help", "verify --help", f"verify {DATASET} 1", f"versions {DATASET}", "registered"],
)
def test_output_that_nobody_reads_is_no_answer(filled: Workspace, command: str) -> None:
    assert unread(filled.root, *command.split()) == (141, "")


@pytest.mark.slow
def test_a_refusal_stays_one(filled: Workspace) -> None:
    code, errors = unread(filled.root, "verify", DATASET, "9")
    assert code == 2
    assert errors.startswith("puma: puma-toy has no version '9'")


@pytest.mark.parametrize("module", ["typer", "pydantic"])
def test_ctrl_c_while_puma_is_imported_is_a_line(tmp_path: Path, module: str) -> None:
    code = AT_IMPORT.format(module=module, dataset=DATASET)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\npuma: interrupted\n")


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EACCES, "let this user write there"), (errno.ENOSPC, "free space")],
)
def test_a_forbidden_or_full_folder_is_a_line(
    filled: Workspace, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def failing(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/somewhere/file")

    monkeypatch.setattr("puma.registry.missing", failing)
    result = puma(filled.root, "registered")
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch(
        rf"puma: \[Errno {number}\] .*: '/somewhere/file'; {advice}.*\n", result.stderr
    )
