"""From receipts to the registry: create what is missing, move the aliases, change nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from puma.errors import DataError, RegistryError
from puma.lineage.records import ModelRecord, read_model_records
from puma.project.files import write_json
from puma.project.workspace import Workspace
from puma.registry.certificate.build import archive_certificate, issue_certificate
from puma.registry.concurrency import newest_removal, point, set_alias, settle, sweep
from puma.registry.creation import (
    Draft,
    create_version,
    find_parent,
    log_figures,
    log_metrics,
    staged,
    verdict_tags,
)
from puma.registry.description import describe, with_notes
from puma.registry.store import database, is_default, open_store, reaches_store, writing
from puma.registry.tombstones import refuse_erased
from puma.registry.versions import (
    CERTIFICATE,
    CHALLENGER,
    CHAMPION,
    FINGERPRINT,
    IDEMPOTENCY_KEY,
    aliases_of,
    find_aliases,
    find_fingerprint,
    parent_version,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class Registered:
    """The version that a receipt has; ``created`` says whether this call made it."""

    dataset: str
    method: str
    version: int
    parent_version: int | None
    fingerprint: str
    aliases: tuple[str, ...]
    created: bool


@reaches_store
def register_all(workspace: Workspace, *, progress: bool = True) -> list[Registered]:
    """Give every receipt its version, ``champion`` and ``challenger`` theirs, and write it down.

    Called again it finds everything in place. ``champion`` becomes the first original and is
    never moved here; ``challenger`` is the last receipt's version, unless a newer removal
    was registered by somebody else, or by the direct path (:func:`register_answer`). Where the
    metrics of a receipt came out differently, its version shows the new ones, timings excepted.
    Raises RegistryError, DataError or ModelError; the versions made before that stay.
    """
    client = open_store(workspace)
    registered = []
    with writing(workspace):
        for dataset in workspace.settings.datasets:
            receipts = read_model_records(workspace, dataset)
            for receipt in receipts:
                found = _register(client, workspace, receipt)
                registered.append(found)
                if progress:
                    state = "created" if found.created else "in place"
                    print(f"{dataset} {receipt.method}: version {found.version} {state}")
            _set_aliases(client, dataset, [item.version for item in registered[-len(receipts) :]])
        record, gap = _survey(client, workspace)
        if gap is not None:
            raise RegistryError(f"{gap}, although it was just registered; run it again")
        write_json(workspace.registered, record)
    aliases = {dataset: find_aliases(client, dataset) for dataset in record}
    return [
        replace(item, aliases=aliases_of(item.version, aliases[item.dataset]))
        for item in registered
    ]


def register_removal(
    client: MlflowClient, workspace: Workspace, draft: Draft, key: str
) -> tuple[ModelVersion, bool]:
    """What :meth:`puma.registry.Registry.register_removal` says."""
    dataset = draft.receipt.dataset
    with writing(workspace):
        known = find_removal(client, dataset, key)
        if known is not None:
            return known, False
        tagged = replace(draft, tags={**draft.tags, IDEMPOTENCY_KEY: key})
        made = create_version(client, workspace, tagged)
        found = settle(client, dataset, IDEMPOTENCY_KEY, key, made)
        _point_challenger(client, dataset, [int(found.version)])
    return found, True


def find_removal(client: MlflowClient, dataset: str, key: str) -> ModelVersion | None:
    """What :meth:`puma.registry.Registry.find_removal` says."""
    found = sweep(client, dataset, IDEMPOTENCY_KEY, key)
    if found is not None:
        _point_challenger(client, dataset, [int(found.version)])
    return found


@reaches_store
def register_answer(workspace: Workspace, draft: Draft, key: str) -> tuple[int, bool]:
    """Until `puma remove` uses the Registry."""
    found, created = register_removal(open_store(workspace), workspace, draft, key)
    return int(found.version), created


def find_answer(client: MlflowClient, dataset: str, key: str) -> int | None:
    """Until `puma remove` uses the Registry."""
    found = find_removal(client, dataset, key)
    return None if found is None else int(found.version)


def all_registered(workspace: Workspace) -> bool:
    """Whether :func:`register_all` would find everything as it leaves it."""
    return missing(workspace) is None


@reaches_store
def missing(workspace: Workspace) -> str | None:
    """The first thing that :func:`register_all` would have to do; None when nothing is left."""
    if is_default() and not database(workspace).exists():
        return "mlflow.db: does not exist yet"
    try:
        record, gap = _survey(open_store(workspace), workspace)
    except DataError as error:
        return str(error)
    if gap is not None:
        return gap
    try:
        written = json.loads(workspace.registered.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return f"{workspace.registered}: is absent or broken"
    return None if written == record else f"{workspace.registered}: is out of date"


def _register(client: MlflowClient, workspace: Workspace, receipt: ModelRecord) -> Registered:
    found = sweep(client, receipt.dataset, FINGERPRINT, receipt.fingerprint)
    created = found is None
    if found is None:
        refuse_erased(client, receipt)
        found = create_version(client, workspace, staged(workspace, receipt))
    elif not _agree(logged := client.get_run(found.run_id).data.metrics, found.tags, receipt):
        _update(client, workspace, found, receipt, logged)
    elif CERTIFICATE not in found.tags:  # registered before there were any, or cut short
        issue_certificate(client, receipt.dataset, found)
    return Registered(
        dataset=receipt.dataset,
        method=receipt.method,
        version=int(found.version),
        parent_version=parent_version(found.tags),
        fingerprint=receipt.fingerprint,
        aliases=(),
        created=created,
    )


def _update(
    client: MlflowClient,
    workspace: Workspace,
    found: ModelVersion,
    receipt: ModelRecord,
    logged: Mapping[str, float],
) -> None:
    """Let a version show what it was measured to be now; of a removal, the certificate, too."""
    updated = receipt.model_copy(update={"metrics": _shown(logged, receipt)})
    # The pictures first, as they may be missing; the metrics are what says that this was done.
    log_figures(client, found.run_id, receipt, workspace.figures(receipt.dataset, receipt.method))
    described = describe(updated, find_parent(client, receipt))
    if receipt.parent is not None:
        archive_certificate(client, found)
    client.update_model_version(found.name, found.version, with_notes(described, found.description))
    for name, value in verdict_tags(receipt).items():
        client.set_model_version_tag(found.name, found.version, name, value)
    log_metrics(client, found.run_id, found.source.removeprefix("models:/"), updated)
    if receipt.parent is not None or CERTIFICATE not in found.tags:
        issue_certificate(client, receipt.dataset, found)


def _is_timing(name: str) -> bool:
    """Seconds differ from run to run; a version keeps those of the run that made it."""
    return name.endswith("_seconds") or name.startswith("speedup_")


def _shown(logged: Mapping[str, float], receipt: ModelRecord) -> dict[str, float]:
    """What the version is to show: the receipt's metrics, with the timings it already has."""
    return {
        name: logged[name] if _is_timing(name) and name in logged else float(value)
        for name, value in receipt.metrics.items()
    }


