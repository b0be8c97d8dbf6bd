"""Garbage collection in a process of our own: most of its objects are imported, and stay."""

from __future__ import annotations

import atexit
import gc


def collect_rarely() -> None:
    """Make full collections ten times rarer, and end without one. It is for the whole process.

    What a command imports is half a million objects. Looking through all of them again and again
    takes a second while they are imported, and another one when Python ends. The younger
    generations, where objects come and go, are collected as before. What is in reference cycles
    when the process ends is not finalised.
    """
    gc.set_threshold(*gc.get_threshold()[:2], 100)
    atexit.register(gc.freeze)
