"""What DVC keeps of a project besides the working tree, and who needs which part of it.

Objects are named by the MD5 of their content; one that ends in ``.dir`` lists a folder's files.
``dvc.lock`` says which objects the stages made last, the run cache which ones they ever made.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from puma.errors import DataError
from puma.project.files import write_text

if TYPE_CHECKING:
    from dvc.repo import Repo

FOLDER = ".dir"
LOCK = "dvc.lock"
SKIPPED = {".git", ".dvc", ".venv", "node_modules"}  # no pipeline lies there


@dataclass(frozen=True)
class Record:
    """One thing that names objects: what a stage made last (``stage``) or once (``run``), what
    the user tracks (``pointer``), the files of a folder (``folder``).

    ``path``: the file that says so; ``name``: the stage's in it. ``objects``: with those in its
    folders. ``outs``: the places in the working tree, of a stage alone.
    """

    kind: Literal["stage", "run", "pointer", "folder"]
    path: Path
    name: str
    objects: frozenset[str]
    outs: tuple[Path, ...] = ()


class DvcCache:
    """The cache of the DVC project around ``root``, wherever it was configured to be.

    ``inside``: whether it is the project's own, not one that several may share. ``remotes``: the
    names of the places that `dvc push` copies to.
    """

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self.root = Path(repo.root_dir)
        self.folder = Path(repo.cache.local_cache_dir)
        self.inside = self.folder.is_relative_to(self.root)
        self.remotes = tuple(sorted(repo.config["remote"]))
        self._objects: dict[str, list[Path]] | None = None

    @classmethod
    def of(cls, root: Path) -> DvcCache | None:
        """None where ``root`` is in no DVC project."""
        from dvc.exceptions import NotDvcRepoError
        from dvc.repo import Repo

        try:
            return cls(Repo(str(root)))
        except NotDvcRepoError:
            return None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps DVC's own commands out meanwhile. Raises DataError while one of them runs."""
        from dvc.lock import LockError
        from dvc.rwlock import rwlock

        # While it runs a stage, DVC gives the first lock away, and holds the second.
        hardlink = self._repo.config["core"].get("hardlink_lock", False)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._repo.lock)
                everything = [str(self.root)]
                held.enter_context(
                    rwlock(
                        self._repo.tmp_dir, self._repo.fs, "puma erase", [], everything, hardlink
                    )
                )
            except LockError as error:
                raise DataError(
                    f"{self.root}: a DVC command is running in this project; wait for its end"
                ) from error
            yield

    @property
    def objects(self) -> dict[str, list[Path]]:
        """Every object by its name; in the places of DVC 3 and of earlier ones, if it is there."""
        if self._objects is None:
            self._objects = {}
            for place in (self.folder / "files" / "md5", self.folder):
                for path in sorted(place.glob("[0-9a-f][0-9a-f]/*")):
                    if (name := self.name_of(path)) is not None:
                        self._objects.setdefault(name, []).append(path)
        return self._objects

    def name_of(self, path: Path) -> str | None:
        """The name of the object that ``path`` is; None for another file."""
        name = path.parent.name + path.name
        digest = name.removesuffix(FOLDER)
        known = path.is_relative_to(self.folder) and len(digest) == 32 and not path.is_dir()
        return name if known and set(digest) <= set("0123456789abcdef") else None

    def records(self) -> list[Record]:
        """All that names objects here. Raises DataError for a file of DVC's that is broken."""
        found = [
            Record("folder", paths[0], name, self._expanded({name}))
            for name, paths in self.objects.items()
            if _lists(name)
        ]
        for path in sorted((self.folder / "runs").glob("*/*/*")):
            said = _read(path)
            found.append(Record("run", path, said.get("cmd", ""), self._named(said)))
        for path in _project_files(self.root):
            said = _read(path)
            if path.name != LOCK:
                found.append(Record("pointer", path, path.name, self._named(said)))
                continue
            for name, stage in (said.get("stages") or {}).items():
                outs = tuple(path.parent / out["path"] for out in stage.get("outs", ()))
                found.append(Record("stage", path, name, self._named(stage), outs))
        return found

    def _named(self, said: dict[str, Any]) -> frozenset[str]:
        names = {out["md5"] for out in said.get("outs") or () if out.get("md5")}
        return self._expanded(names)

    def _expanded(self, names: set[str]) -> frozenset[str]:
        """``names``, and what the folders among them list, as far as the cache has the lists."""
        folders = [self.objects[name][0] for name in names & self.objects.keys() if _lists(name)]
        return frozenset(names).union(*map(_listed, folders))


def forget_stages(lock: Path, names: set[str]) -> None:
    """Take stages out of a ``dvc.lock``, so that DVC takes them for such as never ran."""
    from dvc.utils.serialize import dumps_yaml, loads_yaml

    said = loads_yaml(lock.read_text(encoding="utf-8"), typ="rt")
    for name in names & said["stages"].keys():
        del said["stages"][name]
    write_text(lock, dumps_yaml(said))


def _lists(name: str) -> bool:
    return name.endswith(FOLDER)


def _listed(path: Path) -> set[str]:
    try:
        return {entry["md5"] for entry in json.loads(path.read_bytes())}
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path}: is no list of a folder's files, as DVC writes it; remove it, and `dvc repro` "
            "makes it again"
        ) from error


def _project_files(root: Path) -> Iterator[Path]:
    """The ``dvc.lock`` and ``*.dvc`` files of a project."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name not in SKIPPED)
        for name in sorted(names):
            if name == LOCK or name.endswith(".dvc"):
                yield Path(folder, name)


def _read(path: Path) -> dict[str, Any]:
    try:
        said = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise DataError(f"{path}: is no YAML, as DVC writes it; restore it or remove it") from error
    return said if isinstance(said, dict) else {}
