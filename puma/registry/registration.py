"""Registering model records: create the missing versions, update the others, set the aliases."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puma.errors import DataError, RegistryError
from puma.lineage.records import ModelRecord, read_model_records
from puma.project.files import sha256, write_json, write_text
from puma.project.workspace import ROOT_MARK, Workspace
from puma.registry.certificate.build import archive_certificate, issue_certificate
from puma.registry.chart import log_chart
from puma.registry.concurrency import (
    delete_duplicates,
    follow,
    keep_first,
    newest_removal,
    set_alias,
)
from puma.registry.creation import (
    Draft,
    create_version,
    find_parent,
    log_figures,
    log_metrics,
    pipeline_draft,
    run_name,
    verdict_tags,
)
from puma.registry.description import describe, run_page, with_notes
from puma.registry.provenance import ADOPTION, COMMAND
from puma.registry.store import (
    NoRegistryError,
    database,
    experiment_id,
    is_default,
    open_store,
    reaches_store,
    writing,
)
from puma.registry.tombstones import refuse_erased
from puma.registry.versions import (
    CERTIFICATE,
    CHALLENGER,
    CHAMPION,
    EVIDENCE,
    FINGERPRINT,
    IDEMPOTENCY_KEY,
    aliases_of,
    every_tag,
    find_aliases,
    find_fingerprint,
    parent_version,
    set_tags,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import RunData
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class Registered:
    """The version of a model record.

    Attributes:
        created: Whether this call made it.
    """

    dataset: str
    method: str
    version: int
    parent_version: int | None
    fingerprint: str
    aliases: tuple[str, ...]
    created: bool


@reaches_store
def register_all(workspace: Workspace, *, progress: bool = True) -> list[Registered]:
    """Register every model record of the pipeline, set the aliases, and write registered.json.

    A second call changes nothing. ``champion`` is set to the first original where there is none,
    and never moved. ``challenger`` is set to the version of the last record, unless a newer
    removal was registered, by somebody else or by ``puma remove``. If a model was measured
    again, its version shows the new metrics, but keeps its timings.

    Args:
        workspace: The project.
        progress: Whether to print a line per version.

    Raises:
        RegistryError: The store cannot be used, or files are not those that were recorded.
        DataError: A model record is missing or broken.
        ModelError: A model cannot be built.
            Versions that were created before an error stay.
    """
    client = open_store(workspace)
    registered = []
    with writing(workspace):
        for dataset in workspace.settings.datasets:
            records = read_model_records(workspace, dataset)
            for record in records:
                found = _register(client, workspace, record)
                registered.append(found)
                if progress:
                    state = "created" if found.created else "in place"
                    print(f"{dataset} {record.method}: version {found.version} {state}")
            _set_aliases(client, dataset, [item.version for item in registered[-len(records) :]])
        summary, gap = _survey(client, workspace)
        if gap is not None:
            raise RegistryError(f"{gap}, although it was just registered; run it again")
        write_json(workspace.registered, summary)
    aliases = {dataset: find_aliases(client, dataset) for dataset in summary}
    return [
        replace(item, aliases=aliases_of(item.version, aliases[item.dataset]))
        for item in registered
    ]


def register_removal(
    client: MlflowClient, workspace: Workspace, draft: Draft, key: str
) -> tuple[ModelVersion, bool]:
    """What :meth:`puma.registry.Registry.register_removal` says."""
    dataset = draft.record.dataset
    with writing(workspace):
        known = find_removal(client, dataset, key)
        if known is not None:
            return known, False
        tagged = replace(draft, tags={**draft.tags, IDEMPOTENCY_KEY: key})
        made = create_version(client, workspace, tagged, COMMAND)
        found = keep_first(client, dataset, IDEMPOTENCY_KEY, key, made)
        _point_challenger(client, dataset, [int(found.version)])
    return found, True


def register_adopted(
    client: MlflowClient, workspace: Workspace, draft: Draft
) -> tuple[ModelVersion, bool]:
    """What :meth:`puma.registry.Registry.register_adopted` says."""
    record = draft.record
    with writing(workspace):
        found = delete_duplicates(client, record.dataset, FINGERPRINT, record.fingerprint)
        created = found is None
        if found is None:
            found = create_version(client, workspace, draft, ADOPTION)
        if CHAMPION not in find_aliases(client, record.dataset):
            set_alias(client, record.dataset, CHAMPION, int(found.version))
    return found, created


def find_removal(client: MlflowClient, dataset: str, key: str) -> ModelVersion | None:
    """What :meth:`puma.registry.Registry.find_removal` says."""
    found = delete_duplicates(client, dataset, IDEMPOTENCY_KEY, key)
    if found is not None:
        _point_challenger(client, dataset, [int(found.version)])
    return found


def all_registered(workspace: Workspace) -> bool:
    """Whether :func:`register_all` would change nothing."""
    return missing(workspace) is None


@reaches_store
def missing(workspace: Workspace) -> str | None:
    """The first thing that :func:`register_all` would change, or None.

    The default store is opened only where its file, or what is to be registered, is not as it was
    when nothing was missing last.
    """
    state = _state(workspace)
    if state is not None and _noted(workspace) == state:
        return None
    try:
        summary, gap = _survey(open_store(workspace, create=False), workspace)
    except (DataError, NoRegistryError) as error:
        return str(error)
    if gap is not None:
        return gap
    try:
        written = json.loads(workspace.registered.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return f"{workspace.registered}: is absent or broken"
    if written != summary:
        return f"{workspace.registered}: is out of date"
    if state is not None and os.access(workspace.complete.parent, os.W_OK):
        write_text(workspace.complete, state)
    return None


def _state(workspace: Workspace) -> str | None:
    """A digest of the default store's file by its size and time, and of all that goes into it.

    None where the store is another one, or is being written.
    """
    path = database(workspace)
    journals = [path.with_name(f"{path.name}-{end}") for end in ("journal", "wal")]
    if not is_default() or not path.is_file() or any(each.exists() for each in journals):
        return None
    stat = path.stat()
    parts = [str((str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)).encode()]
    package = Path(__file__).parents[1]
    files = [
        workspace.root / ROOT_MARK,
        workspace.registered,
        *sorted(workspace.lineage.rglob("*.json")),
        *sorted(
            file for room in ("registry", "lineage") for file in (package / room).rglob("*.py")
        ),
    ]
    for file in files:
        parts += [str(file).encode(), file.read_bytes() if file.is_file() else b""]
    return sha256(*parts)


def _noted(workspace: Workspace) -> str | None:
    try:
        return workspace.complete.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _register(client: MlflowClient, workspace: Workspace, record: ModelRecord) -> Registered:
    found = delete_duplicates(client, record.dataset, FINGERPRINT, record.fingerprint)
    created = found is None
    if found is None:
        refuse_erased(client, record)
        found = create_version(client, workspace, pipeline_draft(workspace, record))
    elif not _agree(run := client.get_run(found.run_id).data, found.tags, record):
        _update(client, workspace, found, record, run.metrics)
    elif CERTIFICATE not in found.tags:  # of an earlier PUMA, or interrupted
        issue_certificate(client, record.dataset, found)
    return Registered(
        dataset=record.dataset,
        method=record.method,
        version=int(found.version),
        parent_version=parent_version(found.tags),
        fingerprint=record.fingerprint,
        aliases=(),
        created=created,
    )


def _update(
    client: MlflowClient,
    workspace: Workspace,
    found: ModelVersion,
    record: ModelRecord,
    logged: Mapping[str, float],
) -> None:
    """Show the new measurements on the version. A removal gets a new certificate."""
    updated = record.model_copy(update={"metrics": _shown(logged, record)})
    # The plots first, as they may be missing. The metrics last: they show that this was done.
    log_figures(client, found.run_id, record, workspace.figures(record.dataset, record.method))
    log_chart(client, found.run_id, updated, int(found.version))
    client.update_run(found.run_id, name=run_name(record))
    page = run_page(experiment_id(client), found.run_id)
    described = describe(updated, find_parent(client, record), page)
    if record.parent is not None:
        archive_certificate(client, found)
    client.update_model_version(found.name, found.version, with_notes(described, found.description))
    set_tags(client, found, verdict_tags(record))
    log_metrics(client, found.run_id, found.source.removeprefix("models:/"), updated)
    if record.parent is not None or CERTIFICATE not in found.tags:
        issue_certificate(client, record.dataset, found)


def _is_timing(name: str) -> bool:
    """Seconds differ from run to run; a version keeps those of the run that made it."""
    return name.endswith("_seconds") or name.startswith("speedup_")


def _shown(logged: Mapping[str, float], record: ModelRecord) -> dict[str, float]:
    """The metrics to show: those of the record, with the timings that the version has."""
    return {
        name: logged[name] if _is_timing(name) and name in logged else float(value)
        for name, value in record.metrics.items()
    }


def _agree(run: RunData, tags: Mapping[str, str], record: ModelRecord) -> bool:
    """Whether the version, which has these tags, and its run show what ``record`` says."""
    logged = run.metrics
    shown = {EVIDENCE: "retrain", **every_tag(tags, run.tags)}  # earlier versions have no such tag
    if any(shown.get(name) != value for name, value in verdict_tags(record).items()):
        return False
    return all(logged.get(name) == value for name, value in _shown(logged, record).items())


def _set_aliases(client: MlflowClient, dataset: str, versions: Sequence[int]) -> None:
    """Set both aliases. ``versions``: of one dataset's records, in order."""
    if CHAMPION not in find_aliases(client, dataset):
        set_alias(client, dataset, CHAMPION, versions[0])
    _point_challenger(client, dataset, versions)


