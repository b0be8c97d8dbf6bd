"""Models and deletion sets, as one stage of the pipeline writes and another reads them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from puma.data.base import Dataset
from puma.errors import ModelError
from puma.lineage.records import ModelIdentity, ModelRecord
from puma.models import (
    Ensemble,
    load_weights,
    new_model,
    predictions,
    save_weights,
    weights_digest,
)
from puma.models.custom import require_exportable
from puma.models.tasks import likelihood_of
from puma.project.files import sha256, write_text
from puma.project.workspace import Workspace
from puma.references import Pool
from puma.removal.results import Removal, Trained
from puma.requests.archive import find_data
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key
from puma.settings import ORIGINAL, OWN_CODE, ModelSettings, Settings, original_of


def load_trained(
    workspace: Workspace, name: str, original: str = ORIGINAL, *, with_pool: bool = False
) -> Trained:
    """Load an original of dataset ``name`` with its data, as the train stage left them.

    Args:
        workspace: The project.
        name: The dataset.
        original: Which original.
        with_pool: Whether to load its pool, too, for a method that uses it.

    Raises:
        AuditError: There is no pool, or it is of other data.
        DataError: The data are absent, or not those that the original was trained on.
        ModelError: The weights are not those of its model record.
    """
    record = ModelRecord.read(workspace.model_record(name, original))
    dataset = find_data(workspace, name, record.data_digest)
    records = workspace.records(name, original)
    return Trained(
        load_model(workspace, name, original),
        dataset,
        initial_model(record),
        original=original,
        pool=load_pool(workspace, dataset) if with_pool else None,
        records=records if records.exists() else None,
    )


def load_pool(workspace: Workspace, dataset: Dataset) -> Pool:
    """Load what the pool stage trained on ``dataset``.

    Raises:
        AuditError: It is absent, or of other data.
    """
    pool = Pool.load(workspace.pool(dataset.name))
    pool.require(dataset)
    return pool


def load_model(workspace: Workspace, name: str, version: str) -> nn.Module:
    """Load ``version`` of dataset ``name``, in eval mode.

    Raises:
        ModelError: The weights are absent, or not those of its model record.
    """
    record = ModelRecord.read(workspace.model_record(name, version))
    path = workspace.weights(name, version)
    model = load_weights(initial_model(record), path).eval()
    if weights_digest(model) != record.weights_digest:
        raise ModelError(f"{path} is not what its model record describes; run `dvc repro`")
    return model


def initial_model(identity: ModelIdentity) -> nn.Module:
    """Build the model from which the training of ``identity``, or of its original, began."""
    return new_model(
        identity.model, identity.shape, identity.outputs, seed=identity.seed, task=identity.task
    )


def load_deletion_set(workspace: Workspace, dataset: Dataset) -> DeletionSet:
    """Read the request that the request stage validated.

    Raises:
        DeletionError: It is not a request of this dataset that params.yaml allows.
    """
    return DeletionSet.read(
        workspace.deletion_set(dataset.name),
        dataset,
        allow_class_removal=workspace.settings.deletion.allow_class_removal,
    )


def record_original(workspace: Workspace, trained: Trained) -> ModelRecord:
    """Save the weights of an original, its model record and its fingerprint.

    What its method records during training belongs in ``workspace.records``: give ``fit`` that
    folder.

    Raises:
        ModelError: It is of the user's own, and could not be registered.
    """
    settings = workspace.settings.for_dataset(trained.dataset.name)
    if OWN_CODE in settings.model.name:
        shape = tuple(trained.dataset.train.features.shape[1:])
        require_exportable(settings.model.name, trained.predictor, shape)
    described = original_record(trained, settings, metrics={"runtime_seconds": trained.seconds})
    record = _store(workspace, described, trained.predictor)
    identity = workspace.identity(trained.dataset.name, trained.original)
    write_text(identity, record.fingerprint + "\n")
    return record


def original_record(
    trained: Trained, settings: Settings, *, metrics: Mapping[str, float]
) -> ModelRecord:
    """Describe an original that was trained as ``settings``, those of its dataset, say."""
    return _record(
        trained.predictor,
        trained.dataset,
        method=trained.original,
        seed=settings.seed,
        model=_architecture(settings.model, trained.predictor),
        parameters={**settings.training.recorded(), **trained.parameters},
        metrics=dict(metrics),
        loss_curve=trained.history.loss if trained.history else (),
    )


def record_removal(workspace: Workspace, removal: Removal) -> ModelRecord:
    """Save the weights after a removal, and its model record.

    Raises:
        ModelError: As :func:`removal_record`.
    """
    deletion_set = removal.deletion_set
    name = deletion_set.dataset.name
    parent = ModelRecord.read(workspace.model_record(name, original_of(removal.method)))
    record = removal_record(removal, deletion_set, parent, project_key(workspace.key))
    return _store(workspace, record, removal.predictor)


def removal_record(
    removal: Removal, everybody: DeletionSet, parent: ModelIdentity, key: bytes
) -> ModelRecord:
    """Describe the model that ``removal`` made of ``parent``.

    Args:
        removal: The removal.
        everybody: The people of the removal, and those whom the parent was without already.
        parent: The version that it removed from.
        key: The project's key, for the digest of ``everybody``.

    Raises:
        ModelError: It removed from other weights than those of ``parent``.
    """
    if removal.parent_weights != parent.weights_digest:
        raise ModelError(
            f"{removal.method} removed from other weights than those of {parent.method} of "
            f"{parent.dataset!r}; load the model with load_trained, or record the new one first"
        )
    return _record(
        removal.predictor,
        everybody.dataset,
        method=removal.method,
        seed=parent.seed,
        model=parent.model,
        parent=parent.fingerprint,
        deletion_digest=everybody.digest(key),
        n_removed=len(everybody),
        n_subjects=len(everybody.subject_ids),
        parameters=dict(removal.parameters),
        metrics={
            "runtime_seconds": removal.seconds,
            "criterion_before": removal.criterion_before,
            "criterion_after": removal.criterion_after,
            "criterion_drift": removal.criterion_drift,
            **{name: value for each in removal.preserved for name, value in each.metrics.items()},
            **removal.diagnostics,
        },
        loss_curve=removal.history.loss if removal.history else (),
    )


def _architecture(settings: ModelSettings, model: nn.Module) -> ModelSettings:
    """The settings of ``model``, whose members were each built from ``settings``."""
    if not isinstance(model, Ensemble):
        return settings
    return settings.model_copy(update={"members": len(model.members), "vote": model.vote})


def _record(
    predictor: nn.Module, dataset: Dataset, *, metrics: dict[str, float], **described: object
) -> ModelRecord:
    predicted = predictions.predicted(predictor, dataset.test)
    labels = likelihood_of(dataset.task).labels(predicted).numpy()
    return ModelRecord.model_validate(
        {
            "dataset": dataset.name,
            "data_digest": dataset.digest,
            "weights_digest": weights_digest(predictor),
            "predictions_digest": sha256(labels.tobytes()),
            "shape": tuple(dataset.train.features.shape[1:]),
            "classes": dataset.classes,
            "task": dataset.task.name,
            "target": (dataset.task.centre, dataset.task.scale)
            if dataset.task.is_regression
            else None,
            "metrics": {**predictions.test_metrics(predictor, dataset.test), **metrics},
            **described,
        }
    )


def _store(workspace: Workspace, record: ModelRecord, model: nn.Module) -> ModelRecord:
    """Write the weights, then the record, which says where they are."""
    path = workspace.weights(record.dataset, record.method)
    save_weights(model, path)
    stored = record.model_copy(update={"weights": path.relative_to(workspace.root).as_posix()})
    stored.write(workspace.model_record(record.dataset, record.method))
    return stored
