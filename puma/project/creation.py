"""A new project: the files of PUMA's own repository, fitted to one dataset.

``puma/template`` holds links to those files, so that there is no second copy; a wheel holds them.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.representer import RoundTripRepresenter

from puma.errors import SettingsError
from puma.project.files import PRIVATE, write_text, written
from puma.project.workspace import ROOT_MARK

TEMPLATE = Path(__file__).parents[1] / "template"
# A link with a dot would be git's own, and a pattern does not find it when the wheel is built.
_HIDDEN = {
    "gitignore": ".gitignore",
    "dvcignore": ".dvcignore",
    "dvc/config": ".dvc/config",
    "dvc/gitignore": ".dvc/.gitignore",
    "deletions/gitignore": "deletions/.gitignore",
    "mlruns/gitignore": "mlruns/.gitignore",
}
_PATTERNS = (
    "*.yaml",
    "README.md",
    "deletions/README.md",
    "docs/*.md",
    "notebooks/*.ipynb",
    "notebooks/*.py",
)
_TABLES = "data"  # the folder of copied tables, which .gitignore names
_WITHOUT_GIT = "[core]\n    no_scm = true\n"


@dataclass(frozen=True)
class OwnTable:
    """The user's own table in a new project.

    Attributes:
        file: Where it is now.
        settings: What params.yaml says of it under ``sources``, beside its path.
        inside: Its path in the project, if it lies there already; else it is copied.
    """

    file: Path
    settings: dict[str, Any]
    inside: Path | None

    @property
    def path(self) -> str:
        """As seen from params.yaml."""
        return (self.inside or Path(_TABLES) / self.file.name).as_posix()


def place_in(folder: Path, file: Path) -> Path | None:
    """The path of ``file`` in the project ``folder``; None if it lies elsewhere."""
    file, folder = file.resolve(), folder.resolve()
    return file.relative_to(folder) if file.is_relative_to(folder) else None


def create_project(folder: Path, dataset: str, table: OwnTable | None = None) -> None:
    """Write a project for ``dataset`` into ``folder``, which is absent or has room for it.

    The files are written beside it, or into a hidden folder in it, and moved when they are
    complete; params.yaml, which makes a project of a folder, comes last. After an exception
    nothing is left.

    Raises:
        SettingsError: Something is in the way, or the folder cannot be written.
    """
    require_room(folder, None if table is None else table.inside)
    try:
        with _moved_into(folder) as made:
            for path, content in project_files(dataset, table).items():
                write_text(made / path, content)
            if not _is_in_git(folder):
                write_text(made / ".dvc" / "config.local", _WITHOUT_GIT)
            if table is not None and table.inside is None:
                with (
                    table.file.open("rb") as source,
                    written(made / table.path, mode=PRIVATE) as target,
                ):
                    shutil.copyfileobj(source, target)
    except OSError as error:
        raise SettingsError(
            f"{folder}: cannot be written ({error.strerror}); name another folder, or let this "
            "user write there"
        ) from error


def require_room(folder: Path, inside: Path | None = None) -> None:
    """Raise SettingsError if anything in ``folder`` is in the way of a new project.

    The table at ``inside`` is not, nor what is hidden and none of a project's own files.
    """
    if not os.path.lexists(folder):
        return
    try:
        found = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise SettingsError(
            f"{folder}: cannot be read ({error.strerror}); name a new folder"
        ) from error
    ours = {Path(name).parts[0] for name in _targets().values()}
    kept = {name for name in found - ours if name.startswith(".")}
    kept |= {inside.parts[0]} - ours if inside is not None else set()
    in_the_way = sorted(found - kept)
    if in_the_way:
        more = f" and {len(in_the_way) - 10} more" if len(in_the_way) > 10 else ""
        raise SettingsError(
            f"{folder} is not empty: {', '.join(map(repr, in_the_way[:10]))}{more} "
            f"{'is' if len(in_the_way) == 1 else 'are'} in the way, and nothing was written; name "
            "a new folder"
        )


def project_files(dataset: str, table: OwnTable | None = None) -> dict[str, str]:
    """The content of every file of a new project, by its path."""
    files = {
        target: (TEMPLATE / name).read_text(encoding="utf-8") for name, target in _targets().items()
    }
    files["README.md"] = files["README.md"].replace("DATASET", dataset)
    files[ROOT_MARK] = _settings(files[ROOT_MARK], dataset, table)
    if table is not None and table.inside is not None and table.inside.parts[0] != _TABLES:
        files[".gitignore"] += f"/{_escaped(table.path)}\n"
    return files


def _settings(params: str, dataset: str, table: OwnTable | None) -> str:
    yaml, settings = _round_trip(params)
    settings["datasets"][:] = [dataset]
    if table is not None:
        own = CommentedMap({"path": table.path, **table.settings})
        own.fa.set_flow_style()
        sources = CommentedMap({dataset: own})
        sources.fa.set_block_style()
        settings["sources"] = sources
    return _dumped(yaml, settings)


class _Representer(RoundTripRepresenter):
    """Writes null as null, as params.yaml does."""


_Representer.add_representer(
    type(None), lambda self, _: self.represent_scalar("tag:yaml.org,2002:null", "null")
)


def _round_trip(text: str) -> tuple[YAML, Any]:
    """A reader that keeps comments and line breaks, and what it read."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml, yaml.load(text)


def _dumped(yaml: YAML, content: Any) -> str:
    stream = io.StringIO()
    yaml.dump(content, stream)
    return stream.getvalue()


def _targets() -> dict[str, str]:
    """The path in a project of every file of the template."""
    found = {
        path.relative_to(TEMPLATE).as_posix()
        for pattern in _PATTERNS
        for path in TEMPLATE.glob(pattern)
    }
    return {name: name for name in sorted(found)} | _HIDDEN


def _escaped(path: str) -> str:
    """A line of .gitignore that means this one file."""
    return re.sub(r"([\\*?\[ ])", r"\\\1", path)


def _is_in_git(folder: Path) -> bool:
    """Whether git sees what will lie in ``folder``."""
    here = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    try:
        inside, ignored = (
            subprocess.run(
                ["git", "-C", str(here), *arguments], capture_output=True, check=False
            ).returncode
            for arguments in (
                ("rev-parse", "--git-dir"),
                ("check-ignore", "--quiet", str(folder.absolute())),
            )
        )
    except FileNotFoundError:
        return False  # there is no git to look after
    return inside == 0 and ignored != 0


@contextmanager
def _moved_into(folder: Path) -> Iterator[Path]:
    """A private folder to write to, which becomes ``folder``, or whose entries move there."""
    is_new = not folder.exists()
    parent = folder.absolute().parent if is_new else folder
    missing = [each for each in (parent, *parent.parents) if not each.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    made = parent / f".puma-init-{secrets.token_hex(4)}"
    made.mkdir()
    moved: list[Path] = []
    try:
        yield made
        if is_new:
            made.rename(folder)
            return
        for entry in sorted(made.iterdir(), key=lambda each: each.name == ROOT_MARK):
            entry.rename(folder / entry.name)
            moved.append(folder / entry.name)
        made.rmdir()
    except BaseException:
        for path in (made, *moved):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for each in missing:
            each.rmdir()
        raise
