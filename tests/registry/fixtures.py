"""Fixtures of every test that needs a registry."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from puma.project.workspace import Workspace
from puma.registry import open_store, register_all
from tests.registry.projects import copy_store, make_project


@pytest.fixture(autouse=True)
def _default_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No store of the user's own, and MLflow's global state as it was."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)
    yield
    import mlflow

    while mlflow.active_run():
        mlflow.end_run()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project with an empty store, to be copied."""
    return _template(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project with all versions registered. Shared: read it only."""
    return _filled(tmp_path_factory.getbasetemp())


@pytest.fixture
def workspace(template: Workspace, tmp_path: Path) -> Workspace:
    """A project of this test's own, nothing registered yet; its path holds a space."""
    made = make_project(tmp_path / "my project")
    copy_store(template, made)
    return made


@pytest.fixture
def registered(filled: Workspace, tmp_path: Path) -> Workspace:
    """A project of this test's own with all versions registered."""
    made = make_project(tmp_path / "registered")
    copy_store(filled, made)
    shutil.copy(filled.registered, made.registered)
    return made


@functools.cache  # the modules that import these fixtures share what they make
def _template(folder: Path) -> Workspace:
    workspace = make_project(folder / "template")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        open_store(workspace)
    return workspace


@functools.cache
def _filled(folder: Path) -> Workspace:
    workspace = make_project(folder / "filled")
    copy_store(_template(folder), workspace)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        register_all(workspace, progress=False)
    return workspace
