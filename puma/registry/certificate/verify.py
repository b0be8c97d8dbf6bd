"""Verify registered versions: load what the registry holds, then compare. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from puma.errors import AbsentError, DataError, RegistryError
from puma.project.workspace import Workspace
from puma.registry.certificate import compare as rules
from puma.registry.certificate.build import FILE, KEPT, PAGE, digest, read_artifact
from puma.registry.certificate.compare import Ancestor, Record, compare
from puma.registry.certificate.findings import Finding, State, Verification, differs
from puma.registry.connection import RESTORE
from puma.registry.loading import (
    ChangedIdentityError,
    from_files,
    load_identity,
    registered_weights,
)
from puma.registry.logged_model import graph_digest
from puma.registry.store import open_store, reaches_store
from puma.registry.store_errors import is_away
from puma.registry.tombstones import Tombstone, parent_of
from puma.registry.versions import GRAPH, RegisteredVersion, choose_version, list_versions

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion


@reaches_store
def verify_version(workspace: Workspace, dataset: str, version_or_alias: str | int) -> Verification:
    """Check whether the certificate of a version holds.

    Checked are, in this order:

    - the fields of the certificate against the version, its run and its parent in the registry;
    - the fingerprint, computed from what the version was registered as;
    - the page for people;
    - the weights, and what is computed with them, from the files of the registered model;
    - the data and, with the project's key, the deletion set, where the project has them;
    - the certificates above it, up to the original's;
    - ``champion``, if this version has it or should have it.

    Raises:
        RegistryError: There is no such version.
    """
    client = open_store(workspace, create=False)
    rows = list_versions(client, dataset)
    row = choose_version(rows, dataset, version_or_alias)
    record = load_record(client, row)
    comparison = compare(record)
    if isinstance(comparison, Finding):
        return Verification(dataset, row.version, (comparison,))
    trusted = comparison.trusted
    findings = [
        *rules.check_fields(comparison),
        _check_identity(client, row),
        rules.check_page(record),
        rules.check_weights(weights_or_error(row), trusted["weights_digest"]),
        *_check_graph(row),
        *check_project(workspace, dataset, trusted),
        *rules.check_chain(record, trusted[rules.CHAIN]),
        *rules.check_champion(row, rows),
    ]
    return Verification(dataset, row.version, tuple(findings))


def check_fields(client: MlflowClient, version: RegisteredVersion) -> tuple[Finding, ...]:
    """Check only the fields of the certificate of ``version`` against the registry."""
    comparison = compare(load_record(client, version))
    if isinstance(comparison, Finding):
        return (comparison,)
    return tuple(rules.check_fields(comparison))


def check_record(client: MlflowClient, version: RegisteredVersion) -> tuple[Finding, ...]:
    """Check the fields of the certificate of ``version``, and the certificates above it."""
    record = load_record(client, version)
    comparison = compare(record)
    if isinstance(comparison, Finding):
        return (comparison,)
    chain = rules.check_chain(record, comparison.trusted[rules.CHAIN])
    return (*rules.check_fields(comparison), *chain)


def load_record(client: MlflowClient, version: RegisteredVersion) -> Record:
    """Load everything that the certificate of ``version`` is compared with."""
    run_id = version.run_id
    return Record(
        dataset=version.dataset,
        version=version.version,
        tags=dict(version.tags),
        run_id=run_id,
        run=_find_run(client, run_id),
        certificate=read_artifact(client, run_id, FILE) if run_id else None,
        page=read_artifact(client, run_id, PAGE) if run_id else None,
        ancestors=tuple(_ancestors(client, version)) if run_id else (),
    )


def _find_run(client: MlflowClient, run_id: str) -> Run | None:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id) if run_id else None
    except MlflowException as error:
        if is_away(error):
            raise
        return None


def _ancestors(client: MlflowClient, version: RegisteredVersion) -> Iterator[Ancestor]:
    """The versions above ``version``, as far as they are registered or have a tombstone."""
    from mlflow.exceptions import MlflowException

    child: ModelVersion | RegisteredVersion | Tombstone = version
    keeper = version.run_id  # the certificates of an erased version lie beside its descendant's
    seen = {version.version}
    while True:
        try:
            parent = parent_of(client, child)
        except MlflowException as error:
            if is_away(error):
                raise
            return
        if parent is None or int(parent.version) in seen:  # tags that were edited into a circle
            return
        seen.add(int(parent.version))
        tombstone = parent if isinstance(parent, Tombstone) else None
        if not isinstance(parent, Tombstone):
            keeper = parent.run_id or ""
        texts = _certificates(client, keeper)
        present = None if tombstone or FILE not in texts else digest(texts[FILE])
        yield Ancestor(
            version=int(parent.version),
            tags=dict(parent.tags),
            certificates={digest(text): text for text in texts.values()},
            present=present,
            tombstone=tombstone,
        )
        child = parent


def _certificates(client: MlflowClient, run_id: str) -> dict[str, str]:
    """Path -> text of the certificates beside a run, the present one and those that it replaced."""
    from mlflow.exceptions import MlflowException

    if not run_id:
        return {}
    try:
        paths = [FILE, *(item.path for item in client.list_artifacts(run_id, KEPT))]
    except MlflowException as error:
        if is_away(error):
            raise
        return {}
    texts = ((path, read_artifact(client, run_id, path)) for path in paths)
    return {path: text for path, text in texts if text is not None}


def weights_or_error(version: RegisteredVersion) -> str | RegistryError:
    """The digest of the weights in the registered model, or why it cannot be loaded."""
    try:
        return registered_weights(version)
    except RegistryError as error:
        return error


def _check_identity(client: MlflowClient, version: RegisteredVersion) -> Finding:
    name = "fingerprint"
    try:
        load_identity(client, version)
    except ChangedIdentityError as error:
        return Finding(name, "fails", str(error))
    except RegistryError as error:
        return Finding(name, "unknown", str(error))
    return Finding(name, "holds", "computed from what the version was registered as")


def _check_graph(version: RegisteredVersion) -> Iterator[Finding]:
    """Check what is computed with the weights, where the version says what that was."""
    expected = version.tags.get(GRAPH)
    if expected is None:  # registered by an earlier PUMA
        return
    name = "graph_digest"
    try:
        found = from_files(version, graph_digest)
    except RegistryError as error:
        yield Finding(name, "unknown", str(error))
        return
    if found is None:
        yield Finding(name, "unknown", f"the registered model's archive is damaged; {RESTORE}")
    elif found == expected:
        yield Finding(name, "holds", "computed from the files of the registered model")
    else:
        why = f"the files of the registered model were changed; {RESTORE}"
        yield differs(name, expected, found, why)


def check_project(workspace: Workspace, dataset: str, trusted: dict[str, Any]) -> Iterator[Finding]:
    """Check the data and the request of a certificate, where the project has them.

    The key is read, never made.
    """
    from puma.requests.archive import find_data, find_request

    name = "data_digest"
    try:
        data = find_data(workspace, dataset, trusted[name])
    except DataError as error:
        yield _unchecked(name, error)
        if isinstance(error, AbsentError) and trusted["deletion"]:
            why = "the request cannot be read without the data"
            yield Finding("deletion.digest", "skipped", why)
        return
    yield Finding(name, "holds", f"computed from {workspace.data(dataset)}")
    stated, name = trusted["deletion"], "deletion.digest"
    if stated is None:
        return
    try:
        request = find_request(workspace, data, stated["digest"])
    except DataError as error:
        yield _unchecked(name, error)
        return
    yield Finding(name, "holds", "computed from the request with the project's key")
    counted = {"rows": len(request), "subjects": len(request.subject_ids)}
    for name, count in counted.items():
        if count != stated[name]:
            yield differs(f"deletion.{name}", stated[name], count, "counted in the request")


def _unchecked(field: str, error: DataError) -> Finding:
    state: State = "skipped" if isinstance(error, AbsentError) else "unknown"
    return Finding(field, state, str(error))
