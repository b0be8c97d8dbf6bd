"""``puma adopt``: a model that somebody else trained becomes a version of this project."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from puma.data import Dataset
from puma.data.base import Examples
from puma.data.task import Task
from puma.errors import AbsentError, ModelError, PumaError, RegistryError
from puma.influence.derivative_support import require_supported
from puma.lineage.models import original_record
from puma.lineage.records import ADOPTED_FROM
from puma.models import build_model, predictions
from puma.models.custom import require_exportable
from puma.models.own_loop import loop_digest
from puma.models.tasks import hits, likelihood_of
from puma.models.training import train
from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, Registry
from puma.registry.creation import Draft
from puma.registry.foreign import ForeignModel
from puma.registry.versions import ADOPTED, ADOPTED_RUN
from puma.removal import Trained
from puma.removal.base import LOOP_DIGEST
from puma.settings import OWN_CODE, Settings

EXPLAINED = 0.02  # of a constant answer's loss; an untrained network may reach a hundredth
CLOSE = 1e-3  # relative; another order of the same sums rounds otherwise
COMPARED = 256  # rows on which the registered module and the class are compared
FEW = 64  # rows on which a training is tried
SURE = 4.0  # standard errors


@dataclass(frozen=True)
class Fit:
    """How well a model answers for some rows, beside the best constant answer.

    Attributes:
        rows: How many.
        metric: The task's own: accuracy, or r2.
        value: Of the metric.
        constant_value: That of the most frequent class; of a regression, of the mean.
        loss: Mean loss, in nats.
        constant_loss: That of the classes' frequencies; of a regression, of the mean.
        balanced_loss: The mean over the classes of their mean losses; of a regression, the loss.
        balanced_constant_loss: That of equal probabilities of the classes that there are; of a
            regression, of the mean.
    """

    rows: int
    metric: str
    value: float
    constant_value: float
    loss: float
    constant_loss: float
    balanced_loss: float
    balanced_constant_loss: float

    @property
    def makes_sense(self) -> bool:
        """Whether the loss, plain or with equal weights of the classes, beats the constant's."""
        pairs = (
            (self.loss, self.constant_loss),
            (self.balanced_loss, self.balanced_constant_loss),
        )
        return any(loss <= (1 - EXPLAINED) * constant for loss, constant in pairs)


@dataclass(frozen=True)
class Adoption:
    """What became of an adoption.

    Attributes:
        version: The version.
        created: Whether this call made it; else it was adopted before.
        origin: How MLflow names the model that it was adopted from.
        train: How it fits the training rows.
        test: How it fits the test rows.
        notes: What the user has to know before removing from it.
    """

    version: RegisteredVersion
    created: bool
    origin: str
    train: Fit
    test: Fit
    notes: tuple[str, ...]


def adopt(
    workspace: Workspace,
    dataset: str,
    name: str,
    version_or_alias: str,
    *,
    allow_pickle: bool = False,
) -> Adoption:
    """Make an original of this project of a model that somebody else trained and registered.

    The network is built as params.yaml says for the dataset, and takes the weights. Retraining,
    the pool and the audits' models are trained as params.yaml says, too: a short training is
    tried. Whether theirs was trained so, nothing here can tell.

    Args:
        workspace: The project; its dataset is prepared.
        dataset: The dataset whose training rows the model was trained on.
        name: Of the registered model.
        version_or_alias: Its version.
        allow_pickle: See :func:`puma.registry.foreign.load_foreign`: this RUNS what is in it.

    Raises:
        AbsentError: The dataset is not prepared.
        RegistryError: The model is not there or cannot be read, or was erased here before.
        ModelError: The weights do not fit the network of params.yaml, the network does not compute
            what was registered, its predictions of the training rows make no sense, or it cannot
            be trained.

        In all of these cases nothing is registered.
    """
    settings = workspace.settings.for_dataset(dataset)
    path = workspace.data(dataset)
    if not path.exists():
        raise AbsentError(f"{path} is not here; run `dvc repro prepare@{dataset}` to prepare it")
    data = Dataset.load(path)
    initial = build_model(settings.model, data, seed=settings.seed)
    registry = Registry.open(workspace, create=True)
    found = registry.load_foreign(name, version_or_alias, allow_pickle=allow_pickle)
    model = _with_weights(settings, data, found)
    _require_same(found, settings.model.name, model, data.train.features[:COMPARED])
    in_training, in_test = (
        _checked_fit(found.uri, model, each) for each in (data.train, data.test)
    )
    _require_sense(found.uri, model, data.train, dataset, in_training)
    if OWN_CODE in settings.model.name:
        require_exportable(settings.model.name, model, tuple(data.train.features.shape[1:]))
    _require_trainable(settings, data)
    digest = loop_digest(settings.training)
    trained = Trained(
        model,
        data,
        initial,
        parameters={
            ADOPTED_FROM: found.uri,
            **({} if digest is None else {LOOP_DIGEST: digest}),
        },
    )
    record = original_record(trained, settings, metrics={})
    erased = registry.erased_before(record)
    if erased is not None:
        raise RegistryError(
            f"{found.uri} has the weights of version {erased.version}, which was erased on "
            f"{erased.when}: it is not registered again; adopt a model that was trained without "
            "the people who are to be forgotten"
        )
    tags = {ADOPTED: found.uri, ADOPTED_RUN: found.run_id or "-"}
    with tempfile.TemporaryDirectory(prefix="puma-") as folder:  # nothing was audited: no plots
        draft = Draft(record, model.cpu().eval(), Path(folder), tags, adopted=found.model_id)
        version, created = registry.register_adopted(draft)
    notes = tuple(_notes(model, data))
    return Adoption(version, created, found.uri, in_training, in_test, notes)


