"""Fresh processes in milliseconds: forks of one that has imported everything."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import tests

CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")


def start(
    target: Callable[..., object],
    *arguments: Any,
    log: Path,
    named: Mapping[str, Any] | None = None,
    **environment: str,
) -> ForkServerProcess:
    """A process in which ``target`` runs, of a module; what it prints goes to ``log``."""
    CONTEXT.set_forkserver_preload(["tests.registry.warm"])
    with contextlib.chdir(Path(tests.__file__).parents[1]):  # where it imports from
        forkserver.ensure_running()
    process = CONTEXT.Process(
        target=_run, args=(target, arguments, named or {}, log, {**os.environ, **environment})
    )
    process.start()
    return process


def finish(
    processes: Mapping[ForkServerProcess, Path], seconds: float = 120, *, killed: bool = False
) -> None:
    """Wait for processes with their logs, all of which must succeed, or be ``killed``."""
    expected = (0, -signal.SIGKILL) if killed else (0,)
    for process in processes:
        process.join(seconds)
    if any(process.exitcode not in expected for process in processes):
        raise AssertionError("\n\n".join(log.read_text() for log in processes.values()))


def _run(
    target: Callable[..., object],
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
    log: Path,
    environment: dict[str, str],
) -> None:
    with log.open("ab") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    os.environ.clear()  # it was that of whoever needed the first fork
    os.environ.update(environment)
    tempfile.tempdir = None  # it was looked up before the fork
    target(*arguments, **named)
