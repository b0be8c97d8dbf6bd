"""A process that is killed at one of its writes, and what has to hold of the registry afterwards.

A write is told by what it is and by how many of its kind came before. Its place among all writes
would not do: MLflow leaves out an UPDATE that changes nothing, as when a run happened to last to
the millisecond as long as it is then said to have lasted.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from puma.lineage.records import read_model_records
from puma.project.workspace import Workspace
from puma.registry import (
    RegisteredVersion,
    Registry,
    list_versions,
    load_predictor,
    missing,
    open_store,
    register_all,
)
from puma.registry.certificate.verify import verify_version
from puma.registry.creation import pipeline_draft
from puma.registry.promotion import promote
from puma.registry.versions import CHAMPION, find_aliases
from tests.registry.projects import DATASET, FEATURES

if TYPE_CHECKING:
    from alembic.runtime.migration import RevisionStep

KEY = "a" * 64
WRITE = "about to write: "
RANDOM = re.compile(r"\b[0-9a-f]{32}\b|(?<=\.uploading\.)\w+|(?<=\.json\.)[0-9a-f]{8}$")


class Write(NamedTuple):
    """The ``nth`` write of a kind, counted from 1."""

    kind: str
    nth: int


def read_writes(log: Path) -> list[Write]:
    """What a process was about to write, in order, by its log."""
    kinds = [
        line.removeprefix(WRITE) for line in log.read_text().splitlines() if line.startswith(WRITE)
    ]
    return [Write(kind, kinds[: place + 1].count(kind)) for place, kind in enumerate(kinds)]


def register_until(workspace: Workspace, last: Write | None) -> None:
    """Register what is missing; killed before the ``last`` write, if any."""
    _watch_writes(workspace.root, _kill_at(last))
    register_all(workspace, progress=False)


def answer_until(workspace: Workspace, last: Write | None) -> None:
    """Register the last receipt's model as the direct path does; killed as in
    :func:`register_until`."""
    _watch_writes(workspace.root, _kill_at(last))
    _answer(workspace)


def _answer(workspace: Workspace) -> tuple[RegisteredVersion, bool]:
    draft = pipeline_draft(workspace, read_model_records(workspace, DATASET)[-1])
    return Registry.open(workspace).register_removal(draft, KEY)


def promote_until(workspace: Workspace, last: Write | None) -> None:
    """Let version 3 serve; killed as in :func:`register_until`."""
    _watch_writes(workspace.root, _kill_at(last))
    promote(workspace, DATASET, 3)


def check_whole(workspace: Workspace, n_before: int) -> None:
    """Whole or absent: at most one version more than before, which holds and can be loaded."""
    rows = list_versions(open_store(workspace), DATASET)
    assert len(rows) - n_before in (0, 1)
    for row in rows[n_before:]:
        assert verify_version(workspace, DATASET, row.version).conclusion == "holds"
        load_predictor(workspace, DATASET, row.version)(torch.zeros(1, FEATURES))


def check_promoted(workspace: Workspace, was: int) -> None:
    """The version that served still does, or the new one, which it does after another try."""
    served = find_aliases(open_store(workspace), DATASET)[CHAMPION]
    assert served in (was, 3)
    promote(workspace, DATASET, 3)
    for version in (was, 3):
        assert verify_version(workspace, DATASET, version).conclusion == "holds"
    assert find_aliases(open_store(workspace), DATASET)[CHAMPION] == 3


def check_completed(workspace: Workspace, n_before: int) -> None:
    """What the same command leaves when it runs once more: one version more, and nothing else."""
    check_whole(workspace, n_before)
    register_all(workspace, progress=False)
    assert missing(workspace) is None
    rows = list_versions(open_store(workspace), DATASET)
    assert len(rows) == n_before + 1
    fingerprints = [receipt.fingerprint for receipt in read_model_records(workspace, DATASET)]
    registered = [row.fingerprint for row in rows]
    assert [registered.count(fingerprint) for fingerprint in fingerprints] == [1] * len(
        fingerprints
    )
    assert rows[-1].aliases == ("challenger",)
    check_whole(workspace, n_before)


def check_answered(workspace: Workspace, n_before: int) -> None:
    """The same of the direct path: one version more, however often it is asked."""
    check_whole(workspace, n_before)
    answered, _ = _answer(workspace)
    assert _answer(workspace) == (answered, False)
    rows = list_versions(open_store(workspace), DATASET)
    assert len(rows) == n_before + 1
    assert (rows[-1].version, rows[-1].aliases) == (answered.version, ("challenger",))
    check_whole(workspace, n_before)


def migrate_until(workspace: Workspace, last: int) -> None:
    """Open the store for the first time; killed at the ``last`` step of its migration."""
    from alembic.runtime.migration import HeadMaintainer

    steps = 0
    finish_step = HeadMaintainer.update_to_step

    def count(self: HeadMaintainer, step: RevisionStep) -> None:
        nonlocal steps
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
        finish_step(self, step)

    HeadMaintainer.update_to_step = count  # type: ignore[method-assign]
    open_store(workspace)


def _kill_at(last: Write | None) -> Callable[[str], None]:
    written: Counter[str] = Counter()

    def kill(kind: str) -> None:
        print(f"{WRITE}{kind}", flush=True)
        written[kind] += 1
        if Write(kind, written[kind]) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def _watch_writes(root: Path, tell: Callable[[str], None]) -> None:
    """Call ``tell`` before every change to the folder and before every commit to its store."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    writing: list[str] = []

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "open":
            path, _, flags = arguments
            if not isinstance(path, str) or not (flags & (os.O_WRONLY | os.O_RDWR)):
                return
        elif name == "os.rename":
            path = str(arguments[0])
        else:
            return
        if Path(path).is_relative_to(root) and not path.endswith(".lock"):
            tell(RANDOM.sub("…", f"{name} {Path(path).relative_to(root)}"))

    def execute(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.split(maxsplit=1)[0] in ("INSERT", "UPDATE", "DELETE"):
            writing.append(" ".join(statement.split()[:3]))

    def commit(_: Any) -> None:
        if writing:
            tell(f"commit {writing[-1]}")
            writing.clear()

    event.listen(Engine, "before_cursor_execute", execute)
    event.listen(Engine, "commit", commit)
    sys.addaudithook(audit)
