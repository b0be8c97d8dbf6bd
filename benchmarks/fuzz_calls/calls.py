"""How calls are collected, and values that several of them pass."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks.fuzz_case import REFUSED, Case, text
from benchmarks.fuzz_requests import BOTH, TEST, TRAIN
from puma.settings import ModelSettings, TrainingSettings

Call = Any  # mypy infers no type of a lambda with defaults
DONE = "done"
BAD_SEEDS = (-1, 1.5, "0", None)
NEGATIVE = (-1,)
NOT_POSITIVE = (0, -1, math.nan, math.inf)
QUICK = TrainingSettings(epochs=2)
SMALL = ModelSettings(hidden=(4,))


class Calls:
    """Collects cases."""

    def __init__(self, folder: Path) -> None:
        self.cases: list[Case] = []
        self.folder = folder
        self.secrets = (*TRAIN, BOTH, *TEST)

    def good(self, name: str, call: Call, expected: Any = DONE) -> None:
        """``call`` must give ``expected``, or whatever it gives."""

        def run() -> Any:
            found = call()
            return DONE if expected is DONE else found

        self._add(f"good: {name}", run, expected)

    def bad(self, name: str, call: Call) -> None:
        self._add(name, call, REFUSED)

    def bad_each(self, name: str, values: Any, call: Call) -> None:
        """``call`` of each of ``values`` must be refused."""
        for value in values:
            self.bad(f"{name}={_shown(value)}", partial(call, value))

    def _add(self, name: str, call: Call, expected: Any) -> None:
        self.cases.append(Case(name, call, expected, secrets=self.secrets, folder=self.folder))


def _shown(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} {tuple(value.shape)} of {value.dtype}"
    return text(value)