def fit_of(outputs: Tensor, labels: Tensor, task: Task) -> Fit:
    """Measure a model's (n, K) outputs for rows with (n,) labels, by their task."""
    likelihood = likelihood_of(task)
    metric = likelihood.metrics[0]
    value = likelihood.measured(likelihood.predictions(outputs), labels, task).get(metric, math.nan)
    losses = likelihood.losses(outputs.double(), labels)
    loss = losses.mean().item()
    if not likelihood.has_classes:
        constant = labels.double().var(correction=0).item() / 2
        return Fit(len(labels), metric, value, 0.0, loss, constant, loss, constant)
    counts = labels.bincount().double()
    present = counts > 0
    share = counts[present] / len(labels)
    sums = torch.zeros_like(counts).index_add_(0, labels, losses)
    return Fit(
        rows=len(labels),
        metric=metric,
        value=value,
        constant_value=share.max().item(),
        loss=loss,
        constant_loss=-(share * share.log()).sum().item(),
        balanced_loss=(sums[present] / counts[present]).mean().item(),
        balanced_constant_loss=math.log(int(present.sum())),
    )


def _with_weights(settings: Settings, data: Dataset, found: ForeignModel) -> nn.Module:
    """The network of params.yaml with the weights of ``found``, in eval mode."""
    model = build_model(settings.model, data, seed=settings.seed).eval()
    own, given = model.state_dict(), found.state
    wrong = [
        f"it has no {', '.join(names)}" if is_missing else f"the network has no {', '.join(names)}"
        for names, is_missing in (
            (_few(sorted(own.keys() - given.keys())), True),
            (_few(sorted(given.keys() - own.keys())), False),
        )
        if names
    ]
    wrong += _few(
        [
            f"{key} is {tuple(given[key].shape)} of {given[key].dtype}, not "
            f"{tuple(own[key].shape)} of {own[key].dtype}"
            for key in sorted(own.keys() & given.keys())
            if (own[key].shape, own[key].dtype) != (given[key].shape, given[key].dtype)
        ]
    )
    if wrong:
        raise ModelError(
            f"{found.uri} does not fit {settings.model.name!r}, the network of params.yaml: "
            f"{'; '.join(wrong)}; name the class that it was made from, with its arguments, as "
            f"model.name and model.kwargs (of {data.name} alone under per_dataset). Rows of "
            f"{data.name} have the shape {tuple(data.train.features.shape[1:])}"
        )
    model.load_state_dict(dict(given))
    bad = sorted(key for key, value in given.items() if not value.isfinite().all())
    if bad:
        raise ModelError(f"{found.uri} has NaN or infinite weights in {', '.join(_few(bad))}")
    return model


def _few(names: list[str]) -> list[str]:
    return names if len(names) <= 5 else [*names[:5], f"and {len(names) - 5} more"]


@torch.no_grad()
def _require_same(found: ForeignModel, network: str, model: nn.Module, rows: Tensor) -> None:
    """Raise ModelError unless the network computes what the registered module does."""
    if found.model is None:
        return
    try:
        theirs = torch.cat([found.model(few) for few in rows.split(2)])
    except Exception as error:  # a module may raise anything
        raise ModelError(
            f"{found.uri} cannot take two rows of shape {tuple(rows.shape[1:])} and {rows.dtype} "
            f"({type(error).__name__}); the project's rows have to be those that it was trained "
            "on: docs/your-model.md"
        ) from error
    ours = predictions.logits(model, rows)
    if not isinstance(theirs, Tensor) or theirs.shape != ours.shape:
        got = tuple(theirs.shape) if isinstance(theirs, Tensor) else type(theirs).__name__
        raise ModelError(
            f"{found.uri} returns {got} for {len(rows)} rows, and {network!r} "
            f"{tuple(ours.shape)}; name the class that it was made from"
        )
    if not torch.allclose(theirs, ours, rtol=CLOSE, atol=CLOSE):
        apart = (theirs - ours).abs().max().item()
        softmax = torch.allclose(theirs, ours.softmax(1), atol=CLOSE)
        why = (
            "it returns the probabilities of the class's logits: register it without the softmax, "
            "or its state_dict"
            if softmax
            else "the class computes something else, though its weights fit: name the class, the "
            "arguments and the code that it was trained with"
        )
        raise ModelError(
            f"{network!r} with the weights of {found.uri} does not give what was registered: up to "
            f"{apart:.3g} apart on {len(rows)} training rows; {why}"
        )


