"""What tests start commands with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.command import PORT_TAKEN, completed


@pytest.mark.parametrize(("message", "runs"), [(PORT_TAKEN, 2), ("another error", 1)])
def test_a_command_runs_again_only_if_a_kernel_lost_its_port(
    message: str, runs: int, tmp_path: Path
) -> None:
    fails = f"echo '{message}' >&2; false"
    script = f"echo run >> runs; cat runs; [ $(wc -l < runs) -gt 1 ] || {{ {fails}; }}"
    done = completed(["bash", "-c", script], tmp_path, dict(os.environ))
    assert (tmp_path / "runs").read_text() == "run\n" * runs
    assert done.returncode == (0 if runs > 1 else 1)
    assert done.stdout == "run\n" * (3 if runs > 1 else 1)  # of both runs
