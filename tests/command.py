"""The command line, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from puma import cli


def puma(folder: Path, *arguments: str) -> Any:
    """The result of ``puma arguments…`` in ``folder``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(cli.app, list(arguments))
