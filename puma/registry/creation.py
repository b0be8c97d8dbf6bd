"""Creating one version from one model record: its run, its model and its tags."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puma.errors import RegistryError
from puma.html_table import in_words
from puma.lineage.records import FIRST_METRICS, ModelRecord
from puma.project.workspace import Workspace
from puma.registry.certificate.build import log_certificate
from puma.registry.chart import log_chart
from puma.registry.concurrency import create_model, create_next, keep_first, retry_overtaken
from puma.registry.description import describe, run_page
from puma.registry.logged_model import log_model
from puma.registry.preserved import BOUND_BY, NOTHING
from puma.registry.provenance import PIPELINE, Source, source_tags
from puma.registry.store import experiment_id
from puma.registry.store_errors import first_line, is_fault
from puma.registry.versions import (
    AUDITED_DELETION,
    AUDITED_WEIGHTS,
    BOUND,
    EVIDENCE,
    FINGERPRINT,
    FIRST,
    IDENTITY,
    ON_RUN,
    UNRESOLVED,
    VERDICT,
    VERDICT_REASON,
    WEIGHTS,
    find_fingerprint,
    model_name,
)
from puma.settings import ModelSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from torch import nn

ABSENT = "-"  # as MLflow's compare page shows a missing value
DATASET_DIGEST_LENGTH = 36  # MLflow's limit
OF_REMOVED_ROWS = ("attack_rate", "removed_")  # how the names of metrics of these rows alone begin
VERSIONS = "mlflow.modelVersions"  # the tag by which MLflow's page of a model finds its versions


@dataclass(frozen=True, eq=False)
class Draft:
    """What a version is made of.

    Attributes:
        record: What the model is and what was measured of it.
        model: On the CPU, in eval mode.
        figures: The folder of the audit's plots.
        tags: Tags besides those that every version has.
        adopted: MLflow's id of the logged model that this was adopted from, if any.
    """

    record: ModelRecord
    model: nn.Module
    figures: Path
    tags: Mapping[str, str] = field(default_factory=dict)
    adopted: str = ""


def pipeline_draft(workspace: Workspace, record: ModelRecord) -> Draft:
    """The draft of a version whose files the pipeline's stages wrote.

    Raises:
        RegistryError: As :func:`rebuild_model`.
    """
    model = rebuild_model(workspace, record)
    return Draft(record, model, workspace.figures(record.dataset, record.method))


def create_version(
    client: MlflowClient, workspace: Workspace, draft: Draft, source: Source = PIPELINE
) -> ModelVersion:
    """Log the run and the model of ``draft``, and register them.

    The version is created last, with all of its tags in one call: a process that dies before
    leaves no version. The run of a failed attempt ends as FAILED; that of a version lasts as long
    as its training or removal did, from when it is registered.

    Args:
        client: MLflow's client of the store.
        workspace: The project.
        draft: What to register.
        source: What registers it.

    Raises:
        RegistryError: Its parent is not registered (nothing is logged then), an MLflow run is
            active, or the audit's plots are missing.
    """
    record = draft.record
    import mlflow

    if mlflow.active_run():
        raise RegistryError(
            "an MLflow run is active in this process; call mlflow.end_run() first, because "
            "every version gets a run of its own"
        )
    parent = find_parent(client, record)
    run_tags = source_tags(workspace.root, source)
    run = client.create_run(experiment_id(client), run_name=run_name(record), tags=run_tags)
    run_id = run.info.run_id
    try:
        with mlflow.start_run(run_id=run_id):
            model_id, graph = log_model(client, draft.model, record, parent, run_tags)
            retry_overtaken(lambda: _log_inputs(record, parent, draft.adopted))
            client.log_batch(run_id, params=_params(record, parent))
            log_metrics(client, run_id, model_id, record)
            _log_curve(client, run_id, record)
            log_figures(client, run_id, record, draft.figures)
            log_chart(client, run_id, record)
            client.log_text(run_id, record.identity, IDENTITY)
            tags = {**_tags(record, parent), **graph, **draft.tags}
            tags |= log_certificate(client, record.dataset, tags, run_id, parent)
            for name in ON_RUN & tags.keys():
                client.set_tag(run_id, name, tags.pop(name))
        seconds = record.metrics.get("runtime_seconds")
        if seconds is not None:  # of an adopted model nobody knows
            client.set_terminated(run_id, end_time=run.info.start_time + round(1000 * seconds))
        made = _register(client, record, parent, run_id, model_id, tags)
    except BaseException as error:
        _end_as_failed(client, run_id, error)
        raise
    return keep_first(client, record.dataset, FINGERPRINT, record.fingerprint, made)


def run_name(record: ModelRecord) -> str:
    """The only text on MLflow's page that compares versions which may change with an audit."""
    verdict = "" if record.verdict is None else f": {in_words(record.verdict)}"
    return f"{record.method}{verdict} ({record.dataset})"


