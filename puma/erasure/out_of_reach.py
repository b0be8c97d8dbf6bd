"""What an erasure cannot reach, in words, for the person who has to reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from puma.erasure.dvc_cache import DvcCache
from puma.project.workspace import Workspace
from puma.registry.deletion import deletes_rows
from puma.registry.store import is_default, tracking_uri, without_password
from puma.registry.tombstones import Tombstone

if TYPE_CHECKING:
    from mlflow import MlflowClient


def beyond(
    workspace: Workspace,
    client: MlflowClient,
    cache: DvcCache | None,
    stone: Tombstone,
    elsewhere: list[str],
) -> list[str]:
    """``elsewhere``: addresses of artifacts that do not lie on this machine."""
    said = [_data(workspace, stone)]
    if (workspace.root / ".git").exists():
        said.append(
            "git history: what was ever committed stays in it, as do the digests in old versions "
            "of dvc.lock; rewrite it where weights, notebooks or plots were committed"
        )
    if cache is not None:
        said += _dvc(cache)
    said += _store(workspace, client, elsewhere)
    said.append(
        "backups, snapshots, other clones of the project, and models that were downloaded or "
        "deployed: delete them where they are"
    )
    return said


def _data(workspace: Workspace, stone: Tombstone) -> str:
    folder = workspace.artifacts(stone.dataset)
    if stone.deletion_digest is None:
        return (
            f"the data: {workspace.data(stone.dataset)} and its source still hold the rows, and "
            f"{folder} what the audits' own models learnt of them. `dvc repro` would train the "
            "erased model again: take the people out of the data's source first"
        )
    return (
        f"the data: {workspace.data(stone.dataset)} and its source still hold the rows. `dvc "
        "repro` would make the erased version again from the same request and settings"
    )


def _dvc(cache: DvcCache) -> list[str]:
    others = "" if cache.inside else ", and those of other projects that share the cache"
    said = [
        f"left to `dvc gc --workspace`: metrics, notebooks and plots of the version in "
        f"{cache.folder} (numbers, no weights). It also removes all other objects that dvc.lock "
        f"and the .dvc files do not name now: those of other versions and git branches{others}"
    ]
    if cache.remotes:
        said.append(
            f"DVC remotes ({', '.join(cache.remotes)}): what was pushed stays there; delete the "
            "objects there that are listed here, by the same names"
        )
    if not cache.inside:
        said.append(
            f"other projects that share the DVC cache {cache.folder}: their working trees may "
            "hold copies; they lose the objects listed here"
        )
    return said


def _store(workspace: Workspace, client: MlflowClient, elsewhere: list[str]) -> list[str]:
    said = []
    uri = without_password(tracking_uri(workspace))
    if not deletes_rows(client):
        said.append(
            f"the server {uri}: it lets others only mark runs and models as deleted; their rows "
            "stay until `mlflow gc` is run on it, and in its database's backups and logs"
        )
    elif not is_default():
        said.append(
            f"the database {uri}: the rows are deleted; its own logs, free pages and backups are "
            "not in reach (digests, numbers and settings; no weights)"
        )
    said += [
        f"{place}: the version's files there are deleted through MLflow; the rest of that store "
        "is not searched, it may keep deleted objects (versioning), and MLflow leaves what it "
        "downloads in temporary folders of the machines that loaded the model"
        for place in elsewhere
    ]
    return said
