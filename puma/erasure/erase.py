"""Erasing a version that serves no more, for good, wherever the project has something of it.

First everything that the project holds besides the registry is removed, then every file is
searched for the bytes of the version's weights, and only when none has them the registered model
itself goes, which told what to search for. Cut short, the same command completes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import Timeout

from puma.erasure.dvc_cache import DvcCache
from puma.erasure.execution import (
    Plan,
    artifact_folders,
    find_unfinished,
    keep_certificates,
    locations,
    remove_files,
    remove_registered,
    remove_unfinished,
)
from puma.erasure.out_of_reach import beyond
from puma.erasure.plan import digests_of, fragments_of, kept_versions, plan_for
from puma.erasure.version_files import VersionDigests, version_files, weights_in_tree
from puma.erasure.weight_search import Search, WeightFragments, search
from puma.errors import DataError, RegistryError
from puma.project.workspace import Workspace
from puma.registry.deletion import local_folder
from puma.registry.loading import load_graph
from puma.registry.store import EXPERIMENT, open_store, reaches_store, writing
from puma.registry.tombstones import tombstones
from puma.registry.versions import RegisteredVersion, list_versions

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch import Tensor


@dataclass(frozen=True)
class Erasure:
    """``removed``: what was erased or, unless ``acted``, would be, by kind. ``kept``: what was
    made with the version and stays, and why. ``left``: what holds its weights all the same, or
    could not be searched. ``beyond``: what is not in reach."""

    dataset: str
    version: int
    acted: bool
    removed: dict[str, list[str]]
    kept: list[str]
    left: list[str]
    beyond: list[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@reaches_store
def erase(
    workspace: Workspace,
    dataset: str,
    version_or_alias: str | int,
    *,
    act: bool = False,
    progress: bool = True,
) -> Erasure:
    """Erase a version; without ``act``, only find out what that would remove.

    Called again it completes what was cut short. A version that is erased already may have come
    back by `dvc repro`: then its files are erased again.

    Raises RegistryError, with nothing touched, for a version that serves, that PUMA did not
    register, that another model is a copy of, or that is not there, and while something else
    writes to the registry or to DVC's cache.
    """
    client = open_store(workspace)
    cache = DvcCache.of(workspace.root)
    with _alone(workspace, cache):
        rows, buried = list_versions(client, dataset), tombstones(client, dataset)
        plan = plan_for(client, workspace, dataset, rows, buried, str(version_or_alias))
        elsewhere = [each for each in locations(client, plan) if local_folder(each) is None]
        survey = None
        if not plan.searched:
            survey = _survey(workspace, client, cache, plan, rows, progress)
            if act:
                plan.write(workspace)
                if plan.run_id:
                    keep_certificates(client, plan, rows, buried)
                remove_files(workspace, cache, plan)
                remove_unfinished(client, plan)
                survey = survey.again(client, plan)
        if act and (survey is None or not survey.finds):
            _finish(workspace, client, plan)
        return Erasure(
            dataset,
            plan.stone.version,
            acted=act,
            removed=_listed(workspace, cache, plan),
            kept=[] if survey is None else survey.kept_lines(),
            left=[] if survey is None else [*survey.unsearchable, *survey.finds],
            beyond=beyond(workspace, client, cache, plan.stone, elsewhere),
        )


@contextlib.contextmanager
def _alone(workspace: Workspace, cache: DvcCache | None) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(writing(workspace).acquire(timeout=0))
            if cache is not None:
                held.enter_context(cache.locked())
        except Timeout as error:
            raise RegistryError(
                f"{workspace.root}: another process is registering or promoting; wait for its end"
            ) from error
        except DataError as error:
            raise RegistryError(str(error)) from error
        yield


@dataclass(frozen=True)
class _Survey:
    """What was found in every file. ``unsearchable``: why the weights cannot be told from others'.

    ``finds``: what is not the plan's to remove, or what it did not remove.
    """

    roots: list[Path]
    skipped: set[Path]
    traces: WeightFragments
    unsearchable: list[str]
    kept: dict[Path, str]
    holding: set[Path]
    finds: list[str]
    progress: bool

    def kept_lines(self) -> list[str]:
        """Of what is kept, that which does not hold the weights."""
        others = [path for path in sorted(self.kept) if path not in self.holding]
        return [f"{path}: {self.kept[path]}" for path in others]

    def again(self, client: MlflowClient, plan: Plan) -> _Survey:
        """After the removal: only the registered model itself may hold the weights."""
        own = artifact_folders(client, replace(plan, unfinished=[]))
        looked = search(
            self.roots,
            self.traces,
            skipped=self.skipped | set(own),
            label="searching again",
            progress=self.progress,
        )
        return replace(self, finds=_finds(looked, (), self.kept))


def _survey(
    workspace: Workspace,
    client: MlflowClient,
    cache: DvcCache | None,
    plan: Plan,
    rows: list[RegisteredVersion],
    progress: bool,
) -> _Survey:
    """Look everywhere, and complete ``plan`` with what is found."""
    others = kept_versions(client, plan.stone.dataset, rows, plan.stone.version)
    digests = digests_of(plan.stone, others)
    state = _state(client, workspace, plan, digests)
    traces, unsearchable = fragments_of(state, plan.stone, others, progress=progress)
    roots = _roots(client, workspace, cache)
    skipped = {workspace.root / ".git", workspace.root / ".venv"}
    looked = search(roots, traces, skipped=skipped, label="searching", progress=progress)
    found = version_files(workspace, cache, digests, looked.found)
    plan.add(found)
    plan.unfinished += find_unfinished(client, plan, looked.found)
    accounted = [*plan.files, *artifact_folders(client, plan)]
    return _Survey(
        roots=roots,
        skipped=skipped,
        traces=traces,
        unsearchable=unsearchable,
        kept=found.kept,
        holding=set(looked.found),
        finds=_finds(looked, accounted, found.kept),
        progress=progress,
    )


def _state(
    client: MlflowClient, workspace: Workspace, plan: Plan, digests: VersionDigests
) -> Mapping[str, Tensor]:
    """The version's weights; of one that came back, those that the working tree has, if any."""
    if plan.run_id:
        found = client.get_model_version(plan.stone.name, str(plan.stone.version))
        return load_graph(found).state_dict()
    path = weights_in_tree(workspace, digests)
    return {} if path is None else torch.load(path, weights_only=True)


