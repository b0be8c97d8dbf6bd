"""One receipt becomes one model version: its model, its run, its lineage, whole or absent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from puma.errors import RegistryError
from puma.lineage.records import ModelRecord
from puma.project.workspace import Workspace
from puma.registry.certificate.build import log_certificate
from puma.registry.concurrency import create_model, create_next, persist, settle
from puma.registry.description import describe
from puma.registry.export import exports_through_memory
from puma.registry.provenance import source_tags
from puma.registry.store import experiment_id
from puma.registry.store_errors import first_line, is_fault
from puma.registry.versions import (
    AUDITED_DELETION,
    AUDITED_WEIGHTS,
    FINGERPRINT,
    IDENTITY,
    UNRESOLVED,
    VERDICT,
    VERDICT_REASON,
    WEIGHTS,
    find_fingerprint,
)
from puma.settings import ModelSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from torch import nn

ABSENT = "-"  # what MLflow's compare page shows for a value that is not there
DATASET_DIGEST_LENGTH = 36  # MLflow's limit


@dataclass(frozen=True, eq=False)
class Draft:
    """What a version is made of: its receipt, its model on the CPU in eval mode, the folder of
    the audit's pictures, and tags besides those that every version has."""

    receipt: ModelRecord
    model: nn.Module
    figures: Path
    tags: Mapping[str, str] = field(default_factory=dict)


def staged(workspace: Workspace, receipt: ModelRecord) -> Draft:
    """The draft of what the pipeline's stages left. Raises as :func:`rebuild_model` does."""
    model = rebuild_model(workspace, receipt)
    return Draft(receipt, model, workspace.figures(receipt.dataset, receipt.method))


def create_version(client: MlflowClient, workspace: Workspace, draft: Draft) -> ModelVersion:
    """Log the run and the model of ``draft``, and register them.

    The version is created last, with all of its tags in the one call, so that a process that
    dies on the way leaves none; the run of a failed attempt ends as FAILED. Raises
    RegistryError, before anything is logged, for a parent that is not registered.
    """
    receipt = draft.receipt
    import mlflow

    if mlflow.active_run():
        raise RegistryError(
            "an MLflow run is active in this process; call mlflow.end_run() first, because "
            "every version gets a run of its own"
        )
    parent = find_parent(client, receipt)
    source = source_tags(workspace.root)
    run = client.create_run(
        experiment_id(client), run_name=f"{receipt.dataset} {receipt.method}", tags=source
    )
    run_id = run.info.run_id
    try:
        with mlflow.start_run(run_id=run_id):
            with exports_through_memory():
                model_id = _log_model(draft.model, receipt, source)
            persist(lambda: _log_inputs(receipt, parent))
            client.log_batch(run_id, params=_params(receipt, parent))
            log_metrics(client, run_id, model_id, receipt)
            _log_curve(client, run_id, receipt)
            log_figures(client, run_id, receipt, draft.figures)
            client.log_text(run_id, receipt.identity, IDENTITY)
            tags = {**_tags(receipt, parent), **draft.tags}
            tags |= log_certificate(client, receipt.dataset, tags, run_id, parent)
        made = _register(client, receipt, parent, run_id, model_id, tags)
    except BaseException as error:
        _end_as_failed(client, run_id, error)
        raise
    return settle(client, receipt.dataset, FINGERPRINT, receipt.fingerprint, made)


def _end_as_failed(client: MlflowClient, run_id: str, error: BaseException) -> None:
    """The store may be what failed: then ``error`` says so, and the run stays as it is."""
    try:
        client.set_terminated(run_id, status="FAILED")
    except Exception as second:
        if not is_fault(second):
            raise
        error.add_note(f"run {run_id} could not be marked as failed, either: {first_line(second)}")


def find_parent(client: MlflowClient, receipt: ModelRecord) -> ModelVersion | None:
    """The version that ``receipt`` was made from; None for an original."""
    if receipt.parent is None:
        return None
    parent = find_fingerprint(client, receipt.dataset, receipt.parent)
    if parent is None:
        raise RegistryError(
            f"{receipt.dataset} {receipt.method}: its parent, fingerprint {receipt.parent[:12]}…, "
            "is not registered; run `dvc repro`, which registers the originals first"
        )
    return parent


def rebuild_model(workspace: Workspace, receipt: ModelRecord) -> nn.Module:
    """The module of ``receipt`` with its weights, on the CPU, in eval mode.

    Raises RegistryError when the weights on disk are not those that the receipt speaks of.
    """
    from puma.models import load_weights, new_model, weights_digest

    model = new_model(receipt.model, receipt.shape, len(receipt.classes), seed=receipt.seed)
    path = workspace.weights(receipt.dataset, receipt.method)
    found = weights_digest(load_weights(model, path))
    if found != receipt.weights_digest:
        raise RegistryError(
            f"{path}: weights {found[:12]}…, but the receipt of {receipt.dataset} "
            f"{receipt.method} is for {receipt.weights_digest[:12]}…; the file was changed "
            "after its stage: run `dvc repro` to make it again"
        )
    return model.cpu().eval()  # exported in train mode, batch norm would change its buffers


def verdict_tags(receipt: ModelRecord) -> dict[str, str]:
    """What the audit concluded, and of a removal, which weights and request it is about.

    None for a receipt that was not audited.
    """
    if receipt.verdict is None:
        return {}
    tags = {
        VERDICT: receipt.verdict,
        VERDICT_REASON: receipt.verdict_reason or "",
        # An earlier audit may have told them, and MLflow has no way to take a metric back.
        UNRESOLVED: " ".join(receipt.unresolved) or ABSENT,
    }
    if receipt.deletion_digest is not None:
        # `read_model_records` takes no audit of other weights or of another request.
        tags[AUDITED_WEIGHTS] = receipt.weights_digest
        tags[AUDITED_DELETION] = receipt.deletion_digest
    return tags


