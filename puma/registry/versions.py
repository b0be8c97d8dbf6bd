"""Reading the registry: which versions of a dataset's model there are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from puma.errors import RegistryError
from puma.registry.store import experiment_id
from puma.registry.store_errors import is_away

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import RunData
    from mlflow.entities.model_registry import ModelVersion

FINGERPRINT = "puma.fingerprint"
VERDICT = "puma.verdict"
VERDICT_REASON = "puma.verdict_reason"
EVIDENCE = "puma.evidence"  # what the retrained models of its audit were: pool or retrain
UNRESOLVED = "puma.unresolved"
WEIGHTS = "puma.weights_digest"
GRAPH = "puma.graph_digest"  # of the files of its logged model but for the weights
AUDITED_WEIGHTS = "puma.audited_weights"
AUDITED_DELETION = "puma.audited_deletion"
PROMOTED_AT = "puma.promoted_at"
FORCED = "puma.forced"
SUPERSEDED_BY = "puma.superseded_by"
CERTIFICATE = "puma.certificate"  # SHA-256 of the file; a version without it has none
CERTIFICATE_PAGE = "puma.certificate_page"
CERTIFICATE_REPLACED = "puma.certificate_replaced"
RETRAIN_DUE = "puma.retrain_due"  # why, of what the direct path made
REQUEST_VERDICT = "puma.request_verdict"  # of its own people alone, of a removal from a removal
BOUND = "puma.bound_by"  # whose budgets kept the removed rows from their targets
ADOPTED = "puma.adopted_from"  # the registered model that it is a copy of
ADOPTED_RUN = "puma.adopted_run"
IDEMPOTENCY_KEY = "puma.idempotency_key"  # of what the direct path made
# Tags that certificates and conditions are about, and no reader of a version's page: its run has
# them. A version of an earlier PUMA has them itself.
ON_RUN = frozenset(
    {
        *("puma.data_digest", "puma.n_subjects", "puma.seed", GRAPH, CERTIFICATE_PAGE),
        *(VERDICT_REASON, EVIDENCE, UNRESOLVED, AUDITED_WEIGHTS, AUDITED_DELETION),
    }
)
IDENTITY = "identity.json"  # an artifact of its run: what its fingerprint is the digest of
# MLflow sorts metrics by name, capitals first: copies of these lead its page of comparison.
FIRST = "Headline/"
CHAMPION = "champion"
CHALLENGER = "challenger"
AT_ONCE = 200  # runs in one query


@dataclass(frozen=True)
class RegisteredVersion:
    """One version of a dataset's registered model.

    Attributes:
        dataset: The dataset, whose registered model is :func:`model_name`.
        version: Its number.
        aliases: Sorted; such as "champion".
        method: What made it; empty for a version that PUMA did not register.
        parent_version: The version that it was made from; None for an original.
        n_removed: Training rows that it is without.
        deletion_digest: Keyed digest of its deletion set; None for an original.
        verdict: Of its audit; None for a version that was never audited.
        metrics: The latest values of its run, except those that its last audit could not tell, and
            the copies that MLflow shows first.
        data_digest: Of the dataset that it was trained on.
        fingerprint: Of its identity; empty for a version that PUMA did not register.
        run_id: Its run; empty if somebody registered it without one.
        source: Where MLflow finds the model: "models:/" and its id, for what PUMA registered.
        tags: All tags, as MLflow has them, with those that its run has for it.
        created: UTC in ISO 8601.
        promoted_at: Of its last promotion, UTC in ISO 8601.
        forced: The reason for promoting it although a condition failed.
        superseded_by: The version that took ``champion`` from it.
    """

    dataset: str
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
    source: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    promoted_at: str | None = None
    forced: str | None = None
    superseded_by: int | None = None

    @property
    def name(self) -> str:
        """The registered model that it is a version of."""
        return model_name(self.dataset)

    @property
    def model_id(self) -> str:
        """MLflow's id of its logged model."""
        return self.source.removeprefix("models:/")

    @property
    def weights_digest(self) -> str:
        """The digest of its weights when it was registered; empty if PUMA did not."""
        return self.tags.get(WEIGHTS, "")

    def to_dict(self) -> dict[str, Any]:
        """The fields that ``puma versions --json`` prints."""
        shown = asdict(self)
        for name in ("dataset", "source", "tags"):
            del shown[name]
        return {**shown, "aliases": list(self.aliases)}


def model_name(dataset: str) -> str:
    """The registered model whose versions are the models of ``dataset``."""
    return f"puma-{dataset}"


def _dataset(name: str) -> str:
    return name.removeprefix(model_name(""))


def find_fingerprint(client: MlflowClient, dataset: str, fingerprint: str) -> ModelVersion | None:
    """The version with this fingerprint, the oldest if there are several, or None."""
    return next(iter(find_tagged(client, dataset, FINGERPRINT, fingerprint)), None)


def every_tag(tags: Mapping[str, str], run_tags: Mapping[str, str]) -> dict[str, str]:
    """The tags of a version, and those that its run has for it."""
    return {**{name: run_tags[name] for name in ON_RUN & run_tags.keys()}, **tags}


def set_tags(client: MlflowClient, found: ModelVersion, tags: Mapping[str, str]) -> None:
    """Set tags of a version, each where its readers look first."""
    for name, value in tags.items():
        if name in ON_RUN and name not in found.tags:
            client.set_tag(found.run_id, name, value)
        else:
            client.set_model_version_tag(found.name, str(found.version), name, value)


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


