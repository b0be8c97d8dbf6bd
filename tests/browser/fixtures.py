"""The browser as a fixture, and the marks of the tests that look at pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Chromium, chromium, programs

NEEDS_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(
        programs() is None,
        reason="Chromium and its driver are not installed: apt install chromium chromium-driver",
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    binary, driver = programs() or ("", "")
    with chromium(binary, driver) as opened:
        yield opened