def _end_as_failed(client: MlflowClient, run_id: str, error: BaseException) -> None:
    """Mark the run. If the store is what failed, add that to ``error``."""
    try:
        client.set_terminated(run_id, status="FAILED")
    except Exception as second:
        if not is_fault(second):
            raise
        error.add_note(f"run {run_id} could not be marked as failed, either: {first_line(second)}")


def find_parent(client: MlflowClient, record: ModelRecord) -> ModelVersion | None:
    """The version that the model of ``record`` was made from; None for an original.

    Raises:
        RegistryError: It is not registered.
    """
    if record.parent is None:
        return None
    parent = find_fingerprint(client, record.dataset, record.parent)
    if parent is None:
        raise RegistryError(
            f"{record.dataset} {record.method}: its parent, fingerprint {record.parent[:12]}…, "
            "is not registered; run `dvc repro`, which registers the originals first"
        )
    return parent


def rebuild_model(workspace: Workspace, record: ModelRecord) -> nn.Module:
    """The model of ``record``, with its weights from the project, on the CPU, in eval mode.

    Raises:
        RegistryError: The file holds other weights than were recorded.
    """
    from puma.models import load_weights, new_model, weights_digest

    model = new_model(
        record.model, record.shape, record.outputs, seed=record.seed, task=record.task
    )
    path = workspace.weights(record.dataset, record.method)
    found = weights_digest(load_weights(model, path))
    if found != record.weights_digest:
        raise RegistryError(
            f"{path}: weights {found[:12]}…, but the model record of {record.dataset} "
            f"{record.method} says {record.weights_digest[:12]}…; the file was changed "
            "after its stage: run `dvc repro` to make it again"
        )
    return model.cpu().eval()  # exported in train mode, batch norm would change its buffers


def verdict_tags(record: ModelRecord) -> dict[str, str]:
    """The audit's conclusion; for a removal, also the weights and the request that it is about.

    Empty for a model that was not audited.
    """
    if record.verdict is None:
        return {}
    tags = {
        VERDICT: record.verdict,
        VERDICT_REASON: record.verdict_reason or "",
        EVIDENCE: record.evidence or "retrain",
        # An earlier audit may have measured them, and MLflow cannot delete a metric.
        UNRESOLVED: " ".join(record.unresolved) or ABSENT,
    }
    if record.deletion_digest is not None:
        # `read_model_records` refuses an audit of other weights or of another request.
        tags[AUDITED_WEIGHTS] = record.weights_digest
        tags[AUDITED_DELETION] = record.deletion_digest
    return tags


def log_figures(client: MlflowClient, run_id: str, record: ModelRecord, folder: Path) -> None:
    """Log the audit's plots, the PNG files in ``folder``; they replace earlier ones.

    Raises:
        RegistryError: The model was audited, and there are no plots.
    """
    if record.verdict is None:
        return
    plots = sorted(folder.glob("*.png"))
    if not plots:
        raise RegistryError(
            f"{folder}: has no plot of the audit of {record.dataset} {record.method}; run "
            "`dvc repro` to draw them"
        )
    for plot in plots:
        client.log_artifact(run_id, str(plot), "audit")


def log_metrics(client: MlflowClient, run_id: str, model_id: str, record: ModelRecord) -> None:
    """Log the metrics of ``record`` to the run and to the model, with the rows they are of.

    Those that are to be seen first are logged a second time, under names that MLflow sorts first.
    MLflow shows the values that were logged last, and keeps the others as history.
    """
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    first = [
        Metric(f"{FIRST}{name}", float(record.metrics[name]), now, step=0)
        for name in FIRST_METRICS
        if name in record.metrics
    ]
    metrics = [
        Metric(name, float(value), now, 0, model_id, *_dataset_of(name, record))
        for name, value in sorted(record.metrics.items())
    ]
    client.log_batch(run_id, metrics=[*first, *metrics])


def _dataset_of(metric: str, record: ModelRecord) -> tuple[str, str]:
    """Name and digest of the input that a metric is of."""
    digest = record.deletion_digest
    if digest is not None and metric.startswith(OF_REMOVED_ROWS):
        return _deletion_name(record), digest[:DATASET_DIGEST_LENGTH]
    return record.dataset, record.data_digest[:DATASET_DIGEST_LENGTH]


