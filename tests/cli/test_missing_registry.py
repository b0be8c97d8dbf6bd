"""Commands that read a registry where there is none: they say so, and create nothing."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from puma.project.workspace import Workspace
from tests.command import puma
from tests.registry.fixtures import _default_store, template
from tests.registry.projects import DATASET, make_project

__all__ = ["_default_store", "template"]

READING = {
    "versions": ["versions", DATASET],
    "versions --json": ["versions", DATASET, "--json"],
    "compare": ["compare"],
    "promote": ["promote", DATASET, "1"],
    "promote --force": ["promote", DATASET, "1", "--force", "why not"],
    "erase": ["erase", DATASET, "1"],
    "erase --yes": ["erase", DATASET, "1", "--yes"],
    "audit": ["audit", DATASET, "champion"],
    "verify": ["verify", DATASET, "champion"],
    "suspects": ["suspects", DATASET],
    "remove": ["remove", "--model", f"models:/puma-{DATASET}/1", "--deletions", "request.csv"],
    "ui": ["ui", "--port", "1"],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project in which no version was ever registered."""
    return make_project(tmp_path_factory.mktemp("without") / "project")


def snapshot(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        )
        for path in folder.rglob("*")
    }


def refused(project: Workspace, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("puma.cli.ui._refuse_busy", lambda *_: None)
    before = snapshot(project.root.parent)
    result = puma(project.root, *arguments)
    assert snapshot(project.root.parent) == before
    assert (result.exit_code, result.stdout) == (2, "")
    return str(result.stderr)


@pytest.mark.parametrize("command", READING)
def test_without_a_store_each_says_what_makes_one(
    project: Workspace, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(project, READING[command], monkeypatch) == (
        f"puma: {project.root}/mlflow.db: there is no registry yet; run `dvc repro`, which makes "
        "it\n"
    )


@pytest.mark.parametrize("command", READING)
def test_at_a_wrong_address_each_names_it(
    project: Workspace, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{project.root}/nope/x.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert refused(project, READING[command], monkeypatch) == (
        f"puma: {uri}: there is no registry of PUMA at this address; correct or unset "
        "MLFLOW_TRACKING_URI, or run `dvc repro`, which makes one there\n"
    )


@pytest.mark.parametrize("held", ["nothing", "other tables", "MLflow's tables"])
def test_a_database_of_something_else_is_left_as_it_is(
    project: Workspace, template: Workspace, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project.root.parent / f"{held}.db"
    path.write_bytes(b"")
    if held == "other tables":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE customers (name TEXT)")
    elif held == "MLflow's tables":
        path.write_bytes((template.root / "mlflow.db").read_bytes())
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM experiments WHERE name = 'puma'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    assert "no registry of PUMA at this address" in refused(
        project, READING["versions"], monkeypatch
    )


def test_registered_answers_that_nothing_is(
    project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uri in ("", "sqlite:///nope/x.db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        before = snapshot(project.root)
        result = puma(project.root, "registered")
        assert snapshot(project.root) == before
        assert result.exit_code == 1
        assert result.stdout.startswith("not registered: ")
        assert "there is no registry" in result.stdout
