"""The benchmark of everyday commands measures what it says it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.command_times import spent
from benchmarks.timed_stage import record_stage

BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


@pytest.mark.slow
def test_seconds_of_the_processor_are_those_of_the_command(tmp_path: Path) -> None:
    busy, asleep = (
        spent(("-c", code), tmp_path, dict(os.environ))
        for code in (BUSY, "import time; time.sleep(0.5)")
    )
    assert 0.3 <= busy["cpu_seconds"] < 2
    assert asleep["cpu_seconds"] < 0.3 < 0.5 <= asleep["seconds"]


def test_a_command_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        spent(("-c", "import sys; sys.stderr.write('no such thing'); sys.exit(2)"), tmp_path, {})


def test_a_stage_is_told_by_its_report(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import sys; sys.exit(len(sys.argv) - 2)"
    assert record_stage(("-c", code), ["reports/coins-train.ipynb"], str(log)) == 0
    assert record_stage(("-c", code), ["source", "coins"], str(log)) == 1
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["part"] for row in rows] == ["coins-train", "puma source coins"]
    assert all(row["seconds"] > 0 for row in rows)


def test_timing_a_stage_adds_next_to_nothing_to_it() -> None:
    """What it imports counts as the stage's time: the standard library alone."""
    code = (
        "import sys\nimport benchmarks.timed_stage\n"
        "print(sorted({'numpy', 'pandas', 'torch', 'typer', 'puma'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
