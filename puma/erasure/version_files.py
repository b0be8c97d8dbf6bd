"""Which files of the working tree and which objects of DVC's cache are one version's."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from puma.erasure.dvc_cache import DvcCache, forget_stages
from puma.errors import RegistryError
from puma.lineage.records import ModelRecord
from puma.project.workspace import Workspace
from puma.settings import ORIGINAL, is_original

LARGEST = 1 << 20  # bytes of a record


@dataclass(frozen=True)
class VersionDigests:
    """The digests by which a version's records are recognised.

    Attributes:
        dataset: Its data set.
        fingerprint: Its fingerprint.
        weights_digest: The digest of its weights.
        shares_weights: Whether a kept version has the same weights.
    """

    dataset: str
    fingerprint: str
    weights_digest: str
    shares_weights: bool

    def match(self, content: bytes) -> bool:
        """Whether this is the version's model record, audit record or fingerprint file."""
        text = content.strip()
        if not text.startswith(b"{"):
            return text == self.fingerprint.encode()
        try:
            record = json.loads(text)
        except ValueError:
            return False
        with contextlib.suppress(ValidationError):  # raised for an audit record
            if ModelRecord.model_validate(record).fingerprint == self.fingerprint:
                return True
        # An audit of shared weights is about the kept version, too.
        return record.get("weights_digest") == self.weights_digest and not self.shares_weights


@dataclass
class VersionFiles:
    """What an erasure removes outside the registry.

    Attributes:
        files: Files and folders, objects of DVC's cache among them.
        stages: The stages to take out of ``dvc.lock``, by that file.
        kept: Objects that something else needs, and what.
    """

    files: set[Path] = field(default_factory=set)
    stages: dict[Path, set[str]] = field(default_factory=dict)
    kept: dict[Path, str] = field(default_factory=dict)


def version_files(
    workspace: Workspace, cache: DvcCache | None, digests: VersionDigests, holding: Collection[Path]
) -> VersionFiles:
    """Find what a version has outside the registry.

    Args:
        workspace: The project. A version's files are recognised by its model record and its
            audit record in ``lineage/``.
        cache: DVC's cache. The version's objects are those that hold its weights, its records,
            and what its training recorded beside the weights.
        digests: The version's.
        holding: The files that hold its weights.
    """
    found = VersionFiles()
    records = _records(workspace, digests)
    for record in records:
        found.files |= _files_beside(workspace, digests.dataset, record)
    if cache is not None:
        _add_cached(found, cache, _own_objects(workspace, cache, digests, holding), set(records))
    found.files = {path for path in found.files if path.exists() or path.is_symlink()}
    return found


def _records(workspace: Workspace, digests: VersionDigests) -> list[Path]:
    """The version's model records and audit records in the working tree."""
    paths = workspace.model_record(digests.dataset, "any").parent.glob("*.json")
    return [path for path in sorted(paths) if digests.match(path.read_bytes())]


def _files_beside(workspace: Workspace, dataset: str, record: Path) -> set[Path]:
    """The record, and what the stage that wrote it makes."""
    name = record.stem
    if name.endswith(".audit"):
        name = name.removesuffix(".audit")
        return {record, workspace.metrics(dataset, name), workspace.figures(dataset, name)}
    files = {record, workspace.weights(dataset, name), workspace.plots(dataset, f"{name}-loss")}
    if is_original(name):
        files |= {workspace.identity(dataset, name), workspace.records(dataset, name)}
    return files


def _own_objects(
    workspace: Workspace, cache: DvcCache, digests: VersionDigests, holding: Collection[Path]
) -> set[str]:
    own = {
        name
        for name, paths in cache.objects.items()
        if any(path in holding for path in paths) or _is_record(paths[0], digests)
    }
    # An original's folder holds what its training recorded, too: parts of the weights.
    marks = [
        workspace.weights(digests.dataset, ORIGINAL).name,
        workspace.identity(digests.dataset, ORIGINAL).name,
    ]
    inside, elsewhere = set[str](), set[str]()
    for name in list(cache.objects):
        files = cache.listed(name)
        if own & {files.get(mark) for mark in marks}:
            inside |= {name, *files.values()}
        else:
            elsewhere |= set(files.values())
    return own | ((inside - elsewhere) & cache.objects.keys())


def _is_record(path: Path, digests: VersionDigests) -> bool:
    return path.stat().st_size <= LARGEST and digests.match(path.read_bytes())


def _add_cached(found: VersionFiles, cache: DvcCache, own: set[str], records: set[Path]) -> None:
    """Add the version's stages and objects; ``records``: its records in the working tree."""
    folders = {record.parent for record in records}
    needed: dict[str, str] = {}
    for stage in cache.stages():
        lineage = {out for out in stage.outs if out.parent in folders}
        if stage.name and (records & lineage or own & stage.objects):
            found.stages.setdefault(stage.file, set()).add(stage.name)
            # Another version may be in its place by now, or come from the same stage.
            if lineage and lineage <= records:
                found.files |= stage.outs
        else:
            by = f"stage {stage.name} of {stage.file} made it, too" if stage.name else ""
            needed |= dict.fromkeys(stage.objects, by or f"{stage.file} tracks it")
    for name in own:
        if name in needed:
            found.kept |= dict.fromkeys(cache.objects[name], needed[name])
        else:
            found.files |= set(cache.objects[name])


def remove_files(
    workspace: Workspace,
    cache: DvcCache | None,
    files: Iterable[Path],
    stages: Mapping[Path, set[str]],
) -> None:
    """Take stages out of ``dvc.lock``, then delete files and folders that exist.

    Raises:
        RegistryError: A file cannot be deleted.
    """
    for lock, names in stages.items():
        forget_stages(lock, names)
    ends = {workspace.root, *([] if cache is None else [cache.folder])}
    for path in sorted(files):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            parent = path.parent  # an empty folder would keep the version's name
            while parent not in ends and parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
                parent = parent.parent
        except OSError as error:
            raise RegistryError(
                f"{path}: cannot be deleted ({error.strerror}); make that possible, and run the "
                "command again, which goes on from here"
            ) from error
