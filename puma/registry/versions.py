"""Reading the registry: which versions of a dataset's model there are."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from puma.errors import RegistryError
from puma.registry.store_errors import is_away

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

FINGERPRINT = "puma.fingerprint"
VERDICT = "puma.verdict"
PASSED = "passed"
VERDICT_REASON = "puma.verdict_reason"
UNRESOLVED = "puma.unresolved"
WEIGHTS = "puma.weights_digest"
AUDITED_WEIGHTS = "puma.audited_weights"
AUDITED_DELETION = "puma.audited_deletion"
PROMOTED_AT = "puma.promoted_at"
FORCED = "puma.forced"
SUPERSEDED_BY = "puma.superseded_by"
CERTIFICATE = "puma.certificate"  # SHA-256 of the file; a version without it has none
CERTIFICATE_PAGE = "puma.certificate_page"
CERTIFICATE_REPLACED = "puma.certificate_replaced"
RETRAIN_DUE = "puma.retrain_due"  # why, of what the direct path made
IDEMPOTENCY_KEY = "puma.idempotency_key"  # of what the direct path made
IDENTITY = "identity.json"  # an artifact of its run: what its fingerprint is the digest of
CHAMPION = "champion"
CHALLENGER = "challenger"


@dataclass(frozen=True)
class RegisteredVersion:
    """One registered version.

    ``metrics`` are the latest values of its run, without those that its last audit could not
    tell. ``parent_version`` and ``deletion_digest`` are None for an original, ``verdict`` for a
    version that was never audited; ``created`` and ``promoted_at`` are UTC in ISO 8601; a version
    that PUMA did not register has an empty method and fingerprint. ``promoted_at`` and ``forced``,
    the reason for passing over the gate, are of its last promotion; ``superseded_by`` is the
    version that took ``champion`` from it.
    """

    version: int
    aliases: tuple[str, ...]
    method: str
    parent_version: int | None
    n_removed: int
    deletion_digest: str | None
    verdict: str | None
    metrics: dict[str, float]
    data_digest: str
    fingerprint: str
    run_id: str
    created: str
    promoted_at: str | None = None
    forced: str | None = None
    superseded_by: int | None = None

    @property
    def passed(self) -> bool:
        """Whether its audit did."""
        return self.verdict == PASSED

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "aliases": list(self.aliases)}


def model_name(dataset: str) -> str:
    """The registered model whose versions are the models of ``dataset``."""
    return f"puma-{dataset}"


def find_version(client: MlflowClient, dataset: str, fingerprint: str) -> ModelVersion | None:
    """The version of a receipt, the oldest should there be two; None when there is none."""
    return next(iter(find_tagged(client, dataset, FINGERPRINT, fingerprint)), None)


def find_tagged(client: MlflowClient, dataset: str, tag: str, value: str) -> list[ModelVersion]:
    """Every version of ``dataset``'s model with that tag, oldest first."""
    return _versions_of(client, dataset, f" and tags.`{tag}` = '{value}'")


def find_versions(client: MlflowClient, dataset: str) -> list[ModelVersion]:
    """Every version of ``dataset``'s model, oldest first."""
    return _versions_of(client, dataset)


def _versions_of(client: MlflowClient, dataset: str, query: str = "") -> list[ModelVersion]:
    found = every_version(client, f"name='{model_name(dataset)}'{query}")
    return sorted(found, key=lambda version: int(version.version))


def find_aliases(client: MlflowClient, dataset: str) -> dict[str, int]:
    """Alias -> version; empty when the model is not registered."""
    # Searched, not got: `get` raises for a missing model, and a version's own aliases are
    # empty in the answers of a search.
    found = client.search_registered_models(f"name='{model_name(dataset)}'")
    return {alias: int(version) for model in found for alias, version in model.aliases.items()}


def aliases_of(version: int, aliases: dict[str, int]) -> tuple[str, ...]:
    """The names, sorted, that point at ``version``."""
    return tuple(sorted(alias for alias, target in aliases.items() if target == version))


