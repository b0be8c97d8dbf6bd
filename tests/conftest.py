"""One thread per process: two test workers share two cores, and the models here are tiny."""

from __future__ import annotations

import os
import signal

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; children inherit it


def pytest_configure() -> None:
    """Let children be interrupted, also where a shell started the tests in the background.

    It has them ignore interrupts, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The end-to-end run takes longest: started first, the other worker does all the rest."""
    items.sort(key=lambda item: "test_end_to_end" not in item.nodeid)