def _agree(logged: Mapping[str, float], tags: Mapping[str, str], receipt: ModelRecord) -> bool:
    """Whether the version and its run already show what they should."""
    if any(tags.get(name) != value for name, value in verdict_tags(receipt).items()):
        return False
    return all(logged.get(name) == value for name, value in _shown(logged, receipt).items())


def _set_aliases(client: MlflowClient, dataset: str, versions: Sequence[int]) -> None:
    """For the versions of one dataset's receipts in order."""
    if CHAMPION not in find_aliases(client, dataset):
        set_alias(client, dataset, CHAMPION, versions[0])
    _point_challenger(client, dataset, versions)


def _point_challenger(client: MlflowClient, dataset: str, versions: Sequence[int]) -> None:
    point(client, dataset, CHALLENGER, lambda: newest_removal(client, dataset, versions))


def _misplaced(aliases: Mapping[str, int], versions: Sequence[int]) -> str | None:
    """The first alias that is not where it belongs; a newer removal's maker sees to that one."""
    if CHAMPION not in aliases:
        return CHAMPION
    challenger = aliases.get(CHALLENGER, 0)
    return None if challenger == versions[-1] or challenger > max(versions) else CHALLENGER


def _survey(
    client: MlflowClient, workspace: Workspace
) -> tuple[dict[str, list[dict[str, Any]]], str | None]:
    """What the record is to say, and the first thing that is not in place."""
    record: dict[str, list[dict[str, Any]]] = {}
    for dataset in workspace.settings.datasets:
        aliases = find_aliases(client, dataset)
        record[dataset] = []
        for receipt in read_model_records(workspace, dataset):
            found = find_fingerprint(client, dataset, receipt.fingerprint)
            if found is None:
                return record, f"{dataset} {receipt.method}: has no version"
            logged = client.get_run(found.run_id).data.metrics
            if not _agree(logged, found.tags, receipt):
                return record, f"{dataset} {receipt.method}: was measured again"
            if CERTIFICATE not in found.tags:
                return record, f"{dataset} {receipt.method}: has no certificate"
            version = int(found.version)
            record[dataset].append(
                {
                    "version": version,
                    "method": receipt.method,
                    "fingerprint": receipt.fingerprint,
                    "aliases": list(aliases_of(version, aliases)),
                    "parent_version": parent_version(found.tags),
                    "n_removed": receipt.n_removed,
                    "deletion_digest": receipt.deletion_digest,
                    "verdict": receipt.verdict,
                    "verdict_reason": receipt.verdict_reason,
                    "metrics": _shown(logged, receipt),
                }
            )
        versions = [row["version"] for row in record[dataset]]
        if (alias := _misplaced(aliases, versions)) is not None:
            return record, f"{dataset}: alias {alias} is not in place"
    return record, None
