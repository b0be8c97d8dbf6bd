"""Ctrl-C, and a reader of the output that has gone: a quiet end with an exit code of its own."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130  # exit code after Ctrl-C, as of every other program
UNREAD = 141  # exit code when nobody reads the output any more, as of every other program


@contextlib.contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Let Ctrl-C end the process with a line: there is nothing yet that has to be completed."""
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before is not signal.default_int_handler:
        yield  # ignored, as of a job in the background
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(*_: object) -> None:
    os.write(2, b"\npuma: interrupted\n")
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def interrupts_noted() -> Iterator[list[int]]:
    """List the interrupts as they come.

    PyTorch goes on without NumPy when one comes while it imports that, and another error follows.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    before = signal.getsignal(signal.SIGINT)
    if before not in (signal.default_int_handler, _end):
        yield noted  # ignored, as of a job in the background
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def output_is_unread() -> bool:
    """Whether standard output or standard error is a pipe that nobody reads any more."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def discard_output() -> None:
    """Let what is still to be written go nowhere, so that Python does not fail at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    sys.stdout.flush()