def _deletion_name(record: ModelRecord) -> str:
    return f"{record.dataset} deletion set"


def _log_curve(client: MlflowClient, run_id: str, record: ModelRecord) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    curve = enumerate(record.loss_curve, start=1)
    client.log_batch(run_id, metrics=[Metric("train_loss", loss, now, n) for n, loss in curve])


def _params(record: ModelRecord, parent: ModelVersion | None) -> list[Any]:
    """Run params: the page that compares versions shows them."""
    from mlflow.entities import Param

    values: dict[str, Any] = {
        **record.parameters,
        "method": record.method,
        "dataset": record.dataset,
        "model": _architecture(record.model),
        "seed": record.seed,
        "parent_version": parent.version if parent else ABSENT,
        "n_removed": record.n_removed,
        "n_subjects": record.n_subjects,
        "deletion_digest": record.deletion_digest or ABSENT,
        "data_digest": record.data_digest,
        "weights_digest": record.weights_digest,
    }
    return [Param(name, str(value)) for name, value in sorted(values.items())]


def _architecture(model: ModelSettings) -> str:
    """The model in a few words, for the page that compares versions."""
    sizes = {"mlp": model.hidden, "densenet": model.blocks}.get(model.name, ())
    single = f"{model.name} {'-'.join(map(str, sizes))}".rstrip()
    return single if model.members is None else f"{model.members} × {single}, {model.vote} vote"


def _tags(record: ModelRecord, parent: ModelVersion | None) -> dict[str, str]:
    tags = {
        FINGERPRINT: record.fingerprint,
        "puma.method": record.method,
        "puma.n_removed": str(record.n_removed),
        "puma.n_subjects": str(record.n_subjects),
        "puma.data_digest": record.data_digest,
        WEIGHTS: record.weights_digest,
        "puma.seed": str(record.seed),
    }
    tags |= verdict_tags(record)
    if record.task != "classification":
        tags["puma.task"] = record.task
    if record.target is not None:
        centre, scale = record.target
        tags |= {"puma.target_centre": repr(centre), "puma.target_scale": repr(scale)}
    if record.deletion_digest is not None:
        bound = str(record.parameters.get(BOUND_BY, NOTHING))
        if bound != NOTHING:
            tags[BOUND] = bound
        tags["puma.deletion_digest"] = record.deletion_digest
    if parent is not None:
        tags["puma.parent_version"] = str(parent.version)
    return tags


def _log_inputs(record: ModelRecord, parent: ModelVersion | None, adopted: str) -> None:
    """Log the data, the parent and the deletion set as inputs of the active run.

    The model that it was adopted from, too, if that has an id.

    Names and digests only: no rows, no ids, no path to them.
    """
    import mlflow
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.entities import LoggedModelInput

    def named(name: str, digest: str, kept: str) -> MetaDataset:
        source = CodeDatasetSource(tags={"kept": kept})
        return MetaDataset(source, name=name, digest=digest[:DATASET_DIGEST_LENGTH])

    data = named(record.dataset, record.data_digest, "in the project, outside MLflow")
    origin = LoggedModelInput(model_id=adopted) if adopted else None
    mlflow.log_input(data, context="training", model=origin)
    if parent is not None:
        deletion = named(
            _deletion_name(record),
            record.deletion_digest or ABSENT,
            "in the project, outside MLflow; the digest is keyed",
        )
        parent_id = parent.source.removeprefix("models:/")  # model_id is None on SQL stores
        mlflow.log_input(deletion, context="deletion", model=LoggedModelInput(model_id=parent_id))


def _register(
    client: MlflowClient,
    record: ModelRecord,
    parent: ModelVersion | None,
    run_id: str,
    model_id: str,
    tags: dict[str, str],
) -> ModelVersion:
    create_model(
        client,
        record.dataset,
        f"Models of {record.dataset}: the originals, and what each removal made of them. "
        "`champion` serves; `challenger` is the newest removal.",
    )
    made = create_next(
        client,
        record.dataset,
        source=f"models:/{model_id}",
        run_id=run_id,
        model_id=model_id,
        tags=tags,
        description=describe(record, parent, run_page(experiment_id(client), run_id)),
    )
    named = [{"name": model_name(record.dataset), "version": str(made.version)}]
    client.set_logged_model_tags(model_id, {VERSIONS: json.dumps(named)})
    return made
