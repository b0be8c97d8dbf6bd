"""What the pipeline's stages hand to each other: models, deletion sets, and their receipts."""

from __future__ import annotations

import numpy as np
from torch import nn

from puma.data.base import Dataset
from puma.errors import ModelError
from puma.lineage.records import ModelIdentity, ModelRecord
from puma.models import (
    Ensemble,
    build_model,
    load_weights,
    predictions,
    save_weights,
    weights_digest,
)
from puma.project.files import sha256, write_text
from puma.project.workspace import Workspace
from puma.removal.base import Removal, Trained
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key
from puma.settings import ORIGINAL, ModelSettings, original_of


def load_trained(workspace: Workspace, name: str, original: str = ORIGINAL) -> Trained:
    """The named original of dataset ``name`` as the train stage left it.

    Raises ModelError when the weights or the data are not those of the train stage's receipt.
    """
    dataset = Dataset.load(workspace.data(name))
    receipt = ModelRecord.read(workspace.model_record(name, original))
    if receipt.data_digest != dataset.digest:
        raise ModelError(
            f"the model of {name!r} was trained on other data than {workspace.data(name)} "
            "holds; run `dvc repro` to train it again"
        )
    initial = build_model(receipt.model, dataset, seed=receipt.seed)
    records = workspace.records(name, original)
    return Trained(
        load_model(workspace, name, original),
        dataset,
        initial,
        original=original,
        records=records if records.exists() else None,
    )


def load_model(workspace: Workspace, name: str, version: str) -> nn.Module:
    """The weights of ``version`` of dataset ``name``, in eval mode.

    Raises ModelError when they are not the ones of the receipt.
    """
    receipt = ModelRecord.read(workspace.model_record(name, version))
    dataset = Dataset.load(workspace.data(name))
    path = workspace.weights(name, version)
    model = load_weights(build_model(receipt.model, dataset, seed=receipt.seed), path).eval()
    if weights_digest(model) != receipt.weights_digest:
        raise ModelError(f"{path} is not what its receipt describes; run `dvc repro`")
    return model


def load_deletion_set(workspace: Workspace, dataset: Dataset) -> DeletionSet:
    """The validated request of the request stage."""
    return DeletionSet.read(
        workspace.deletion_set(dataset.name),
        dataset,
        allow_class_removal=workspace.settings.deletion.allow_class_removal,
    )


def record_original(workspace: Workspace, trained: Trained) -> ModelRecord:
    """Save the weights of an original and the receipt that describes it.

    Its records, if its method makes any, belong in ``workspace.records``: give ``fit`` that
    folder.
    """
    settings = workspace.settings
    described = _receipt(
        trained.predictor,
        trained.dataset,
        method=trained.original,
        seed=settings.seed,
        model=_architecture(settings.model, trained.predictor),
        parameters={**settings.training.model_dump(), **trained.parameters},
        metrics={"runtime_seconds": trained.seconds},
        loss_curve=trained.history.loss if trained.history else (),
    )
    receipt = _store(workspace, described, trained.predictor)
    identity = workspace.identity(trained.dataset.name, trained.original)
    write_text(identity, receipt.fingerprint + "\n")
    return receipt


def record_removal(workspace: Workspace, removal: Removal) -> ModelRecord:
    """Save the weights after a removal and the receipt that leads to its parent and its set."""
    deletion_set = removal.deletion_set
    name = deletion_set.dataset.name
    parent = ModelRecord.read(workspace.model_record(name, original_of(removal.method)))
    receipt = removal_record(removal, deletion_set, parent, project_key(workspace.key))
    return _store(workspace, receipt, removal.predictor)


def removal_record(
    removal: Removal, everybody: DeletionSet, parent: ModelIdentity, key: bytes
) -> ModelRecord:
    """What ``removal`` made of ``parent``: a model without ``everybody``.

    These are the people of the removal and those whom its parent was without already.
    Raises ModelError when it removed from other weights than the parent's.
    """
    if removal.parent_weights != parent.weights_digest:
        raise ModelError(
            f"{removal.method} removed from other weights than those of {parent.method} of "
            f"{parent.dataset!r}; load the model with load_trained, or record the new one first"
        )
    return _receipt(
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
            **removal.diagnostics,
        },
        loss_curve=removal.history.loss if removal.history else (),
    )


def _architecture(settings: ModelSettings, model: nn.Module) -> ModelSettings:
    """What ``model`` is, when each of its members was built from ``settings``."""
    if not isinstance(model, Ensemble):
        return settings
    return settings.model_copy(update={"members": len(model.members), "vote": model.vote})


def _receipt(
    predictor: nn.Module, dataset: Dataset, *, metrics: dict[str, float], **described: object
) -> ModelRecord:
    predicted = predictions.logits(predictor, dataset.test.features).argmax(1).numpy()
    return ModelRecord.model_validate(
        {
            "dataset": dataset.name,
            "data_digest": dataset.digest,
            "weights_digest": weights_digest(predictor),
            "predictions_digest": sha256(predicted.astype(np.int64).tobytes()),
            "shape": tuple(dataset.train.features.shape[1:]),
            "classes": dataset.classes,
            "metrics": {"accuracy": predictions.accuracy(predictor, dataset.test), **metrics},
            **described,
        }
    )


def _store(workspace: Workspace, receipt: ModelRecord, model: nn.Module) -> ModelRecord:
    """Write the weights, then the receipt, which says where they are."""
    path = workspace.weights(receipt.dataset, receipt.method)
    save_weights(model, path)
    stored = receipt.model_copy(update={"weights": path.relative_to(workspace.root).as_posix()})
    stored.write(workspace.model_record(receipt.dataset, receipt.method))
    return stored
