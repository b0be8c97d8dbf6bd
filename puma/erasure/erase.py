"""Erasing a superseded version, for good, wherever the project has something of it.

First everything outside the registry is removed. Then every file is searched for the bytes of the
version's weights. The registered model, which says what to search for, is deleted last, and only
when no other file holds them. An erasure that was interrupted is completed by the same command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import Timeout

from puma.erasure.dvc_cache import DvcCache
from puma.erasure.out_of_reach import out_of_reach
from puma.erasure.plan import Plan, plan_for
from puma.erasure.survey import search_again, survey
from puma.erasure.version_files import remove_files
from puma.errors import DataError, RegistryError
from puma.project.workspace import Workspace
from puma.registry import Registry
from puma.registry.certificate.archive import keep_certificates
from puma.registry.deletion import local_folder
from puma.registry.store import reaches_store
from puma.registry.version_deletion import artifact_locations, delete_logged, delete_registered
from puma.registry.versions import ADOPTED


@dataclass(frozen=True)
class Erasure:
    """What an erasure did or, unless ``acted``, would do. All lines are for the user.

    Attributes:
        dataset: The data set.
        version: The number of the version.
        acted: Whether anything was removed.
        removed: What was erased, or would be, by kind: registry, files, cache, stages.
        kept: What was made with the version and stays, and why.
        left: What still holds its weights or could not be searched.
        out_of_reach: What this command cannot erase.
    """

    dataset: str
    version: int
    acted: bool
    removed: dict[str, list[str]]
    kept: list[str]
    left: list[str]
    out_of_reach: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The fields, as `puma erase --json` prints them."""
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
    """Erase a version, or only find out what that would remove.

    Called again, it completes what was interrupted. A version that was erased may come back by
    `dvc repro`: then its files are erased again.

    Args:
        workspace: The project.
        dataset: The data set.
        version_or_alias: Which version of its model.
        act: Whether to erase. Otherwise nothing is changed.
        progress: Whether to show progress bars.

    Raises:
        RegistryError: Nothing was touched, because the version serves, PUMA did not register it,
            another registered version is a copy of it, there is none, or another process is
            writing to the registry or to DVC's cache. Or a file cannot be deleted: the same
            command goes on from there.
    """
    registry = Registry.open(workspace)
    cache = DvcCache.of(workspace.root)
    with _locked(registry, cache):
        versions, erased = registry.versions(dataset), registry.tombstones(dataset)
        plan = plan_for(registry, dataset, versions, erased, str(version_or_alias))
        found = None
        if not plan.searched:
            found = survey(registry, cache, plan, versions, progress=progress)
        locations = artifact_locations(registry, plan.all_logged)
        remote = [location for location in locations if local_folder(location) is None]
        if act and found is not None:
            plan.write(workspace)
            if plan.registered is not None:
                keep_certificates(registry, plan.registered, versions, erased)
            remove_files(workspace, cache, plan.files, plan.stages)
            for logged in plan.unfinished:
                delete_logged(registry, logged)
            found = search_again(registry, cache, plan, found, progress=progress)
        if act and (found is None or not found.left):
            _finish(registry, plan)
        return Erasure(
            dataset,
            plan.tombstone.version,
            acted=act,
            removed=_removed_lines(workspace, cache, plan),
            kept=[] if found is None else found.kept_lines(),
            left=[] if found is None else [*found.unsearchable, *found.left],
            out_of_reach=out_of_reach(
                registry,
                cache,
                plan.tombstone,
                remote,
                searched=found is None or found.has_weights,
                adopted_from=None if plan.registered is None else plan.registered.tags.get(ADOPTED),
            ),
        )


@contextlib.contextmanager
def _locked(registry: Registry, cache: DvcCache | None) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(registry.lock().acquire(timeout=0))
            if cache is not None:
                held.enter_context(cache.locked())
        except Timeout as error:
            raise RegistryError(
                f"{registry.workspace.root}: another process is registering or promoting; wait for "
                "its end"
            ) from error
        except DataError as error:
            raise RegistryError(str(error)) from error
        yield


def _finish(registry: Registry, plan: Plan) -> None:
    if plan.logged.run_id:
        if not plan.searched:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            plan.tombstone, plan.searched = replace(plan.tombstone, when=now), True
            plan.write(registry.workspace)
        delete_registered(registry, plan.tombstone, plan.logged)
    plan.note(registry.workspace).unlink(missing_ok=True)


def _removed_lines(
    workspace: Workspace, cache: DvcCache | None, plan: Plan
) -> dict[str, list[str]]:
    def shown(path: Path) -> str:
        inside = path.is_relative_to(workspace.root)
        return str(path.relative_to(workspace.root) if inside else path)

    cached = {
        path for path in plan.files if cache is not None and path.is_relative_to(cache.folder)
    }
    registered = []
    if plan.logged.run_id:
        registered = [
            f"version {plan.tombstone.version} of {plan.tombstone.name} with its tags",
            f"run {plan.logged.run_id}: parameters, metrics, tags, plots and certificate",
            f"logged model {plan.logged.model_id}: the archive with the weights",
        ]
    registered += [
        f"run {run_id} with model {model_id}: an interrupted attempt to register it"
        for run_id, model_id in plan.unfinished
    ]
    return {
        "registry": registered,
        "files": sorted(map(shown, plan.files - cached)),
        "cache": sorted(map(shown, cached)),
        "stages": sorted(
            f"{name} in {shown(lock)}" for lock, names in plan.stages.items() for name in names
        ),
    }
