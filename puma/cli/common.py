"""What the commands share: exit codes, versions by name, when ids may be shown."""

from __future__ import annotations

import os
import re
from typing import Annotated, TextIO

import typer

from puma.errors import SettingsError

FAILED = 1  # exit code: done, with an answer other than the hoped-for one
REFUSED = 2  # exit code of every error; Python's own, 1, would pass for an answer
SHOWN_IDS = 10
DatasetName = Annotated[str, typer.Argument(metavar="DATASET", help="A dataset of params.yaml.")]
VersionName = Annotated[str, typer.Argument(metavar="VERSION", help="A number or an alias.")]
DatasetOrModel = Annotated[
    str, typer.Argument(metavar="DATASET", help="Or models:/puma-DATASET/VERSION, alone.")
]
OptionalVersion = Annotated[
    str | None, typer.Argument(metavar="[VERSION]", help="A number or an alias.")
]
_URI = re.compile(r"models:/puma-(.+?)[/@]([^/@]+)")
_URI_FORMS = "models:/puma-DATASET/VERSION or models:/puma-DATASET@ALIAS"
AsJson = Annotated[bool, typer.Option("--json", help="Everything, as JSON.")]


def version_named(dataset: str, version: str | None = None) -> tuple[str, str]:
    """Dataset and version, given as two words or as one model URI.

    Raises:
        SettingsError: One of the two is missing.
    """
    match = _URI.fullmatch(dataset)
    if match is not None and version is None:
        return match[1], match[2]
    if dataset.startswith("models:") or version is None:
        given = "no version" if version is None else repr(version)
        raise SettingsError(
            f"name a version: DATASET VERSION, {_URI_FORMS}, got {dataset!r} and {given}"
        )
    return dataset, version


def version_at(uri: str) -> tuple[str, str]:
    """Dataset and version, given as a model URI.

    Raises:
        SettingsError: It is no URI of a version.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise SettingsError(f"name a version: {_URI_FORMS}, got {uri!r}")
    return match[1], match[2]


def several_ranks() -> bool:
    """Whether torchrun, or what sets the same variables, started several processes for this."""
    needed = ("RANK", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ.get("WORLD_SIZE") or 1) > 1 and all(name in os.environ for name in needed)


def may_show_ids(stream: TextIO) -> bool:
    """Whether ``stream`` is the user's own terminal. Elsewhere ids would be stored."""
    return stream.isatty() and "JPY_PARENT_PID" not in os.environ
