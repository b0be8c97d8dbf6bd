"""Where a version was registered: by which software, from which state of the project."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version as installed_version
from pathlib import Path

NOTEBOOK = "notebooks/register.ipynb"
COMMIT = "mlflow.source.git.commit"
NO_COMMIT = "puma.git_reason"
UNCOMMITTED = "puma.git_uncommitted"
PYTHON = "puma.python"
PACKAGES = {"puma.version": "puma-unlearning", "puma.torch": "torch", "puma.mlflow": "mlflow"}


def source_tags(root: Path) -> dict[str, str]:
    """Of a run; a notebook's kernel cannot tell MLflow by itself where it comes from."""
    return {
        "mlflow.source.name": NOTEBOOK,
        "mlflow.source.type": "NOTEBOOK",
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
    told = {} if changes is None else {UNCOMMITTED: "true" if changes else "false"}
    return {COMMIT: commit, **told}


def _git(root: Path, *arguments: str) -> str | None:
    answer = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() if answer.returncode == 0 else None
