"""The cache of the DVC project around a workspace, and what its stages name in it.

DVC names an object by the MD5 of its content. An object whose name ends in ``.dir`` lists the
files of a folder. Which objects go on an erasure is decided, and done, in
:mod:`puma.erasure.version_files`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from puma.errors import DataError
from puma.project.files import write_text

if TYPE_CHECKING:
    from dvc.repo import Repo

FOLDER = ".dir"


@dataclass(frozen=True)
class Stage:
    """A stage of ``dvc.yaml``, or what a ``.dvc`` file tracks.

    Attributes:
        name: Its name in ``file``; empty for a ``.dvc`` file.
        file: The ``dvc.lock`` or ``.dvc`` file that names its objects.
        outs: The files and folders of the working tree that it made.
        objects: The objects of its outs, those in folders among them.
    """

    name: str
    file: Path
    outs: frozenset[Path]
    objects: frozenset[str]


class DvcCache:
    """DVC's cache, wherever it was configured to be.

    Attributes:
        root: The DVC project.
        folder: The folder of the cache.
        inside: Whether the cache lies in the project. One outside may be shared.
        remotes: The names of the places that `dvc push` copies to.
        objects: The name of every object, and its files: DVC before version 3 had another layout,
            and both may be there.
    """

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self.root = Path(repo.root_dir)
        self.folder = Path(repo.cache.local_cache_dir)
        self.inside = self.folder.is_relative_to(self.root)
        self.remotes = tuple(sorted(repo.config["remote"]))
        self.objects: dict[str, list[Path]] = {}
        for layout in (self.folder / "files" / "md5", self.folder):
            for path in sorted(layout.glob("[0-9a-f][0-9a-f]/*")):
                name = path.parent.name + path.name
                if len(name.removesuffix(FOLDER)) == 32:
                    self.objects.setdefault(name, []).append(path)

    @classmethod
    def of(cls, root: Path) -> DvcCache | None:
        """Return the cache of the project that ``root`` lies in, or None if it is in none."""
        from dvc.exceptions import NotDvcRepoError
        from dvc.repo import Repo

        try:
            return cls(Repo(str(root)))
        except NotDvcRepoError:
            return None

    def stages(self) -> list[Stage]:
        """Read every stage that ``dvc.lock`` records, and every ``.dvc`` file of the project.

        Raises:
            DataError: DVC cannot read one of them.
        """
        from dvc.dvcfile import LOCK_FILE
        from dvc.exceptions import DvcException
        from dvc.stage import PipelineStage

        found = []
        try:
            for stage in self._repo.index.stages:
                file, name = Path(stage.path), ""
                if isinstance(stage, PipelineStage):
                    file, name = file.with_name(LOCK_FILE), stage.name
                outs = frozenset(Path(out.fs_path) for out in stage.outs)
                names = {out.hash_info.value for out in stage.outs if out.hash_info}
                lists = [self.listed(each) for each in names if each in self.objects]
                objects = names.union(*(files.values() for files in lists))
                if objects:
                    found.append(Stage(name, file, outs, frozenset(objects)))
        except DvcException as error:
            raise DataError(
                f"{self.root}: DVC cannot read this project ({error}); repair it until `dvc "
                "status` works, and run the command again"
            ) from error
        return found

    def listed(self, name: str) -> dict[str, str]:
        """Return the files of a folder, by their path in it; empty for an object that is none.

        Raises:
            DataError: The object is not a list as DVC writes it.
        """
        if not name.endswith(FOLDER):
            return {}
        path = self.objects[name][0]
        try:
            return {file["relpath"]: file["md5"] for file in json.loads(path.read_bytes())}
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{path}: is not a list of a folder's files, as DVC writes it; delete it, and "
                "`dvc repro` makes it again"
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep DVC's own commands out.

        Raises:
            DataError: One of them is running.
        """
        from dvc.lock import LockError
        from dvc.rwlock import rwlock

        # While DVC runs a stage it releases the first lock and holds the second.
        hardlink = self._repo.config["core"].get("hardlink_lock", False)
        place, files, everything = self._repo.tmp_dir, self._repo.fs, [str(self.root)]
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._repo.lock)
                held.enter_context(rwlock(place, files, "puma erase", [], everything, hardlink))
            except LockError as error:
                raise DataError(
                    f"{self.root}: a DVC command is running in this project; wait for its end"
                ) from error
            yield


def forget_stages(lock: Path, names: set[str]) -> None:
    """Take stages out of a ``dvc.lock``, so that DVC treats them as never run."""
    from dvc.utils.serialize import dumps_yaml, loads_yaml

    content = loads_yaml(lock.read_text(encoding="utf-8"), typ="rt")
    for name in names & content["stages"].keys():
        del content["stages"][name]
    write_text(lock, dumps_yaml(content))
