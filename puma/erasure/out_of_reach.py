"""What an erasure cannot reach, in words for the person who has to see to it."""

from __future__ import annotations

from collections.abc import Iterable

from puma.erasure.dvc_cache import DvcCache
from puma.project.workspace import Workspace
from puma.registry import Registry
from puma.registry.store import is_default, tracking_uri
from puma.registry.store_errors import without_password
from puma.registry.tombstones import Tombstone
from puma.registry.version_deletion import deletes_rows


def out_of_reach(
    registry: Registry,
    cache: DvcCache | None,
    tombstone: Tombstone,
    remote: Iterable[str],
    *,
    searched: bool,
    adopted_from: str | None = None,
) -> list[str]:
    """List what an erasure does not reach, and what to do about it.

    Args:
        registry: The registry.
        cache: DVC's cache, if there is one.
        tombstone: The version.
        remote: The addresses of its artifacts that do not lie on this machine.
        searched: Whether its weights were at hand to search for.
        adopted_from: The registered model that it was a copy of, if any.
    """
    workspace = registry.workspace
    lines = [_data(workspace, tombstone)]
    if not searched:
        lines.append(
            "files were not searched: neither the registry nor the project has its weights to "
            "search for (it was erased before, or its files were changed). What there is of it "
            "was recognised by its records alone"
        )
    if adopted_from is not None:
        lines.append(
            f"{adopted_from}, which it was adopted from: it has the same weights; delete it where "
            "it was registered, and its run with it"
        )
    if (workspace.root / ".git").exists():
        lines.append(
            "git history: what was ever committed stays in it, as do the digests in old versions "
            "of dvc.lock; rewrite it where weights, notebooks or plots were committed"
        )
    if cache is not None:
        lines += _dvc(cache)
    lines += _store(registry, remote)
    lines.append(
        "backups, snapshots, other clones of the project, and models that were downloaded or "
        "deployed: delete them where they are"
    )
    return lines


def _data(workspace: Workspace, tombstone: Tombstone) -> str:
    folder = workspace.artifacts(tombstone.dataset)
    if tombstone.deletion_digest is None:
        return (
            f"the data: {workspace.data(tombstone.dataset)} and its source still hold the rows, "
            f"and {folder} what the audits' own models learnt of them. `dvc repro` would train the "
            "erased model again: take the people out of the data's source first"
        )
    return (
        f"the data: {workspace.data(tombstone.dataset)} and its source still hold the rows. `dvc "
        "repro` would make the erased version again from the same request and settings"
    )


def _dvc(cache: DvcCache) -> list[str]:
    others = "" if cache.inside else ", and those of other projects that share the cache"
    lines = [
        f"left to `dvc gc --workspace`: metrics, notebooks and plots of the version in "
        f"{cache.folder} (numbers, no weights). It also removes all other objects that dvc.lock "
        f"and the .dvc files do not name now: those of other versions and git branches{others}"
    ]
    if cache.remotes:
        lines.append(
            f"DVC remotes ({', '.join(cache.remotes)}): what was pushed stays there; delete the "
            "objects there that are listed here, by the same names"
        )
    if not cache.inside:
        lines.append(
            f"other projects that share the DVC cache {cache.folder}: their working trees may "
            "hold copies; they lose the objects listed here"
        )
    return lines


def _store(registry: Registry, remote: Iterable[str]) -> list[str]:
    lines = []
    uri = without_password(tracking_uri(registry.workspace))
    if not deletes_rows(registry):
        lines.append(
            f"the server {uri}: it lets others only mark runs and models as deleted; their rows "
            "stay until `mlflow gc` is run on it, and in its database's backups and logs"
        )
    elif not is_default():
        lines.append(
            f"the database {uri}: the rows are deleted; its own logs, free pages and backups are "
            "not in reach (digests, numbers and settings; no weights)"
        )
    lines += [
        f"{place}: the version's files there are deleted through MLflow; the rest of that store "
        "is not searched, it may keep deleted objects (versioning), and MLflow leaves what it "
        "downloads in temporary folders of the machines that loaded the model"
        for place in remote
    ]
    return lines
