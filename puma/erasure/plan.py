"""What an erasure removes: which version, whether it may be erased, and a note of it on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from puma.erasure.version_files import VersionFiles
from puma.errors import RegistryError
from puma.project.files import PRIVATE, write_text
from puma.project.workspace import Workspace
from puma.registry import Registry
from puma.registry.tombstones import Tombstone
from puma.registry.version_deletion import RunAndModel, versions_of_run
from puma.registry.versions import (
    CHAMPION,
    RegisteredVersion,
    choose_version,
    match_version,
    model_name,
)

NOTHING = RunAndModel("", "")


@dataclass
class Plan:
    """What is to be erased.

    It is written to disk before anything is removed: paths and digests, no weights.

    Attributes:
        tombstone: What will be left of the version.
        registered: The version; None once the registry's part is being removed, and for one that
            was erased before and whose files came back.
        logged: The version's run and model; of one that was erased before, nothing.
        unfinished: Runs and models of interrupted attempts to register the version.
        files: Files and folders outside the registry.
        stages: The stages to take out of ``dvc.lock``, by that file.
        searched: Whether no file outside the registry holds the weights any more.
    """

    tombstone: Tombstone
    registered: RegisteredVersion | None = None
    logged: RunAndModel = NOTHING
    unfinished: list[RunAndModel] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    stages: dict[Path, set[str]] = field(default_factory=dict)
    searched: bool = False

    @property
    def all_logged(self) -> list[RunAndModel]:
        """Every run and model that is to be deleted."""
        return [self.logged, *self.unfinished]

    def add(self, found: VersionFiles) -> None:
        """Add what was found to what the note on disk named."""
        self.files |= found.files
        for lock, names in found.stages.items():
            self.stages.setdefault(lock, set()).update(names)

    def note(self, workspace: Workspace) -> Path:
        """Return where the plan is on disk while the erasure is unfinished."""
        return workspace.erasing(self.tombstone.dataset, self.tombstone.version)

    def write(self, workspace: Workspace) -> None:
        """Write the plan to disk, readable by its owner alone."""
        content = {
            "version": self.tombstone.version,
            "stone": self.tombstone.content(),  # the key that earlier versions of PUMA wrote
            **self.logged._asdict(),
            "unfinished": self.unfinished,
            "files": {str(path): _digest(path) for path in _single_files(self.files)},
            "searched": self.searched,
        }
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        write_text(self.note(workspace), text, mode=PRIVATE)


def read_plan(path: Path, name: str) -> Plan | None:
    """Read the note of an unfinished erasure of a version of the registered model ``name``.

    Returns:
        The plan, without the files that another version has replaced meanwhile; None where there
        is no note.
    """
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return Plan(
        tombstone=Tombstone(name, content["version"], **content["stone"]),
        logged=RunAndModel(content["run_id"], content["model_id"]),
        unfinished=[RunAndModel(*logged) for logged in content["unfinished"]],
        files={
            Path(text)
            for text, digest in content["files"].items()
            if Path(text).is_file() and _digest(Path(text)) == digest
        },
        searched=content["searched"],
    )


def _single_files(paths: Iterable[Path]) -> set[Path]:
    """The files that ``paths`` are, or that lie in them."""
    found = {each for path in paths for each in (path, *path.rglob("*"))}
    return {path for path in found if path.is_file()}


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def plan_for(
    registry: Registry,
    dataset: str,
    versions: Sequence[RegisteredVersion],
    erased: Mapping[int, Tombstone],
    wanted: str,
) -> Plan:
    """Return the plan of an unfinished erasure, or a new one that names no file yet.

    Args:
        registry: The registry.
        dataset: The data set.
        versions: All versions of its model.
        erased: Its erased versions, by number.
        wanted: The number or alias of the version to erase.

    Raises:
        RegistryError: The version must not be erased, or there is none.
    """
    name = model_name(dataset)
    version = match_version(versions, wanted)
    number = int(wanted) if wanted.isdecimal() else None
    if version is not None:
        number = version.version
        _refuse_champion(version)
    begun = None if number is None else read_plan(registry.workspace.erasing(dataset, number), name)
    if begun is not None and begun.searched:
        return begun
    if version is None and number is not None and number in erased:
        return Plan(erased[number])
    version = choose_version(versions, dataset, wanted)
    if not version.method:
        raise RegistryError(
            f"version {version.version} of {name} was not registered by PUMA, so that nothing "
            "says which files are its; delete it in MLflow's pages (`puma ui`)"
        )
    _refuse_copied(registry, version)
    return Plan(
        Tombstone.of(version),
        registered=version,
        logged=RunAndModel(version.run_id, version.model_id),
        unfinished=[] if begun is None else begun.unfinished,
        files=set() if begun is None else begun.files,
    )


def _refuse_champion(version: RegisteredVersion) -> None:
    if CHAMPION in version.aliases:
        raise RegistryError(
            f"version {version.version} of {version.name} serves: it is `{CHAMPION}`; let "
            f"another one serve first (`puma promote {version.dataset} VERSION`)"
        )


def _refuse_copied(registry: Registry, version: RegisteredVersion) -> None:
    """Other registered versions may lead to the same run and the same archive."""
    for name, number in versions_of_run(registry, version.run_id):
        if (name, number) != (version.name, version.version):
            raise RegistryError(
                f"version {number} of {name} is registered from the same run as version "
                f"{version.version} of {version.name}; if nothing uses that one, delete it in "
                "MLflow's pages first (`puma ui`)"
            )
