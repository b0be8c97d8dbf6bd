"""Run what a stage calls in place of DVC, and append its name and seconds to a file.

    python -m benchmarks.timed_stage LOG MODULE [ARGUMENT ...]

It imports nothing that takes time, as that would count as the stage's.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def record_stage(command: Sequence[str], arguments: Sequence[str], log: str) -> int:
    """Run Python with ``command`` and ``arguments``; the exit code is returned."""
    start = time.perf_counter()
    code = subprocess.call([sys.executable, *command, *arguments])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = next((each for each in arguments if each.startswith("reports/")), None)
    name = Path(made).stem if made else " ".join(["puma", *arguments])
    row = {
        "part": name,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": used.ru_utime + used.ru_stime,
    }
    with Path(log).open("a") as stream:
        stream.write(json.dumps(row) + "\n")
    return code


if __name__ == "__main__":
    log, module, *arguments = sys.argv[1:]
    sys.exit(record_stage(("-m", module), arguments, log))
