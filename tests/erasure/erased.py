"""What the tests of erasing share: erasing, and looking at what is left."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from puma.erasure.erase import Erasure, erase
from puma.project.workspace import Workspace
from puma.registry import open_store
from tests.registry.projects import DATASET, make_model

NAME = f"puma-{DATASET}"
SEEDS = {1: 0, 2: 1, 3: 2}  # version -> of its weights
PLANTED = "planted-in-a-parameter"


def act(workspace: Workspace, version: int | str = 1) -> Erasure:
    return erase(workspace, DATASET, version, act=True, progress=False)


def first_layer(seed: int) -> bytes:
    """128 bytes that only the model of ``seed`` has."""
    return make_model(seed).state_dict()["0.weight"].numpy().tobytes()


def holders(root: Path, seed: int) -> list[str]:
    """The files that hold these weights, found the plain way."""
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and first_layer(seed) in path.read_bytes()
    )


def files(workspace: Workspace) -> dict[str, bytes]:
    """All files but locks."""
    return {
        str(path.relative_to(workspace.root)): path.read_bytes()
        for path in sorted(workspace.root.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def rows_of(workspace: Workspace, *ids: str) -> dict[str, list[Any]]:
    """What the tables say of runs and models of these ids."""
    found: dict[str, list[Any]] = {}
    tables = {
        "runs": "run_uuid",
        "params": "run_uuid",
        "metrics": "run_uuid",
        "latest_metrics": "run_uuid",
        "tags": "run_uuid",
        "logged_models": "model_id",
        "logged_model_metrics": "model_id",
        "logged_model_tags": "model_id",
    }
    with contextlib.closing(sqlite3.connect(workspace.root / "mlflow.db")) as connection:
        for table, column in tables.items():
            marks = ",".join("?" * len(ids))
            query = f"SELECT * FROM {table} WHERE {column} IN ({marks}) ORDER BY 1, 2"
            found[table] = connection.execute(query, ids).fetchall()
    return found


def ids_of(workspace: Workspace, version: int) -> tuple[str, str]:
    found = open_store(workspace).get_model_version(NAME, str(version))
    return found.run_id, found.source.removeprefix("models:/")
