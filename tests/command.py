"""The command line, in this process and in others."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from puma import cli


def puma(folder: Path, *arguments: str) -> Any:
    """The result of ``puma arguments…`` in ``folder``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(cli.app, list(arguments))


PORT_TAKEN = "zmq.error.ZMQError: Address already in use"


def completed(
    command: Sequence[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command that starts kernels, and again if a kernel lost its port.

    Jupyter finds a free port, and the kernel takes it a second later. Where tests run side by side,
    another kernel may have taken it meanwhile. What was printed before stays part of the output.
    """
    printed = ""
    for _ in range(3):
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200
        )
        printed += done.stdout
        if done.returncode == 0 or PORT_TAKEN not in done.stdout + done.stderr:
            break
    return subprocess.CompletedProcess(done.args, done.returncode, printed, done.stderr)


def pool_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that train for ``process``, those that have begun."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # also of one that has just ended
            if "spawn_main" in " ".join(each.cmdline()):
                found.append(each)
    return found