def _point_challenger(client: MlflowClient, dataset: str, versions: Sequence[int]) -> None:
    follow(client, dataset, CHALLENGER, lambda: newest_removal(client, dataset, versions))


def _misplaced(aliases: Mapping[str, int], versions: Sequence[int]) -> str | None:
    """The first alias that is not set as :func:`_set_aliases` would."""
    if CHAMPION not in aliases:
        return CHAMPION
    challenger = aliases.get(CHALLENGER, 0)
    return None if challenger == versions[-1] or challenger > max(versions) else CHALLENGER


def _survey(
    client: MlflowClient, workspace: Workspace
) -> tuple[dict[str, list[dict[str, Any]]], str | None]:
    """The content of registered.json, and the first thing that is not in place."""
    summary: dict[str, list[dict[str, Any]]] = {}
    for dataset in workspace.settings.datasets:
        aliases = find_aliases(client, dataset)
        summary[dataset] = []
        for record in read_model_records(workspace, dataset):
            found = find_fingerprint(client, dataset, record.fingerprint)
            if found is None:
                return summary, f"{dataset} {record.method}: has no version"
            run = client.get_run(found.run_id).data
            logged = run.metrics
            if not _agree(run, found.tags, record):
                return summary, f"{dataset} {record.method}: was measured again"
            if CERTIFICATE not in found.tags:
                return summary, f"{dataset} {record.method}: has no certificate"
            version = int(found.version)
            summary[dataset].append(
                {
                    "version": version,
                    "method": record.method,
                    "fingerprint": record.fingerprint,
                    "aliases": list(aliases_of(version, aliases)),
                    "parent_version": parent_version(found.tags),
                    "n_removed": record.n_removed,
                    "deletion_digest": record.deletion_digest,
                    "verdict": record.verdict,
                    "verdict_reason": record.verdict_reason,
                    "metrics": _shown(logged, record),
                }
            )
        versions = [row["version"] for row in summary[dataset]]
        if (alias := _misplaced(aliases, versions)) is not None:
            return summary, f"{dataset}: alias {alias} is not in place"
    return summary, None
