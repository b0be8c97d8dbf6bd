"""One odd input of ``python -m benchmarks fuzz``, and what has to become of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REFUSED = object()  # what is expected of an input that cannot be used


class UsageError(Exception):
    """A command's refusal: exit code 2, and what it printed."""


@dataclass(frozen=True)
class Case:
    """An input whose outcome is known beforehand.

    Attributes:
        name: What is special about it, so that it can be made again by hand.
        run: Uses it, and returns what came of it.
        expected: What ``run`` must return, or REFUSED. It follows from how the input was made,
            never from PUMA.
        secrets: What no message may hold.
        folder: Nothing in it may change when the input is refused.
    """

    name: str
    run: Callable[[], Any]
    expected: Any
    secrets: tuple[str, ...] = ()
    folder: Path | None = None


def text(value: object) -> str:
    """A value, short enough for a name."""
    shown = re.sub(r" at 0x\w+", "", " ".join(repr(value).split()))
    return shown if len(shown) <= 60 else f"{shown[:50]}… ({len(shown)} characters)"