def _roots(client: MlflowClient, workspace: Workspace, cache: DvcCache | None) -> list[Path]:
    """The project; DVC's cache and the artifact store where they are outside of it."""
    store = local_folder(client.get_experiment_by_name(EXPERIMENT).artifact_location)
    places = [workspace.root, *([] if cache is None else [cache.folder])]
    places += [] if store is None else [store]
    return [
        place
        for number, place in enumerate(places)
        if not any(place.is_relative_to(each) for each in places[:number])
    ]


def _finds(looked: Search, accounted: Iterable[Path], kept: Mapping[Path, str]) -> list[str]:
    known = tuple(accounted)
    found = [
        f"{path}: holds the weights, {how}" + (f"; {kept[path]}" if path in kept else "")
        for path, how in looked.found.items()
        if not any(path.is_relative_to(each) for each in known)
    ]
    unread = [f"{path}: could not be searched ({why})" for path, why in looked.unread.items()]
    return sorted(found + unread)


def _finish(workspace: Workspace, client: MlflowClient, plan: Plan) -> None:
    if plan.run_id:
        if not plan.searched:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            plan.stone, plan.searched = replace(plan.stone, when=now), True
            plan.write(workspace)
        remove_registered(client, workspace, plan)
    plan.note(workspace).unlink(missing_ok=True)


def _listed(workspace: Workspace, cache: DvcCache | None, plan: Plan) -> dict[str, list[str]]:
    """The plan in words, by kind."""

    def shown(path: Path) -> str:
        inside = path.is_relative_to(workspace.root)
        return str(path.relative_to(workspace.root) if inside else path)

    cached = {
        path for path in plan.files if cache is not None and path.is_relative_to(cache.folder)
    }
    registry = []
    if plan.run_id:
        registry = [
            f"version {plan.stone.version} of {plan.stone.name} with its tags",
            f"run {plan.run_id}: parameters, metrics, tags, pictures and certificate",
            f"logged model {plan.model_id}: the archive with the weights",
        ]
    registry += [
        f"run {run_id} with model {model_id}: an attempt to register it that was cut short"
        for run_id, model_id in plan.unfinished
    ]
    return {
        "registry": registry,
        "files": sorted(map(shown, plan.files - cached)),
        "cache": sorted(map(shown, cached)),
        "stages": sorted(
            f"{name} in {shown(lock)}" for lock, names in plan.stages.items() for name in names
        ),
    }