def log_figures(client: MlflowClient, run_id: str, receipt: ModelRecord, folder: Path) -> None:
    """Put the audit's pictures, and nothing else, beside the model, in place of earlier ones.

    Raises RegistryError for an audited receipt without any.
    """
    if receipt.verdict is None:
        return
    pictures = sorted(folder.glob("*.png"))
    if not pictures:
        raise RegistryError(
            f"{folder}: holds no picture of the audit of {receipt.dataset} {receipt.method}; run "
            "`dvc repro` to draw them"
        )
    for picture in pictures:
        client.log_artifact(run_id, str(picture), "audit")


def log_metrics(client: MlflowClient, run_id: str, model_id: str, receipt: ModelRecord) -> None:
    """Log the receipt's metrics to the run and to the model.

    Logged again, the new values are the ones shown and the old stay in the history.
    """
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [
        Metric(name, float(value), now, step=0, model_id=model_id)
        for name, value in sorted(receipt.metrics.items())
    ]
    client.log_batch(run_id, metrics=metrics)


def _log_curve(client: MlflowClient, run_id: str, receipt: ModelRecord) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    curve = enumerate(receipt.loss_curve, start=1)
    client.log_batch(run_id, metrics=[Metric("train_loss", loss, now, n) for n, loss in curve])


def _params(receipt: ModelRecord, parent: ModelVersion | None) -> list[Any]:
    """Run params, because they are what the page that compares versions shows."""
    from mlflow.entities import Param

    values: dict[str, Any] = {
        **receipt.parameters,
        "method": receipt.method,
        "dataset": receipt.dataset,
        "model": _architecture(receipt.model),
        "seed": receipt.seed,
        "parent_version": parent.version if parent else ABSENT,
        "n_removed": receipt.n_removed,
        "n_subjects": receipt.n_subjects,
        "deletion_digest": receipt.deletion_digest or ABSENT,
        "data_digest": receipt.data_digest,
        "weights_digest": receipt.weights_digest,
    }
    return [Param(name, str(value)) for name, value in sorted(values.items())]


def _architecture(model: ModelSettings) -> str:
    """The model in a few words, as the page that compares versions shows it."""
    sizes = {"mlp": model.hidden, "densenet": model.blocks}.get(model.name, ())
    single = f"{model.name} {'-'.join(map(str, sizes))}".rstrip()
    return single if model.members is None else f"{model.members} × {single}, {model.vote} vote"


def _tags(receipt: ModelRecord, parent: ModelVersion | None) -> dict[str, str]:
    tags = {
        FINGERPRINT: receipt.fingerprint,
        "puma.method": receipt.method,
        "puma.n_removed": str(receipt.n_removed),
        "puma.n_subjects": str(receipt.n_subjects),
        "puma.data_digest": receipt.data_digest,
        WEIGHTS: receipt.weights_digest,
        "puma.predictions_digest": receipt.predictions_digest,
        "puma.seed": str(receipt.seed),
    }
    tags |= verdict_tags(receipt)
    if receipt.deletion_digest is not None:
        tags["puma.deletion_digest"] = receipt.deletion_digest
    if parent is not None:
        tags["puma.parent_version"] = str(parent.version)
        tags["puma.parent_fingerprint"] = parent.tags[FINGERPRINT]
    return tags


def _log_model(model: nn.Module, receipt: ModelRecord, tags: dict[str, str]) -> str:
    """Export the model to the active run as pt2, which holds no pickle; its id."""
    import mlflow.pytorch
    import numpy as np

    info = mlflow.pytorch.log_model(
        model,
        name="model",
        serialization_format="pt2",
        # Stored beside the model, so never a real record. Two rows: the export takes a batch
        # of one for a constant.
        input_example=np.zeros((2, *receipt.shape), dtype=np.float32),
        # Named, because MLflow would otherwise import the model in a fresh process to find out.
        pip_requirements=[f"torch=={installed_version('torch')}"],
        tags=tags,
    )
    return str(info.model_id)


def _log_inputs(receipt: ModelRecord, parent: ModelVersion | None) -> None:
    """What the active run's model was made from: its data, its parent and its deletion set.

    Names and digests only; neither rows nor ids nor a path to them.
    """
    import mlflow
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.entities import LoggedModelInput

    def named(name: str, digest: str, kept: str) -> MetaDataset:
        source = CodeDatasetSource(tags={"kept": kept})
        return MetaDataset(source, name=name, digest=digest[:DATASET_DIGEST_LENGTH])

    data = named(receipt.dataset, receipt.data_digest, "in the project, outside MLflow")
    mlflow.log_input(data, context="training")
    if parent is not None:
        deletion = named(
            f"{receipt.dataset} deletion set",
            receipt.deletion_digest or ABSENT,
            "in the project, outside MLflow; the digest is keyed",
        )
        parent_id = parent.source.removeprefix("models:/")  # model_id is None on SQL stores
        mlflow.log_input(deletion, context="deletion", model=LoggedModelInput(model_id=parent_id))


def _register(
    client: MlflowClient,
    receipt: ModelRecord,
    parent: ModelVersion | None,
    run_id: str,
    model_id: str,
    tags: dict[str, str],
) -> ModelVersion:
    create_model(
        client,
        receipt.dataset,
        f"Models of {receipt.dataset}: the originals, and what each removal made of them. "
        "`champion` serves; `challenger` is the newest removal.",
    )
    return create_next(
        client,
        receipt.dataset,
        source=f"models:/{model_id}",
        run_id=run_id,
        model_id=model_id,
        tags=tags,
        description=describe(receipt, parent),
    )