def parent_version(tags: dict[str, str]) -> int | None:
    """The version that the tagged one was made from."""
    return _number(tags.get("puma.parent_version"))


def _number(value: str | None) -> int | None:
    """Of a tag, which somebody may have written by hand."""
    return int(value) if value is not None and value.isdecimal() else None


def list_versions(client: MlflowClient, dataset: str) -> list[RegisteredVersion]:
    """Every version of ``dataset``'s model, oldest first; empty when there is none."""
    aliases = find_aliases(client, dataset)
    return [_row(client, item, aliases) for item in find_versions(client, dataset)]


def every_version(client: MlflowClient, query: str) -> list[ModelVersion]:
    """All versions that ``query`` finds, in the words of MLflow's search."""
    page = client.search_model_versions(query)
    found = list(page)
    while page.token:
        page = client.search_model_versions(query, page_token=page.token)
        found += page
    return found


def _metrics(client: MlflowClient, run_id: str | None) -> dict[str, float]:
    """The finite metrics of a run; none where the run was deleted for good."""
    from mlflow.exceptions import MlflowException

    try:
        logged = client.get_run(run_id).data.metrics if run_id else {}
    except MlflowException as error:
        if is_away(error):
            raise
        return {}
    return {name: value for name, value in logged.items() if math.isfinite(value)}


def _row(client: MlflowClient, found: ModelVersion, aliases: dict[str, int]) -> RegisteredVersion:
    """One version, also one that somebody made by hand: what it does not say is blank."""
    tags = dict(found.tags)
    created = datetime.fromtimestamp(found.creation_timestamp / 1000, UTC)
    return RegisteredVersion(
        version=int(found.version),
        aliases=aliases_of(int(found.version), aliases),
        method=tags.get("puma.method", ""),
        parent_version=parent_version(tags),
        n_removed=_number(tags.get("puma.n_removed")) or 0,
        deletion_digest=tags.get("puma.deletion_digest"),
        verdict=tags.get(VERDICT),
        metrics={
            name: value
            for name, value in _metrics(client, found.run_id).items()
            if name not in tags.get(UNRESOLVED, "").split()
        },
        data_digest=tags.get("puma.data_digest", ""),
        fingerprint=tags.get(FINGERPRINT, ""),
        run_id=found.run_id or "",
        created=created.isoformat(timespec="seconds"),
        promoted_at=tags.get(PROMOTED_AT),
        forced=tags.get(FORCED),
        superseded_by=_number(tags.get(SUPERSEDED_BY)),
    )


def find_row(client: MlflowClient, dataset: str, version_or_alias: str | int) -> RegisteredVersion:
    """The version of that number or alias. Raises RegistryError when there is none."""
    return choose_row(list_versions(client, dataset), dataset, version_or_alias)


def choose_row(
    rows: list[RegisteredVersion], dataset: str, version_or_alias: str | int
) -> RegisteredVersion:
    """The one of ``rows``, of ``dataset``, that :func:`find_row` returns."""
    row = look_up(rows, version_or_alias)
    if row is None:
        wanted = str(version_or_alias)
        raise RegistryError(f"{model_name(dataset)} has no version {wanted!r}; {_choose(rows)}")
    return row


def look_up(rows: list[RegisteredVersion], version_or_alias: str | int) -> RegisteredVersion | None:
    """By number, and then by alias, which may be a number, too; None when there is none."""
    wanted = str(version_or_alias)
    by_number = (row for row in rows if wanted == str(row.version))
    by_alias = (row for row in rows if wanted in row.aliases)
    return next(by_number, None) or next(by_alias, None)


def _choose(rows: list[RegisteredVersion]) -> str:
    if not rows:
        return "run `dvc repro` first"
    aliases = sorted({alias for row in rows for alias in row.aliases})
    return f"choose one of {', '.join([*(str(row.version) for row in rows), *aliases])}"
