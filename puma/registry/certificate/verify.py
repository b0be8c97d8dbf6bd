"""Checking a registered version against its certificate, and both against what can be computed
again. Nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from puma.errors import AbsentError, DataError, RegistryError
from puma.project.workspace import Workspace
from puma.registry.certificate.build import (
    FILE,
    LIMITS,
    PAGE,
    build,
    digest,
    read_artifact,
)
from puma.registry.certificate.chain import BACKUP, CHAIN, check_chain, kept_certificate
from puma.registry.certificate.findings import Finding, State, Verification, differences, differs
from puma.registry.loading import ChangedIdentityError, load_identity, registered_weights
from puma.registry.store import open_store, reaches_store
from puma.registry.store_errors import is_away
from puma.registry.tombstones import Tombstone, parent_of
from puma.registry.versions import (
    CERTIFICATE,
    CERTIFICATE_PAGE,
    CHAMPION,
    FINGERPRINT,
    RegisteredVersion,
    choose_version,
    list_versions,
    model_name,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@reaches_store
def verify_version(workspace: Workspace, dataset: str, version_or_alias: str | int) -> Verification:
    """Whether the certificate of a version holds.

    Its fields against the version, its run and its parent as the registry has them; the
    fingerprint, computed from what the version was registered as; the weights, computed from the
    registered model; where the project has them, the data and, with the key, the deletion set;
    the certificates above it up to the original's; ``champion``, if this is the version that it
    is on or should be on.

    Raises RegistryError when there is no such version.
    """
    client = open_store(workspace)
    rows = list_versions(client, dataset)
    row = choose_version(rows, dataset, version_or_alias)
    found = client.get_model_version(model_name(dataset), str(row.version))
    loaded = _load(client, dataset, found)
    if isinstance(loaded, Finding):
        return Verification(dataset, row.version, (loaded,))
    findings = [
        *loaded.fields(),
        *_identity(client, found),
        *_page(client, found),
        *_weights(found, loaded.trusted),
        *_project(workspace, dataset, loaded.trusted),
        *check_chain(client, found, loaded.trusted[CHAIN]),
        *_alias(row, rows),
    ]
    return Verification(dataset, row.version, tuple(findings))


def check_fields(client: MlflowClient, dataset: str, found: ModelVersion) -> tuple[Finding, ...]:
    """Of :func:`verify_version`, the certificate against the registry alone."""
    loaded = _load(client, dataset, found)
    return (loaded,) if isinstance(loaded, Finding) else tuple(loaded.fields())


def check_record(client: MlflowClient, dataset: str, found: ModelVersion) -> tuple[Finding, ...]:
    """:func:`check_fields`, and the certificates above."""
    loaded = _load(client, dataset, found)
    if isinstance(loaded, Finding):
        return (loaded,)
    return (*loaded.fields(), *check_chain(client, found, loaded.trusted[CHAIN]))


@dataclass(frozen=True)
class _Loaded:
    """A certificate as it is stored, and as the registry would write it now.

    intact: whether the file is the one that was issued; then it is the registry that changed.
    """

    stored: dict[str, Any]
    rebuilt: dict[str, Any]
    intact: bool
    issued: str
    held: str

    @property
    def trusted(self) -> dict[str, Any]:
        return self.stored if self.intact else self.rebuilt

    def fields(self) -> Iterator[Finding]:
        first, second, why = self.rebuilt, self.stored, f"{FILE} was changed after it was issued"
        if self.intact:
            first, second, why = second, first, "the registry was changed after it was issued"
        found = [differs(*leaf, why) for leaf in differences(first, second)]
        if not found and not self.intact:
            found = [differs(FILE, self.issued, self.held, "the file is not the one issued")]
        yield from found
        audit, deletion = self.trusted["audit"], self.trusted["deletion"]
        if audit and not found:
            about = (
                ("audit.weights_digest", self.trusted["weights_digest"], audit["weights_digest"]),
                ("audit.deletion_digest", deletion["digest"], audit["deletion_digest"]),
            )
            wrong = [
                differs(*leaf, "the audit is about another") for leaf in about if leaf[1] != leaf[2]
            ]
            yield from wrong
            found = wrong
        if not found:
            yield Finding("certificate", "holds", "every field agrees with the registry")


def _load(client: MlflowClient, dataset: str, found: ModelVersion) -> _Loaded | Finding:
    """Or why there is nothing to check."""
    from mlflow.exceptions import MlflowException

    def none(why: str) -> Finding:
        return Finding("certificate", "unknown", f"version {found.version} {why}")

    if not found.run_id or not {FINGERPRINT, CERTIFICATE} & found.tags.keys():
        return none("was not registered by PUMA; there is nothing to check it against")
    issued = found.tags.get(CERTIFICATE)
    if issued is None:
        return none(
            "has no certificate: it was registered by an earlier PUMA, or registering was cut "
            "short; run `dvc repro`, which issues those of the current versions"
        )
    text = read_artifact(client, found.run_id, FILE)
    if text is None:
        return none(f"has a certificate, but {FILE} cannot be read; {BACKUP}")
    try:
        stored = json.loads(text)
        if not isinstance(stored, dict):
            raise ValueError("not an object")
    except ValueError:
        return differs(FILE, issued, digest(text), "the file is no JSON object any more")
    intact = digest(text) == issued
    if intact and stored.get("schema") not in LIMITS:
        return none(f"has a certificate of schema {stored.get('schema')}; use a newer PUMA")
    try:
        run = client.get_run(found.run_id)
        parent = parent_of(client, found)
    except MlflowException as error:
        if is_away(error):
            raise
        return none(f"has lost its run or its parent ({str(error).splitlines()[0]}); {BACKUP}")
    refers = None
    if parent is not None:
        refers = stored.get(CHAIN)
        held = (
            None
            if not isinstance(refers, str)
            else kept_certificate(client, parent, refers, found.run_id)
        )
        if held is None:
            refers = parent.tags.get(CERTIFICATE)
        elif isinstance(parent, Tombstone):  # what was issued, not what the tag says of it
            parent = parent.certified(json.loads(held))
    rebuilt = build(dataset, dict(found.tags), run, parent, refers)
    return _Loaded(stored, json.loads(json.dumps(rebuilt)), intact, issued, digest(text))


def _identity(client: MlflowClient, found: ModelVersion) -> Iterator[Finding]:
    name = "fingerprint"
    try:
        load_identity(client, found)
    except ChangedIdentityError as error:
        yield Finding(name, "fails", str(error))
    except RegistryError as error:
        yield Finding(name, "unknown", str(error))
    else:
        yield Finding(name, "holds", "computed from what the version was registered as")


def _page(client: MlflowClient, found: ModelVersion) -> Iterator[Finding]:
    issued, shown = found.tags.get(CERTIFICATE_PAGE), read_artifact(client, found.run_id, PAGE)
    held = None if shown is None else digest(shown)
    if held == issued:
        yield Finding(PAGE, "holds", "it is the one that was issued")
    else:
        yield differs(PAGE, issued, held, f"the page is not the one issued; read {FILE}")


def _weights(found: ModelVersion, trusted: dict[str, Any]) -> Iterator[Finding]:
    try:
        held = registered_weights(found)
    except RegistryError as error:
        yield Finding("weights_digest", "unknown", str(error))
        return
    if held == trusted["weights_digest"]:
        yield Finding("weights_digest", "holds", "computed from the registered model")
    else:
        why = "the files of the registered model were changed"
        yield differs("weights_digest", trusted["weights_digest"], held, why)


def _project(workspace: Workspace, dataset: str, trusted: dict[str, Any]) -> Iterator[Finding]:
    """The data, and the request, as far as they are here. The key is read, never made."""
    from puma.requests.archive import find_data, find_request

    name = "data_digest"
    try:
        data = find_data(workspace, dataset, trusted[name])
    except DataError as error:
        yield _not_told(name, error)
        if isinstance(error, AbsentError) and trusted["deletion"]:
            yield Finding("deletion.digest", "skipped", "without the data it tells nothing")
        return
    yield Finding(name, "holds", f"computed from {workspace.data(dataset)}")
    stated, name = trusted["deletion"], "deletion.digest"
    if stated is None:
        return
    try:
        request = find_request(workspace, data, stated["digest"])
    except DataError as error:
        yield _not_told(name, error)
        return
    yield Finding(name, "holds", "computed from the request with the project's key")
    counted = {"rows": len(request), "subjects": len(request.subject_ids)}
    for name, count in counted.items():
        if count != stated[name]:
            yield differs(f"deletion.{name}", stated[name], count, "counted in the request")


def _not_told(field: str, error: DataError) -> Finding:
    state: State = "skipped" if isinstance(error, AbsentError) else "unknown"
    return Finding(field, state, str(error))


def _alias(row: RegisteredVersion, rows: list[RegisteredVersion]) -> Iterator[Finding]:
    """``champion`` belongs to what was promoted last, or before any promotion to the first."""
    standing = [each for each in rows if each.superseded_by is None and each.promoted_at]
    due = max(standing, key=lambda each: each.promoted_at or "", default=None)
    if due is None and not any(each.superseded_by for each in rows):
        due = next((each for each in rows if each.method and not each.deletion_digest), None)
    actual = next((each for each in rows if CHAMPION in each.aliases), None)
    if due is None or row not in (due, actual):
        return
    if due is actual:
        yield Finding(f"alias {CHAMPION}", "holds", "it serves")
    else:
        why = "it was moved by hand, or a promotion was cut short; run `puma promote`"
        number = None if actual is None else actual.version
        yield differs(f"alias {CHAMPION}", due.version, number, why)
