"""Which files of a project belong to one version: its own, and what was made with it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from puma.erasure.dvc_cache import DvcCache, Record
from puma.lineage.records import ModelRecord
from puma.project.workspace import Workspace
from puma.settings import is_original

LARGEST = 1 << 20  # bytes of a receipt
Whose = Literal["its", "another's"]


@dataclass(frozen=True)
class Digests:
    """A version, and what is known of all others that are kept: by their digests."""

    dataset: str
    fingerprint: str
    weights_digest: str
    kept_fingerprints: frozenset[str]
    kept_weights: frozenset[str]

    def whose(self, content: bytes) -> Whose | None:
        """Whose receipt, audit or fingerprint file ``content`` is; None for anything else."""
        text = content.strip()
        if not text.startswith(b"{"):
            return self._named(text.decode("ascii", "replace"))
        try:
            said = json.loads(text)
            weights = said.get("weights_digest")
        except ValueError:
            return None
        if not isinstance(weights, str):
            return None
        try:
            named = self._named(ModelRecord.model_validate(said).fingerprint)
        except ValidationError:  # an audit's; of two versions with the same weights, of both
            named = None
        if named is not None or weights != self.weights_digest:
            return named or ("another's" if weights in self.kept_weights else None)
        return "another's" if weights in self.kept_weights else "its"

    def _named(self, fingerprint: str) -> Whose | None:
        if fingerprint == self.fingerprint:
            return "its"
        return "another's" if fingerprint in self.kept_fingerprints else None


@dataclass
class VersionFiles:
    """``files`` and folders to remove, ``objects`` of DVC's cache among them; ``stages``: a
    ``dvc.lock`` -> the stages to take out of it. ``kept``: path -> why another needs it."""

    files: set[Path] = field(default_factory=set)
    stages: dict[Path, set[str]] = field(default_factory=dict)
    kept: dict[Path, str] = field(default_factory=dict)


def version_files(
    workspace: Workspace, cache: DvcCache | None, digests: Digests, holding: Collection[Path]
) -> VersionFiles:
    """What is the version's of the project; ``holding``: the files that hold its weights.

    What the working tree has is known by its receipt and audit. What lies in the cache is known
    by its content: an object that holds the weights, or is the version's receipt or audit, leads
    to the runs of stages that made it, and those to whatever else they made. An object that
    something else needs, too, is kept.
    """
    found = VersionFiles()
    receipts, audits = _lineage(workspace, digests)
    for name in receipts:
        found.files |= _model_files(workspace, digests.dataset, name)
    for name in audits:
        found.files |= _audit_files(workspace, digests.dataset, name)
    described = {workspace.model_record(digests.dataset, name) for name in receipts}
    described |= {workspace.audit(digests.dataset, name) for name in audits}
    if cache is not None:
        _in_cache(cache, digests, set(holding), described, found)
    found.files = {path for path in found.files if path.exists() or path.is_symlink()}
    return found


def weights_in_tree(workspace: Workspace, digests: Digests) -> Path | None:
    """The version's weights in the working tree; None when its receipt is not there."""
    receipts, _ = _lineage(workspace, digests)
    paths = [workspace.weights(digests.dataset, name) for name in receipts]
    return next((path for path in paths if path.exists()), None)


def _lineage(workspace: Workspace, digests: Digests) -> tuple[list[str], list[str]]:
    """The names of the receipts and of the audits in the working tree that are the version's."""
    folder = workspace.model_record(digests.dataset, "any").parent
    names = [
        path.name.removesuffix(".json")
        for path in sorted(folder.glob("*.json"))
        if digests.whose(path.read_bytes()) == "its"
    ]
    audits = [name.removesuffix(".audit") for name in names if name.endswith(".audit")]
    return [name for name in names if not name.endswith(".audit")], audits


def _model_files(workspace: Workspace, dataset: str, name: str) -> set[Path]:
    files = {workspace.model_record(dataset, name), workspace.weights(dataset, name)}
    files.add(workspace.plots(dataset, f"{name}-loss"))
    if is_original(name):
        files |= {workspace.identity(dataset, name), workspace.records(dataset, name)}
    return files


def _audit_files(workspace: Workspace, dataset: str, name: str) -> set[Path]:
    return {
        workspace.audit(dataset, name),
        workspace.metrics(dataset, name),
        workspace.figures(dataset, name),
    }


def _in_cache(
    cache: DvcCache,
    digests: Digests,
    holding: set[Path],
    described: set[Path],
    found: VersionFiles,
) -> None:
    told = {name: _whose(paths[0], digests) for name, paths in cache.objects.items()}
    its = {name for name, whose in told.items() if whose == "its"}
    its |= {name for name, paths in cache.objects.items() if holding & set(paths)}
    others = {name for name, whose in told.items() if whose == "another's"}
    unwanted, needed = set(its), _Needs()
    for record in cache.records():
        by_place = bool(described & set(record.outs))
        its_own = (by_place or record.objects & its) and not record.objects & others
        if its_own and record.kind != "pointer":
            unwanted |= record.objects
            if record.kind == "run":
                found.files.add(record.path)
            if record.kind == "stage":
                found.stages.setdefault(record.path, set()).add(record.name)
                # Where the tree holds another version by now, its places are not this one's.
                found.files |= set(record.outs) if by_place else set(record.outs) & holding
        elif record.kind != "folder":  # a folder is needed by whoever names it
            needed.add(record)
    for name in unwanted & cache.objects.keys():
        if (reason := needed.by.get(name)) is None:
            found.files |= set(cache.objects[name])
        else:
            found.kept |= dict.fromkeys(cache.objects[name], reason)


class _Needs:
    """Object -> the first that needs it."""

    def __init__(self) -> None:
        self.by: dict[str, str] = {}

    def add(self, record: Record) -> None:
        what = {
            "stage": f"stage {record.name} of {record.path} made it, too",
            "run": f"another run of a stage made it, too ({record.path})",
            "pointer": f"{record.path} tracks it",
        }[record.kind]
        for name in record.objects:
            self.by.setdefault(name, what)


def _whose(path: Path, digests: Digests) -> Whose | None:
    return digests.whose(path.read_bytes()) if path.stat().st_size <= LARGEST else None
