"""One thread per process: two test workers share two cores, and the models here are tiny."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; children inherit it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The end-to-end run takes longest: started first, the other worker does all the rest."""
    items.sort(key=lambda item: "test_end_to_end" not in item.nodeid)
