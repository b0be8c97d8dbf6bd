"""The command, and erasing from a store of the user's own or behind a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from puma.project.workspace import Workspace
from puma.registry import list_versions, open_store
from puma.registry.certificate.verify import verify_version
from puma.registry.promotion import promote
from tests.command import puma
from tests.erasure.erased import (
    NAME,
    act,
    holders,
    ids_of,
)
from tests.registry.projects import (
    DATASET,
    make_project,
)
from tests.registry.served import make_servable
from tests.registry.servers import tracking_server

pytestmark = pytest.mark.slow


def test_the_command(servable: Workspace) -> None:
    dry_run = puma(servable.root, "erase", f"models:/{NAME}/1", "--json")
    content = json.loads(dry_run.stdout)
    assert (dry_run.exit_code, content["acted"], content["version"]) == (0, False, 1)
    assert (
        f"{servable.data(DATASET)} and its source still hold the rows" in content["out_of_reach"][0]
    )
    shown = puma(servable.root, "erase", DATASET, "1")
    assert (shown.exit_code, "--yes erases it" in shown.stdout) == (0, True)
    for line in (
        *content["removed"]["registry"],
        *content["removed"]["files"],
        *content["out_of_reach"],
    ):
        assert f"  {line}\n" in shown.stdout
    done = puma(servable.root, "erase", DATASET, "1", "--yes")
    assert (done.exit_code, "version 1 is erased" in done.stdout) == (0, True)
    for again in ((), ("--yes",)):
        answered = puma(servable.root, "erase", DATASET, "1", *again)
        assert (answered.exit_code, "nothing is left to erase" in answered.stdout) == (0, True)
    listed = puma(servable.root, "versions", DATASET)
    assert "version 1 (original) was erased on 20" in listed.stdout
    rows = json.loads(puma(servable.root, "versions", DATASET, "--json").stdout)
    assert [row["version"] for row in rows] == [2, 3]


def test_another_store_is_erased_too_and_its_limits_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/elsewhere.db")
    workspace = make_project(tmp_path / "project")
    make_servable(workspace)
    promote(workspace, DATASET, 3)
    done = act(workspace)
    assert done.left == []
    assert holders(tmp_path, 0) == []
    assert any("free pages and backups are not in reach" in line for line in done.out_of_reach)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a tracking server with artifacts of its own, under ``tmp_path / server``."""
    folder = tmp_path / "server"
    with tracking_server(f"sqlite:///{folder}/store.db", folder) as (address, _):
        yield address


def test_a_server_keeps_its_rows_and_no_weights(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    workspace = make_project(tmp_path / "project")
    make_servable(workspace)
    promote(workspace, DATASET, 3)
    run_id, _ = ids_of(workspace, 1)
    assert len(holders(tmp_path, 0)) == 2
    done = act(workspace)
    assert done.left == []
    assert holders(tmp_path, 0) == []
    assert any("stay until `mlflow gc` is run on it" in line for line in done.out_of_reach)
    assert sum("the rest of that store is not searched" in line for line in done.out_of_reach) == 2
    client = open_store(workspace)
    assert client.get_run(run_id).info.lifecycle_stage == "deleted"
    assert [row.version for row in list_versions(client, DATASET)] == [2, 3]
    assert verify_version(workspace, DATASET, 3).conclusion == "holds"
