"""Removals on a second device, in a process of their own: it changes PyTorch for good."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "cases", ["not slow", pytest.param("slow", marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_removals_on_another_device_are_those_on_the_cpu(cases: str) -> None:
    path = Path(__file__).with_name("on_pretended_device.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", cases, str(path)],
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if "XDIST" not in name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
