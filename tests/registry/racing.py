"""What two people do at the same time, each in a clone of the project."""

from __future__ import annotations

from multiprocessing.synchronize import Barrier
from pathlib import Path

from puma.lineage.records import ModelRecord
from puma.project.workspace import Workspace
from puma.registry import open_store, register_all
from puma.settings import ORIGINAL
from tests.registry.forked import CONTEXT, finish, start
from tests.registry.projects import DATASET, METHODS, make_project, write_audit, write_version

ROUNDS = 3
PEOPLE = 2


def race(folder: Path, store: str, *, same: bool) -> tuple[Workspace, ...]:
    """The clones, after everybody registered the removals of every round."""
    barrier = CONTEXT.Barrier(PEOPLE)
    clones = [make_project(folder / f"clone {person}") for person in range(PEOPLE)]
    logs = [folder / f"log {person}" for person in range(PEOPLE)]
    finish(
        {
            start(
                _register,
                *(clone, barrier, 0 if same else person),
                log=log,
                MLFLOW_TRACKING_URI=store,
            ): log
            for person, (clone, log) in enumerate(zip(clones, logs, strict=True))
        }
    )
    return tuple(clones)


def connect_at_once(folder: Path, store: str) -> list[str]:
    """The id of PUMA's experiment, as each of those finds it who come first."""
    barrier = CONTEXT.Barrier(PEOPLE)
    clones = [make_project(folder / f"clone {person}") for person in range(PEOPLE)]
    logs = [folder / f"log {person}" for person in range(PEOPLE)]
    finish(
        {
            start(_connect, clone, barrier, log=log, MLFLOW_TRACKING_URI=store): log
            for clone, log in zip(clones, logs, strict=True)
        }
    )
    return [log.read_text() for log in logs]


def _register(workspace: Workspace, barrier: Barrier, person: int) -> None:
    original = ModelRecord.read(workspace.model_record(DATASET, ORIGINAL))
    for number in range(ROUNDS):
        seed = 10 * (1 + PEOPLE * number + person)
        for place, method in enumerate(METHODS):
            write_version(
                workspace,
                method,
                weights_seed=seed + place,
                parent=original,
                deletion=f"{seed:064x}",
            )
        write_audit(workspace, ORIGINAL, deletion=f"{seed:064x}")
        barrier.wait(60)
        try:
            register_all(workspace, progress=False)
        except BaseException:
            barrier.abort()  # nobody is to wait for this one
            raise


def _connect(workspace: Workspace, barrier: Barrier) -> None:
    barrier.wait(60)
    print(open_store(workspace).get_experiment_by_name("puma").experiment_id)
