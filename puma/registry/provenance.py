"""Tags that say what registered a version: software, commit, notebook or command."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Literal

COMMIT = "mlflow.source.git.commit"
NO_COMMIT = "puma.git_reason"
UNCOMMITTED = "puma.git_uncommitted"
PYTHON = "puma.python"
PACKAGES = {"puma.version": "puma-unlearning", "puma.torch": "torch", "puma.mlflow": "mlflow"}


@dataclass(frozen=True)
class Source:
    """What registers a version, as MLflow shows it beside the run.

    Attributes:
        name: A path in the project, or a command.
        kind: One of MLflow's source types.
    """

    name: str
    kind: Literal["NOTEBOOK", "LOCAL"]


PIPELINE = Source("notebooks/register.ipynb", "NOTEBOOK")
COMMAND = Source("puma remove", "LOCAL")
ADOPTION = Source("puma adopt", "LOCAL")


def source_tags(root: Path, source: Source) -> dict[str, str]:
    """The tags of a run that ``source`` starts in the project at ``root``."""
    return {
        "mlflow.source.name": source.name,
        "mlflow.source.type": source.kind,
        PYTHON: platform.python_version(),
        **{tag: installed_version(name) for tag, name in PACKAGES.items()},
        **_git_tags(root),
    }


def _git_tags(root: Path) -> dict[str, str]:
    """The commit and whether tracked files differ from it, or why there is none."""
    try:
        commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
        if commit is None:
            return {NO_COMMIT: "the project is in no git repository, or in one without a commit"}
        changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    except FileNotFoundError:
        return {NO_COMMIT: "git is not installed"}
    if changes is None:
        return {COMMIT: commit}
    return {COMMIT: commit, UNCOMMITTED: "true" if changes else "false"}


def _git(root: Path, *arguments: str) -> str | None:
    """The output of git, or None if it fails."""
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None