def parent_version(tags: Mapping[str, str]) -> int | None:
    """The version that the tagged one was made from."""
    return _number(tags.get("puma.parent_version"))


def _number(value: str | None) -> int | None:
    """Of a tag, which somebody may have written by hand."""
    return int(value) if value is not None and value.isdecimal() else None


def list_versions(client: MlflowClient, dataset: str) -> list[RegisteredVersion]:
    """Every version of ``dataset``'s model, oldest first; empty when there is none."""
    aliases, found = find_aliases(client, dataset), find_versions(client, dataset)
    runs = _runs_of(client, {each.run_id for each in found if each.run_id})
    return [_described(each, aliases, runs) for each in found]


def get_version(
    client: MlflowClient, dataset: str, number_or_alias: str | int
) -> RegisteredVersion:
    """The version of that number or alias.

    Raises:
        RegistryError: There is none.
    """
    return choose_version(list_versions(client, dataset), dataset, number_or_alias)


def registered_version(client: MlflowClient, found: ModelVersion) -> RegisteredVersion:
    """``found`` with its aliases and the metrics of its run."""
    runs = _runs_of(client, {found.run_id} if found.run_id else set())
    return _described(found, find_aliases(client, _dataset(found.name)), runs)


def every_version(client: MlflowClient, query: str) -> list[ModelVersion]:
    """All versions that ``query`` finds, in the words of MLflow's search."""
    page = client.search_model_versions(query)
    found = list(page)
    while page.token:
        page = client.search_model_versions(query, page_token=page.token)
        found += page
    return found


def _runs_of(client: MlflowClient, run_ids: set[str]) -> dict[str, RunData]:
    """Run -> what it holds; nothing of a run that was deleted for good.

    Some hundreds of versions at once: a query for each would take seconds.
    """
    from mlflow.entities import ViewType

    experiment, wanted, found = [experiment_id(client)], sorted(run_ids), {}
    for start in range(0, len(wanted), AT_ONCE):
        names = ", ".join(f"'{run_id}'" for run_id in wanted[start : start + AT_ONCE])
        for run in client.search_runs(
            experiment,
            f"attributes.run_id IN ({names})",
            run_view_type=ViewType.ALL,
            max_results=AT_ONCE,
        ):
            found[run.info.run_id] = run.data
    for run_id in run_ids - found.keys():  # of somebody's own experiment
        data = _run_data(client, run_id)
        if data is not None:
            found[run_id] = data
    return found


def _run_data(client: MlflowClient, run_id: str) -> RunData | None:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_run(run_id).data
    except MlflowException as error:
        if is_away(error):
            raise
        return None


def _described(
    found: ModelVersion, aliases: dict[str, int], runs: Mapping[str, RunData]
) -> RegisteredVersion:
    """Also of a version that somebody made by hand: what it does not say is blank."""
    run = runs.get(found.run_id or "")
    tags = every_tag(found.tags, {} if run is None else run.tags)
    metrics = {} if run is None else run.metrics
    hidden = tags.get(UNRESOLVED, "").split()
    created = datetime.fromtimestamp(found.creation_timestamp / 1000, UTC)
    return RegisteredVersion(
        dataset=_dataset(found.name),
        version=int(found.version),
        aliases=aliases_of(int(found.version), aliases),
        method=tags.get("puma.method", ""),
        parent_version=parent_version(tags),
        n_removed=_number(tags.get("puma.n_removed")) or 0,
        deletion_digest=tags.get("puma.deletion_digest"),
        verdict=tags.get(VERDICT),
        metrics={
            name: value
            for name, value in metrics.items()
            if math.isfinite(value) and name not in hidden and not name.startswith(FIRST)
        },
        data_digest=tags.get("puma.data_digest", ""),
        fingerprint=tags.get(FINGERPRINT, ""),
        run_id=found.run_id or "",
        created=created.isoformat(timespec="seconds"),
        source=found.source or "",
        tags=tags,
        promoted_at=tags.get(PROMOTED_AT),
        forced=tags.get(FORCED),
        superseded_by=_number(tags.get(SUPERSEDED_BY)),
    )


def choose_version(
    versions: Sequence[RegisteredVersion], dataset: str, number_or_alias: str | int
) -> RegisteredVersion:
    """The one of ``versions``, all those of ``dataset``, that has this number or alias.

    Raises:
        RegistryError: There is none.
    """
    found = match_version(versions, number_or_alias)
    if found is None:
        raise RegistryError(
            f"{model_name(dataset)} has no version {str(number_or_alias)!r}; {_choice(versions)}"
        )
    return found


def match_version(
    versions: Sequence[RegisteredVersion], number_or_alias: str | int
) -> RegisteredVersion | None:
    """The one of that number; else the one of that alias, which may look like a number; or None."""
    wanted = str(number_or_alias)
    by_number = (version for version in versions if wanted == str(version.version))
    by_alias = (version for version in versions if wanted in version.aliases)
    return next(by_number, None) or next(by_alias, None)


def _choice(versions: Sequence[RegisteredVersion]) -> str:
    if not versions:
        return "run `dvc repro` first"
    aliases = sorted({alias for version in versions for alias in version.aliases})
    numbers = (str(version.version) for version in versions)
    return f"choose one of {', '.join([*numbers, *aliases])}"
