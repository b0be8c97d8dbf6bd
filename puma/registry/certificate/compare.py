"""Compare a certificate with what the registry says now: rules on plain values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from puma.errors import RegistryError
from puma.registry.certificate.build import FILE, LIMITS, PAGE, build, digest, parent_fields
from puma.registry.certificate.findings import Finding, differences, differs
from puma.registry.connection import RESTORE
from puma.registry.tombstones import ERASED, Tombstone
from puma.registry.versions import (
    CERTIFICATE,
    CERTIFICATE_PAGE,
    CHAMPION,
    FINGERPRINT,
    RegisteredVersion,
    parent_version,
)

if TYPE_CHECKING:
    from mlflow.entities import Run

CHAIN = "parent_certificate"


@dataclass(frozen=True)
class Ancestor:
    """A version above another one, as the registry has it now.

    Attributes:
        version: Its number.
        tags: Its tags; of an erased version those that its tombstone keeps.
        certificates: SHA-256 -> text of the certificates that are kept for it: the present one
            and those that it replaced.
        present: The SHA-256 of its certificate.json; None when that is gone, or it was erased.
        tombstone: What is left of it, if it was erased.
    """

    version: int
    tags: Mapping[str, str]
    certificates: Mapping[str, str]
    present: str | None
    tombstone: Tombstone | None = None


@dataclass(frozen=True)
class Record:
    """What the registry holds of one version and of those above it.

    Attributes:
        dataset: The dataset of the model.
        version: The number of the version.
        tags: Its tags.
        run_id: The id of its run; empty when it was registered by hand.
        run: That run; None when it is gone.
        certificate: The text of its certificate.json; None when it cannot be read.
        page: The text of its certificate.html; None when it cannot be read.
        ancestors: Its parent, the parent of that, and so on: up to the original, or to the first
            one that is neither registered nor has a tombstone.
    """

    dataset: str
    version: int
    tags: Mapping[str, str]
    run_id: str
    run: Run | None
    certificate: str | None
    page: str | None
    ancestors: Sequence[Ancestor]


@dataclass(frozen=True)
class Comparison:
    """A certificate as it is stored, and as the registry would issue it now.

    Attributes:
        stored: The certificate that is stored.
        rebuilt: The certificate that the registry would issue.
        issued: The SHA-256 of the certificate that was issued.
        held: The SHA-256 of the one that is stored.
    """

    stored: dict[str, Any]
    rebuilt: dict[str, Any]
    issued: str
    held: str

    @property
    def intact(self) -> bool:
        """Whether the stored file is the issued one; then any difference is in the registry."""
        return self.held == self.issued

    @property
    def trusted(self) -> dict[str, Any]:
        """The one of both to check everything else against."""
        return self.stored if self.intact else self.rebuilt


def compare(record: Record) -> Comparison | Finding:
    """Read the certificate of a record and rebuild it; a finding when one of both is impossible."""

    def unknown(why: str) -> Finding:
        return Finding("certificate", "unknown", f"version {record.version} {why}")

    tags = record.tags
    if not record.run_id or not {FINGERPRINT, CERTIFICATE} & tags.keys():
        return unknown("was not registered by PUMA; there is nothing to check it against")
    issued = tags.get(CERTIFICATE)
    if issued is None:
        return unknown(
            "has no certificate: it was registered by an earlier PUMA, or registering was cut "
            "short; run `dvc repro`, which issues those of the current versions"
        )
    if record.certificate is None:
        return unknown(f"has a certificate, but {FILE} cannot be read; {RESTORE}")
    held = digest(record.certificate)
    try:
        stored = json.loads(record.certificate)
    except ValueError:
        stored = None
    if not isinstance(stored, dict):
        return differs(FILE, issued, held, "the file is no JSON object any more")
    if held == issued and stored.get("schema") not in LIMITS:
        return unknown(f"has a certificate of schema {stored.get('schema')}; use a newer PUMA")
    if record.run is None:
        return unknown(f"has lost its run; {RESTORE}")
    above, named, refers = parent_version(tags), None, None
    if above is not None and not record.ancestors:
        return unknown(f"has lost its parent, version {above}; {RESTORE}")
    if above is not None:
        named, refers = _parent(record.ancestors[0], stored.get(CHAIN))
    rebuilt = build(record.dataset, tags, record.run, named, refers)
    return Comparison(stored, json.loads(json.dumps(rebuilt)), issued, held)


def _parent(parent: Ancestor, stated: Any) -> tuple[dict[str, Any], str | None]:
    """The parent as a certificate names it, and the parent's certificate that it refers to.

    That is the ``stated`` one if it is kept: the parent may have been audited again since.
    """
    named = parent_fields(parent.version, parent.tags)
    text = parent.certificates.get(stated) if isinstance(stated, str) else None
    if text is None:
        return named, parent.tags.get(CERTIFICATE)
    if parent.tombstone is not None:  # what was issued goes before what the tombstone says
        issued = json.loads(text)
        named |= {name: issued[name] for name in ("fingerprint", "weights_digest")}
    return named, stated


def check_fields(comparison: Comparison) -> Iterator[Finding]:
    """Check every field of a certificate against the registry."""
    first, second, why = (
        comparison.rebuilt,
        comparison.stored,
        f"{FILE} was changed after it was issued; {RESTORE}",
    )
    if comparison.intact:
        first, second, why = (
            second,
            first,
            f"the registry was changed after it was issued; put it back, or {RESTORE}",
        )
    found = [differs(*leaf, why) for leaf in differences(first, second)]
    if not found and not comparison.intact:
        why = "the file is not the one issued"
        found = [differs(FILE, comparison.issued, comparison.held, why)]
    trusted = comparison.trusted
    audit, deletion = trusted["audit"], trusted["deletion"]
    if audit and not found:
        pairs = (
            ("audit.weights_digest", trusted["weights_digest"], audit["weights_digest"]),
            ("audit.deletion_digest", deletion["digest"], audit["deletion_digest"]),
        )
        found = [
            differs(field, expected, held, "the audit is about another")
            for field, expected, held in pairs
            if expected != held
        ]
    yield from found or [Finding("certificate", "holds", "every field agrees with the registry")]


def check_page(record: Record) -> Finding:
    """Check that the page for people is the one that was issued."""
    issued = record.tags.get(CERTIFICATE_PAGE)
    held = None if record.page is None else digest(record.page)
    if held == issued:
        return Finding(PAGE, "holds", "it is the one that was issued")
    return differs(PAGE, issued, held, f"the page is not the one issued; read {FILE}")


def check_weights(weights: str | RegistryError, expected: str) -> Finding:
    """Check the digest of the registered model's weights, or say why there is none."""
    if isinstance(weights, RegistryError):
        return Finding("weights_digest", "unknown", str(weights))
    if weights == expected:
        return Finding("weights_digest", "holds", "computed from the registered model")
    why = f"the files of the registered model were changed; {RESTORE}"
    return differs("weights_digest", expected, weights, why)


