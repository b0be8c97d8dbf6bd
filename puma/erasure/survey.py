"""Looking for a version's weights in every file, and for what else is the version's."""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tqdm.auto import tqdm

from puma.erasure.dvc_cache import DvcCache
from puma.erasure.plan import Plan
from puma.erasure.version_files import VersionDigests, version_files
from puma.erasure.weight_search import SHORTEST, Search, WeightFragments, pieces, search
from puma.errors import RegistryError
from puma.models import state_digest
from puma.registry import Registry
from puma.registry.loading import load_state
from puma.registry.tombstones import Tombstone
from puma.registry.version_deletion import artifact_folders, artifact_store, find_unfinished
from puma.registry.versions import RegisteredVersion

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Survey:
    """What was found of a version in the project, DVC's cache and the artifact store.

    Attributes:
        fragments: What was searched for.
        unsearchable: Why nothing can be searched for, if it is so.
        has_weights: Whether the version's weights are still there to search for.
        kept: What something else needs, and what.
        holding: The files that hold the weights.
        left: Files that hold the weights, or cannot be read, and that the plan does not remove.
    """

    fragments: WeightFragments
    unsearchable: list[str]
    has_weights: bool
    kept: dict[Path, str]
    holding: frozenset[Path]
    left: list[str]

    def kept_lines(self) -> list[str]:
        """What is kept and does not hold the weights, in words."""
        others = [path for path in sorted(self.kept) if path not in self.holding]
        return [f"{path}: {self.kept[path]}" for path in others]


def survey(
    registry: Registry,
    cache: DvcCache | None,
    plan: Plan,
    versions: Sequence[RegisteredVersion],
    *,
    progress: bool,
) -> Survey:
    """Search every file, and add to ``plan`` what is the version's.

    Raises:
        RegistryError: The model of this or a kept version cannot be loaded.
    """
    workspace, tombstone = registry.workspace, plan.tombstone
    kept = [one for one in versions if one.method and one.version != tombstone.version]
    digests = VersionDigests(
        tombstone.dataset,
        tombstone.fingerprint,
        tombstone.weights_digest,
        shares_weights=any(one.weights_digest == tombstone.weights_digest for one in kept),
    )
    weights = _weights(registry, cache, plan)
    fragments, unsearchable = own_fragments(weights, tombstone, kept, progress=progress)
    result = _search(registry, cache, fragments, (), "searching", progress=progress)
    found = version_files(workspace, cache, digests, result.found)
    plan.add(found)
    plan.unfinished += find_unfinished(registry, result.found, plan.all_logged)
    return Survey(
        fragments=fragments,
        unsearchable=unsearchable,
        has_weights=bool(weights),
        kept=found.kept,
        holding=frozenset(result.found),
        left=_left(result, [*plan.files, *artifact_folders(registry, plan.all_logged)], found.kept),
    )


def search_again(
    registry: Registry, cache: DvcCache | None, plan: Plan, before: Survey, *, progress: bool
) -> Survey:
    """Search every file after the removal, except those of the registered model itself."""
    own = artifact_folders(registry, [plan.logged])
    result = _search(registry, cache, before.fragments, own, "searching again", progress=progress)
    return replace(before, left=_left(result, (), before.kept))


def _search(
    registry: Registry,
    cache: DvcCache | None,
    fragments: WeightFragments,
    skipped: Iterable[Path],
    label: str,
    *,
    progress: bool,
) -> Search:
    root = registry.workspace.root
    store = artifact_store(registry)
    places = [root, *([] if cache is None else [cache.folder]), *([] if store is None else [store])]
    outermost = [
        place
        for number, place in enumerate(places)
        if not any(place.is_relative_to(each) for each in places[:number])
    ]
    unsearched = {root / ".git", root / ".venv", *skipped}
    return search(outermost, fragments, skipped=unsearched, label=label, progress=progress)


def _left(result: Search, accounted: Iterable[Path], kept: Mapping[Path, str]) -> list[str]:
    known = tuple(accounted)
    found = [
        f"{path}: holds the weights, {how}" + (f"; {kept[path]}" if path in kept else "")
        for path, how in result.found.items()
        if not any(path.is_relative_to(each) for each in known)
    ]
    unread = [f"{path}: could not be searched ({why})" for path, why in result.unread.items()]
    return sorted(found + unread)


def _weights(registry: Registry, cache: DvcCache | None, plan: Plan) -> Mapping[str, Tensor]:
    """The version's weights, from wherever they still are; empty when they are nowhere.

    The registry has none of a version that was erased before, or whose files were changed.
    """
    if plan.registered is not None:
        try:
            return load_state(plan.registered)
        except RegistryError:  # refused, or those of another model; the project may have them
            pass
    folder = registry.workspace.artifacts(plan.tombstone.dataset)
    objects = [] if cache is None else [paths[0] for paths in cache.objects.values()]
    for path in [*sorted(folder.rglob("*.pt")), *objects]:
        state = stored_state(path)
        if state and state_digest(state) == plan.tombstone.weights_digest:
            return state
    return {}


def stored_state(path: Path) -> Mapping[str, Tensor]:
    """The state dict that :func:`puma.models.save_weights` wrote to ``path``; else nothing."""
    if not zipfile.is_zipfile(path):
        return {}
    try:
        state = torch.load(path, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError):  # an archive of another kind
        return {}
    if isinstance(state, Mapping) and all(
        isinstance(each, torch.Tensor) for each in state.values()
    ):
        return state
    return {}


def own_fragments(
    weights: Mapping[str, Tensor],
    tombstone: Tombstone,
    kept: Sequence[RegisteredVersion],
    *,
    progress: bool,
) -> tuple[WeightFragments, list[str]]:
    """Choose from each tensor a piece that no kept version has.

    Tensors that another version has, too, identify nothing: SISA retrains only some of its
    members and leaves the rest as they are.

    Args:
        weights: Of the version that is to be erased; empty when they are not there any more.
        tombstone: The version.
        kept: The other versions.
        progress: Whether to show a progress bar.

    Returns:
        What to search for, and why it is nothing.

    Raises:
        RegistryError: The model of a kept version cannot be loaded.
    """
    same = [
        f"version {one.version} ({one.method}) is kept and has the same weights; erase it, too"
        for one in kept
        if one.weights_digest == tombstone.weights_digest
    ]
    if same:
        return WeightFragments(()), same
    known: set[bytes] = set()
    for version in tqdm(kept, desc="loading kept versions", disable=not progress):
        try:
            state = load_state(version)
        except RegistryError as error:
            raise RegistryError(
                f"{error}; or erase that version first (`puma erase {version.dataset} "
                f"{version.version}`): which weights are its own, and stay, is not known"
            ) from error
        for content in _contents(state):
            known.update(map(_short, pieces(content)))
    chosen = [
        next((piece for piece in pieces(content) if _short(piece) not in known), None)
        for content in _contents(weights)
    ]
    own = [piece for piece in chosen if piece is not None]
    if own or not weights:
        return WeightFragments(own), []
    return WeightFragments(()), [
        f"each of its {len(chosen)} tensors is a kept version's, too, or has less than {SHORTEST} "
        "bytes, or one value: no file can be searched for the weights"
    ]


def _contents(weights: Mapping[str, Tensor]) -> Iterator[bytes]:
    for tensor in weights.values():
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _short(piece: bytes) -> bytes:
    return hashlib.sha256(piece).digest()
