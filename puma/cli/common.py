"""What the commands share: the project around this folder, and when a person may be named."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterator
from typing import Annotated, TextIO

import typer

from puma.errors import PumaError, SettingsError
from puma.project.workspace import Workspace

REFUSED = 2  # the exit code of every error that PUMA raises on purpose
SHOWN_IDS = 10
DatasetName = Annotated[str, typer.Argument(metavar="DATASET", help="A dataset of params.yaml.")]


def project_of(dataset: str) -> Workspace:
    """The project around this folder. Raises SettingsError for a dataset that it has not."""
    workspace = Workspace.find()
    known = workspace.settings.datasets
    if dataset not in known:
        raise SettingsError(
            f"unknown dataset {dataset!r}; {workspace.root / 'params.yaml'} names "
            f"{', '.join(known)}"
        )
    return workspace


def version_named(dataset: str, version: str | None = None) -> tuple[str, str]:
    """Dataset and version, or what a model URI names. Raises SettingsError for half of it."""
    match = re.fullmatch(r"models:/puma-(.+?)[/@]([^/@]+)", dataset)
    if match is not None and version is None:
        return match[1], match[2]
    if dataset.startswith("models:") or version is None:
        raise SettingsError(
            "name a version: DATASET VERSION, models:/puma-DATASET/VERSION or "
            f"models:/puma-DATASET@ALIAS, got {dataset!r} and {version!r}"
        )
    return dataset, version


def may_show_ids(stream: TextIO) -> bool:
    """Whether it is the user's own terminal; elsewhere they would be kept."""
    return stream.isatty() and "JPY_PARENT_PID" not in os.environ


@contextlib.contextmanager
def crash_exits_with_2() -> Iterator[None]:
    """Python's own exit code for a crash, 1, would pass for an answer."""
    try:
        yield
    except (PumaError, typer.Exit):
        raise
    except Exception as error:
        traceback.print_exc()
        raise typer.Exit(REFUSED) from error
