"""An interrupted erasure is completed by repeating it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from puma.erasure import erase
from puma.project.workspace import Workspace
from puma.registry import list_versions, open_store, version_deletion
from puma.registry.certificate.verify import verify_version
from puma.registry.tombstones import tombstones
from puma.settings import ORIGINAL
from tests.erasure.erased import (
    act,
    first_layer,
    holders,
)
from tests.registry.projects import (
    DATASET,
)

pytestmark = pytest.mark.slow

STEPS = {
    "keep_certificates": erase,
    "remove_files": erase,
    "search_again": erase,
    "delete_registered": erase,
    "write_tombstone": version_deletion,
    "delete_model": version_deletion,
    "delete_run": version_deletion,
    "delete_version": version_deletion,
    "compact": version_deletion,
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_is_completed_by_repeating_it(
    servable: Workspace, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    module = STEPS[step]
    real = getattr(module, step)

    def killed(*arguments: Any, **named: Any) -> None:
        if after:
            real(*arguments, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, step, killed)
        with pytest.raises(KeyboardInterrupt):
            act(servable)
    _complete(servable)


@pytest.mark.parametrize("count", range(4))
def test_killed_between_two_files(
    servable: Workspace, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    done: list[Path] = []
    unlink = Path.unlink

    def killed(self: Path, **named: Any) -> None:
        if self.suffix in (".pt", ".json", ".png") and len(done) == count:
            raise KeyboardInterrupt
        done.append(self)
        unlink(self, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            act(servable)
    _complete(servable)


@pytest.mark.parametrize("table", ["model_version_tags", "tags"])
def test_killed_among_the_rows(
    servable: Workspace, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    from mlflow import MlflowClient

    name = {"model_version_tags": "delete_model_version_tag", "tags": "delete_run"}[table]
    real, calls = getattr(MlflowClient, name), []

    def killed(*arguments: Any) -> None:
        if len(calls) == (3 if table == "model_version_tags" else 0):
            raise KeyboardInterrupt
        calls.append(arguments)
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, name, killed)
        with pytest.raises(KeyboardInterrupt):
            act(servable)
    _complete(servable)


def _complete(servable: Workspace) -> None:
    if servable.erasing(DATASET, 1).exists():
        assert servable.erasing(DATASET, 1).stat().st_mode & 0o777 == 0o600
        assert first_layer(0).hex() not in servable.erasing(DATASET, 1).read_text()
    assert act(servable).left == []
    assert holders(servable.root, 0) == []
    assert not servable.model_record(DATASET, ORIGINAL).exists()
    assert not servable.figures(DATASET, ORIGINAL).exists()
    assert not servable.erasing(DATASET, 1).exists()
    client = open_store(servable)
    assert [row.version for row in list_versions(client, DATASET)] == [2, 3]
    assert list(tombstones(client, DATASET)) == [1]
    assert verify_version(servable, DATASET, 3).conclusion == "holds"
    with contextlib.closing(sqlite3.connect(servable.root / "mlflow.db")) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM logged_models").fetchone() == (2,)
        tags = "SELECT count(*) FROM model_version_tags WHERE version = 1"
        assert connection.execute(tags).fetchone() == (0,)
    again = act(servable)
    assert (again.left, any(again.removed.values())) == ([], False)
