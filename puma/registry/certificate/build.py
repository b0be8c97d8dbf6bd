"""Build certificates and store them beside the runs of their versions.

A certificate says in one JSON file what a version is and what its audit found. It contains only
what the registry says, so the registry can rebuild it, and every difference has a name. It refers
to its parent's certificate by SHA-256, and so on up to the original's.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puma.errors import RegistryError
from puma.registry import provenance
from puma.registry.certificate.page import page
from puma.registry.preserved import PRESERVE, preserved_of
from puma.registry.store_errors import is_away
from puma.registry.tombstones import Tombstone, parent_of
from puma.registry.versions import (
    AUDITED_DELETION,
    AUDITED_WEIGHTS,
    CERTIFICATE,
    CERTIFICATE_PAGE,
    CERTIFICATE_REPLACED,
    EVIDENCE,
    FINGERPRINT,
    FIRST,
    UNRESOLVED,
    VERDICT,
    VERDICT_REASON,
    WEIGHTS,
    every_tag,
    set_tags,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

SCHEMA = 1
FILE, PAGE, KEPT = "certificate.json", "certificate.html", "certificates"
# The parameters of a run that are not the method's own.
DESCRIBED = frozenset(
    {
        *("method", "dataset", "model", "seed", "parent_version", "n_removed", "n_subjects"),
        *("deletion_digest", "data_digest", "weights_digest"),
    }
)
# By schema. Certificates that were issued contain these words: to change them, raise SCHEMA.
LIMITS: dict[int, tuple[str, ...]] = {
    1: (
        "The audit compares answers with those of retrained models; it is no proof that no trace "
        "of the removed rows is left in the weights.",
        "Parent versions, the data, caches, backups, remotes and git history may still hold the "
        "removed rows or what was learnt from them.",
        "Pre-processing was computed with the removed rows, and was not computed again.",
        "The deletion set is named by a keyed digest: only who holds the key and the request can "
        "tell whom it is about. People removed for other requests are not covered, unless this "
        "version was made from theirs.",
        "The certificate is not signed: it shows changes to one place of the registry, not a "
        "registry that was rewritten as a whole by somebody with access to all of it.",
        "The environment and the commit are those of the process that registered the version.",
    )
}


def build(
    dataset: str,
    tags: Mapping[str, str],
    run: Run,
    parent: dict[str, Any] | None,
    parent_certificate: str | None,
) -> dict[str, Any]:
    """Build the certificate of one version from what the registry says.

    What the registry does not say is None. An issued certificate has None only where something
    does not apply: ``deletion`` and ``audit`` are None for an original, because the audit of an
    original is about a later request and changes with it.

    Args:
        dataset: The dataset of the model.
        tags: The tags of the version; those that its run has for it need not be among them.
        run: Its run: parameters (as text), metrics, tags and start time.
        parent: The :func:`parent_fields` of its parent; None for an original.
        parent_certificate: The SHA-256 of the parent's certificate; None for an original.

    Returns:
        The certificate as a JSON object. ``registered`` is the start of the run, UTC in ISO 8601.
    """
    data = run.data
    tags = every_tag(tags, data.tags)
    started = datetime.fromtimestamp(run.info.start_time / 1000, UTC)
    return {
        "schema": SCHEMA,
        "dataset": dataset,
        "fingerprint": tags.get(FINGERPRINT),
        "registered": started.isoformat(timespec="seconds"),
        "method": tags.get("puma.method"),
        "seed": _count(tags.get("puma.seed")),
        "parameters": {name: text for name, text in data.params.items() if name not in DESCRIBED},
        "data_digest": tags.get("puma.data_digest"),
        "weights_digest": tags.get(WEIGHTS),
        "parent": parent,
        "parent_certificate": parent_certificate,
        "replaces": tags.get(CERTIFICATE_REPLACED),
        "deletion": None if parent is None else _deletion(tags),
        "audit": None if parent is None else _audit(tags, data.metrics),
        # Certificates of versions that list no criteria have no such field.
        **_preserved(data.params, data.metrics),
        "environment": _environment(data.tags),
        "git": _git(data.tags),
        "limits": list(LIMITS[SCHEMA]),
    }


def parent_fields(version: int, tags: Mapping[str, str]) -> dict[str, Any]:
    """How a certificate names the parent that has this number and these tags."""
    return {
        "version": version,
        "fingerprint": tags.get(FINGERPRINT),
        "weights_digest": tags.get(WEIGHTS),
    }


def _deletion(tags: Mapping[str, str]) -> dict[str, Any]:
    return {
        "digest": tags.get("puma.deletion_digest"),
        "rows": _count(tags.get("puma.n_removed")),
        "subjects": _count(tags.get("puma.n_subjects")),
    }


def _count(text: str | None) -> int | str | None:
    """The number that PUMA wrote; a text that somebody edited stays as it is."""
    return int(text) if text is not None and text.isdecimal() else text


def _audit(tags: Mapping[str, str], metrics: Mapping[str, float]) -> dict[str, Any] | None:
    if not {VERDICT, AUDITED_WEIGHTS} & tags.keys():
        return None
    unresolved = [name for name in tags.get(UNRESOLVED, "").split() if name != "-"]
    return {
        "verdict": tags.get(VERDICT),
        "reason": tags.get(VERDICT_REASON),
        # Earlier versions have no such tag: they were audited by retraining.
        **({"evidence": tags[EVIDENCE]} if EVIDENCE in tags else {}),
        "weights_digest": tags.get(AUDITED_WEIGHTS),
        "deletion_digest": tags.get(AUDITED_DELETION),
        "metrics": {
            name: value
            for name, value in metrics.items()
            if name != "train_loss" and name not in unresolved and math.isfinite(value)
            if not _is_copy(name, metrics)
        },
        "unresolved": unresolved,
    }


def _is_copy(name: str, metrics: Mapping[str, float]) -> bool:
    """Whether a metric says again what another one says. A copy that was edited does not."""
    return name.startswith(FIRST) and metrics.get(name.removeprefix(FIRST)) == metrics[name]


def _preserved(params: Mapping[str, str], metrics: Mapping[str, float]) -> dict[str, Any]:
    if PRESERVE not in params:
        return {}
    try:
        kept = [each.to_dict() for each in preserved_of(params, metrics)]
    except ValueError:  # edited since: it then differs from what was issued
        return {"preserved": None}
    return {"preserved": kept}


def _environment(tags: Mapping[str, str]) -> dict[str, str | None]:
    """Versions of software; None where a run of an earlier PUMA does not say."""
    packages = {tag.removeprefix("puma."): tags.get(tag) for tag in provenance.PACKAGES}
    named = {"puma" if name == "version" else name: found for name, found in packages.items()}
    return {"python": tags.get(provenance.PYTHON), **named}


def _git(tags: Mapping[str, str]) -> dict[str, str | bool | None]:
    commit = tags.get(provenance.COMMIT)
    changes = tags.get(provenance.UNCOMMITTED)
    return {
        "commit": commit,
        "uncommitted_changes": None if changes is None else changes == "true",
        "reason": None if commit else tags.get(provenance.NO_COMMIT, "was not recorded"),
    }


def canonical(certificate: dict[str, Any]) -> str:
    """Write a certificate in the one way it is stored.

    Sorted keys, an indent of two, UTF-8, a newline at the end.
    """
    return json.dumps(certificate, indent=2, sort_keys=True, allow_nan=False) + "\n"


def digest(text: str) -> str:
    """The SHA-256 of the UTF-8 text, as ``sha256sum`` prints it for the file."""
    return hashlib.sha256(text.encode()).hexdigest()


def log_certificate(
    client: MlflowClient,
    dataset: str,
    tags: Mapping[str, str],
    run_id: str,
    parent: ModelVersion | Tombstone | None,
) -> dict[str, str]:
    """Put a certificate and its page beside a run.

    Args:
        client: The store.
        dataset: The dataset of the model.
        tags: The tags that the version has, or will have.
        run_id: Its run.
        parent: The version that it was made from, or its tombstone; None for an original.

    Returns:
        The tags that vouch for both files. Set them last: without them a version has no
        certificate.

    Raises:
        RegistryError: The parent has no certificate.
    """
    above, named = None, None
    if parent is not None:
        above = parent.tags.get(CERTIFICATE)
        if above is None:
            raise RegistryError(
                f"version {parent.version} of {parent.name} has no certificate for that of its "
                "removal to refer to; run `dvc repro`, which issues it first"
            )
        named = parent_fields(int(parent.version), parent.tags)
    certificate = build(dataset, tags, client.get_run(run_id), named, above)
    text = canonical(certificate)
    shown = page(certificate, digest(text))
    client.log_text(run_id, text, FILE)
    client.log_text(run_id, shown, PAGE)
    return {CERTIFICATE_PAGE: digest(shown), CERTIFICATE: digest(text)}


def issue_certificate(client: MlflowClient, dataset: str, found: ModelVersion) -> None:
    """Issue the certificate of a registered version that has none, or whose was archived."""
    current = client.get_model_version(found.name, str(found.version))
    parent = parent_of(client, current)
    tags = log_certificate(client, dataset, current.tags, current.run_id, parent)
    set_tags(client, current, tags)


def archive_certificate(client: MlflowClient, found: ModelVersion) -> None:
    """Keep the certificate of a version under its digest, and leave the version without one.

    For a version that was audited again. The certificates of what was made from it refer to the
    archived one.
    """
    issued = found.tags.get(CERTIFICATE)
    if issued is None:
        return
    text = read_artifact(client, found.run_id, FILE)
    if text is not None and digest(text) == issued:  # one that was edited is not worth keeping
        client.log_text(found.run_id, text, f"{KEPT}/{issued}.json")
    version = str(found.version)
    client.set_model_version_tag(found.name, version, CERTIFICATE_REPLACED, issued)
    client.delete_model_version_tag(found.name, version, CERTIFICATE)


def read_artifact(client: MlflowClient, run_id: str, path: str) -> str | None:
    """The text of an artifact of a run; None when it is absent or is not UTF-8."""
    from mlflow.exceptions import MlflowException

    try:
        # MLflow's own temporary copy would stay behind.
        with tempfile.TemporaryDirectory(prefix="puma-") as folder:
            fetched = Path(client.download_artifacts(run_id, path, folder))
            return fetched.read_text(encoding="utf-8")
    except (MlflowException, OSError, UnicodeDecodeError) as error:
        if is_away(error):
            raise
        return None
