"""The audited project as fixtures; import ``_default_store`` and ``template`` beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from puma.project.workspace import Workspace
from tests.audited import VERSIONS, copy_of, make_audited

NUMBERS = {version: number for number, version in enumerate(VERSIONS, start=1)}


@pytest.fixture(scope="module")
def project(template: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Shared: read it only."""
    return make_audited(tmp_path_factory.mktemp("audited") / "coins", template)


@pytest.fixture
def own(project: Workspace, tmp_path: Path) -> Workspace:
    """A project of this test's own."""
    return copy_of(project, tmp_path / "own")