def _checked_fit(uri: str, model: nn.Module, examples: Examples) -> Fit:
    predictions.require_fit(model, examples)
    found = predictions.outputs_of(model, examples)
    if not found.isfinite().all():
        raise ModelError(
            f"{uri} gives NaN or infinite outputs for {int((~found.isfinite()).any(1).sum())} of "
            f"{len(found)} rows; the rows are in another unit than it was trained in, or its "
            "training diverged"
        )
    if (what := _as_probabilities(found, examples.task)) is not None:
        raise ModelError(
            f"{uri} returns probabilities ({what}); PUMA needs logits: take the softmax or sigmoid "
            "out of the class, which its weights do not notice, and register it again"
        )
    return fit_of(found, examples.labels, examples.task)


def _as_probabilities(outputs: Tensor, task: Task) -> str | None:
    """What shows that these are probabilities; None where they are not."""
    if task.is_regression or (outputs < 0).any():
        return None
    if task.name == "binary":
        return "all between 0 and 1" if (outputs <= 1).all() else None
    sums = outputs.sum(1)
    return "each row sums to 1" if torch.allclose(sums, torch.ones_like(sums), atol=CLOSE) else None


def _require_sense(uri: str, model: nn.Module, examples: Examples, name: str, fit: Fit) -> None:
    """Raise ModelError, with the numbers, unless the model knows its training rows."""
    if fit.makes_sense:
        return
    if examples.task.is_regression:
        constant, balanced = "the mean", ""
        why = "or with targets in another unit"
    else:
        constant = "the most frequent class, and the frequencies of all,"
        balanced = (
            f" (with classes of equal weight {fit.balanced_loss:.3g}, and "
            f"{fit.balanced_constant_loss:.3g})"
        )
        why = "or with the classes in another order"
    raise ModelError(
        f"{uri} makes no sense of the training rows of {name}: {fit.metric} {fit.value:.3f} and "
        f"mean loss {fit.loss:.3g} nats, where {constant} have {fit.constant_value:.3f} and "
        f"{fit.constant_loss:.3g}{balanced}. It was trained on other rows, on rows that were "
        f"prepared otherwise, {why}.{_hint(model, examples, fit)} See docs/your-model.md"
    )


def _hint(model: nn.Module, examples: Examples, fit: Fit) -> str:
    """What the outputs would make sense as."""
    task, outputs = examples.task, predictions.outputs_of(model, examples)
    if task.is_regression:
        labels = (outputs - task.centre) / task.scale
        if not fit_of(labels, examples.labels, task).makes_sense:
            return ""
        return (
            " It gives the target in its own unit: let the class return "
            f"(y - {task.centre:.6g}) / {task.scale:.6g}, as the labels here are."
        )
    if not task.classes:
        return ""
    found = predictions.predicted(model, examples)
    order = _best_order(found, examples.labels)
    value = hits(found[:, order], examples.labels).double().mean().item()
    if value <= max(fit.value, fit.constant_value):
        return ""
    names = ", ".join(task.classes[place] for place in torch.tensor(order).argsort().tolist())
    return (
        f" Its outputs would fit with an accuracy of {value:.3f} if they stood for {names}, in "
        f"this order: here they stand for {', '.join(task.classes)}."
    )


def _best_order(logits: Tensor, labels: Tensor) -> list[int]:
    """The output for each class with which most rows would be right (assignment problem)."""
    from scipy.optimize import linear_sum_assignment

    classes = logits.shape[1]
    pairs = labels * classes + logits.argmax(1)
    found = pairs.bincount(minlength=classes**2).view(classes, classes)
    _, columns = linear_sum_assignment(-found.numpy())
    return [int(column) for column in columns]


def _require_trainable(settings: Settings, data: Dataset) -> None:
    """Try the training of params.yaml on a few rows for one epoch."""
    places = torch.linspace(0, len(data.train) - 1, min(FEW, len(data.train))).round().long()
    once = settings.training.model_copy(update={"epochs": 1})
    model = build_model(settings.model, data, seed=settings.seed)
    try:
        train(model, data.train.subset(places), once, seed=settings.seed, progress=False)
    except Exception as error:  # a loop of the user's own may raise anything
        if not isinstance(error, PumaError):
            error.add_note(_UNTRAINABLE)
            raise
        raise ModelError(f"{_UNTRAINABLE}: {error}") from error


_UNTRAINABLE = (
    "the network cannot be trained as params.yaml says, tried on a few rows for one epoch, so that "
    "there would be no retraining, no pool and no audit; name the loop that trained it as "
    "training.loop"
)


def _notes(model: nn.Module, data: Dataset) -> list[str]:
    notes = []
    try:
        require_supported(model)
    except ModelError as error:
        notes.append(f"PUMA cannot remove from it, retraining can (--method retrain): {error}")
    parts = [predictions.losses(model, each).double() for each in (data.train, data.test)]
    apart = parts[0].mean() - parts[1].mean()
    by_chance = sum(each.var() / len(each) for each in parts) ** 0.5
    if apart > SURE * by_chance:
        notes.append(
            "it fits the test rows better than the training rows: were they trained on, or is the "
            "split another one? State their split in params.yaml (sources.….split)"
        )
    return notes
