"""Fixtures of the tests of erasing: a project to erase from."""

from __future__ import annotations

from pathlib import Path

import pytest

from puma.project.workspace import Workspace
from puma.registry.promotion import promote
from tests.audited import copy_of
from tests.registry.fixtures import _default_store, template, workspace
from tests.registry.projects import DATASET
from tests.registry.served import servable_project

__all__ = ["_default_store", "template", "workspace"]


@pytest.fixture(scope="session")
def promoted(template: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Versions 1 original, 2 retrain, 3 puma, which serves. Shared: read it only."""
    workspace = servable_project(template, tmp_path_factory.mktemp("promoted") / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        promote(workspace, DATASET, 3)
    return workspace


@pytest.fixture
def servable(promoted: Workspace, tmp_path: Path) -> Workspace:
    """Such a project of this test's own."""
    return copy_of(promoted, tmp_path / "servable")
