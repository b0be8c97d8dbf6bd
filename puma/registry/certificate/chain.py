"""The certificates above a version's own: each is named by the one below it, up to the original's,
also where a version between them was erased."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from puma.registry.certificate.build import FILE, KEPT, digest, read_artifact
from puma.registry.certificate.findings import Finding, differences, differs
from puma.registry.store_errors import is_away
from puma.registry.tombstones import ERASED, Tombstone, parent_of
from puma.registry.versions import CERTIFICATE, parent_version

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

CHAIN = "parent_certificate"
BACKUP = "restore mlruns/ and mlflow.db from a backup"


def kept_certificate(
    client: MlflowClient, version: ModelVersion | Tombstone, wanted: str, keeper: str
) -> str | None:
    """The text of the certificate of that digest, the present one or one that it replaced.

    ``keeper``: the run beside which those of an erased version are kept.
    """
    run_id = keeper if isinstance(version, Tombstone) else version.run_id
    for path in (FILE, f"{KEPT}/{wanted}.json"):
        text = read_artifact(client, run_id, path)
        if text is not None and digest(text) == wanted:
            return text
    return None


def check_chain(client: MlflowClient, found: ModelVersion, refers: str | None) -> Iterator[Finding]:
    """The certificates above, each named by the one below it."""
    from mlflow.exceptions import MlflowException

    field, child, keeper, erased = CHAIN, found, found.run_id, ""
    while True:
        try:
            parent = parent_of(client, child)
        except MlflowException as error:
            if is_away(error):
                raise
            why = f"version {parent_version(child.tags)} is not registered any more; {BACKUP}"
            yield Finding(field, "unknown", why)
            return
        if parent is None:
            break
        above = int(parent.version)
        issued = parent.tags.get(CERTIFICATE)
        if issued is None:
            why = f"version {above} has no certificate; run `dvc repro`, which issues it"
            yield Finding(field, "unknown", why)
            return
        text = None if refers is None else kept_certificate(client, parent, refers, keeper)
        if isinstance(parent, Tombstone):
            held = issued
            erased += f"; version {above} was erased on {parent.when}, its certificate is kept"
        else:
            keeper = parent.run_id
            present = read_artifact(client, keeper, FILE)
            held = None if present is None else digest(present)
        if held != issued or text is None:
            why = f"{FILE} of version {above} is not the one that this certificate refers to"
            yield differs(field, refers, held, why)
            return
        certificate = json.loads(text)
        if isinstance(parent, Tombstone):
            certified = parent.certified(certificate).written()
            for name, expected, found_now in differences(certified, parent.written()):
                why = f"{name} in the tag {ERASED}{above} is not what the kept certificate says"
                yield differs(field, expected, found_now, why)
                return
        field, child, refers = f"version {above}: {CHAIN}", parent, certificate[CHAIN]
    if child is not found:
        detail = f"the certificates up to version {child.version}'s{erased}"
        yield Finding(CHAIN, "holds", detail)