def check_chain(record: Record, refers: str | None) -> Iterator[Finding]:
    """Check the certificates above, up to the original's, also those of erased versions.

    Args:
        record: The version, with its ancestors.
        refers: The SHA-256 of the parent's certificate, as the certificate of ``record`` says.
    """
    field, child, tags, erased = CHAIN, record.version, record.tags, ""
    for ancestor in record.ancestors:
        issued = ancestor.tags.get(CERTIFICATE)
        if issued is None:
            why = f"version {ancestor.version} has no certificate; run `dvc repro`, which issues it"
            yield Finding(field, "unknown", why)
            return
        tombstone = ancestor.tombstone
        held = ancestor.present if tombstone is None else issued
        text = None if refers is None else ancestor.certificates.get(refers)
        if held != issued or text is None:
            why = f"{FILE} of version {ancestor.version} is not the one that this certificate names"
            yield differs(field, refers, held, why)
            return
        certificate = json.loads(text)
        if tombstone is not None:
            erased += (
                f"; version {ancestor.version} was erased on {tombstone.when}, its certificate is "
                "kept"
            )
            certified = tombstone.certified(certificate).content()
            for name, expected, found in differences(certified, tombstone.content()):
                tag = f"{ERASED}{ancestor.version}"
                why = f"{name} in the tag {tag} is not what the kept certificate says"
                yield differs(field, expected, found, why)
                return
        field, refers = f"version {ancestor.version}: {CHAIN}", certificate[CHAIN]
        child, tags = ancestor.version, ancestor.tags
    above = parent_version(tags)
    if above is not None:
        yield Finding(field, "unknown", f"version {above} is not registered any more; {RESTORE}")
    elif record.ancestors:
        detail = f"the certificates up to version {child}'s{erased}"
        yield Finding(CHAIN, "holds", detail)


def check_champion(row: RegisteredVersion, rows: Sequence[RegisteredVersion]) -> Iterator[Finding]:
    """Check where ``champion`` is, if ``row`` has it or should have it.

    It belongs to what was promoted last; before any promotion to the first original.
    """
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
        command = f"puma promote {due.dataset} {due.version}"
        why = (
            f"it was moved by hand, or a promotion was cut short; run `{command}` or, where a "
            f"condition forbids that, `{command} --force 'it was moved by hand'`"
        )
        number = None if actual is None else actual.version
        yield differs(f"alias {CHAMPION}", due.version, number, why)
