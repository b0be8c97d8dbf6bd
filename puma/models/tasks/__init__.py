"""What is learnt, and how outputs are judged: a new task is one file and one row of TASKS.

:class:`puma.data.Task` says of rows which task is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from puma.data.base import Examples
from puma.data.task import Task
from puma.errors import DataError, ModelError
from puma.models.tasks.bernoulli import Bernoulli
from puma.models.tasks.categorical import Categorical
from puma.models.tasks.gaussian import Gaussian
from puma.models.tasks.likelihood import Likelihood, Product, hits
from puma.settings import TaskName

TASKS: dict[TaskName, Likelihood] = {
    "classification": Categorical(),
    "binary": Bernoulli(),
    "regression": Gaussian(),
}

ClassWeights = Literal["balanced"] | Mapping[str, float]


def likelihood_of(task: Task) -> Likelihood:
    """The row of :data:`TASKS` for ``task``."""
    return TASKS[task.name]


def row_weights(task: Task, labels: Tensor, like: Tensor) -> Tensor | None:
    """(B,) the class weights of the rows, of the dtype of ``like``; None where all are 1."""
    if task.class_weights is None:
        return None
    return torch.tensor(task.class_weights, dtype=like.dtype).to(like.device)[labels]


def losses(task: Task, outputs: Tensor, labels: Tensor) -> Tensor:
    """(B,) what training minimises the mean of: each row's loss times its class weight."""
    found = likelihood_of(task).losses(outputs, labels)
    weights = row_weights(task, labels, outputs)
    return found if weights is None else found * weights


def residuals(task: Task, outputs: Tensor, labels: Tensor) -> Tensor:
    """(B, K) the gradients of :func:`losses` in the outputs, each of its own row."""
    found = likelihood_of(task).residuals(outputs, labels)
    weights = row_weights(task, labels, outputs)
    return found if weights is None else found * weights[:, None]


def mean_loss(task: Task, outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean of :func:`losses`."""
    if task.class_weights is None:
        return likelihood_of(task).mean_loss(outputs, labels)
    return losses(task, outputs, labels).mean()


def require_outputs(output: object, task: Task, labels: Tensor) -> None:
    """Raise ModelError unless ``output`` is (B, K) what the ``labels`` of the ``task`` need."""
    likelihood = likelihood_of(task)
    if not isinstance(output, Tensor) or output.ndim != 2 or not likelihood.fits(output, labels):
        got = str(tuple(output.shape)) if isinstance(output, Tensor) else type(output).__name__
        if likelihood.has_classes:
            got += f" for labels up to {int(labels.max())}"
        raise ModelError(f"the model returned {got}, and must return {likelihood.wanted}")


def require_classes(examples: Examples, what: str, instead: str) -> None:
    """Raise DataError for a regression, for ``what`` needs classes.

    Args:
        examples: The rows.
        what: Needs them, as the subject of a sentence.
        instead: What to do for a regression.
    """
    if not likelihood_of(examples.task).has_classes:
        raise DataError(f"{what} needs classes, and these rows are a regression's; {instead}")


def weighted(examples: Examples, class_weights: ClassWeights | None) -> Examples:
    """The same rows, with what the loss of each class counts.

    Args:
        examples: Of a task with classes, unless there are no weights.
        class_weights: "balanced" is n / (classes · n_c) for a class of n_c of the n rows, so
            that all classes count alike and the mean weight is 1 (as scikit-learn's). Or a
            weight by the name of each class; others count 1. None takes them as they are.

    Raises:
        DataError: There are no classes, or none of such a name.
    """
    if class_weights is None:
        return examples
    require_classes(examples, "training.class_weights", "set it to null")
    count = max(len(examples.task.classes), int(examples.labels.max()) + 1)
    if class_weights == "balanced":
        sizes = torch.bincount(examples.labels.cpu(), minlength=count).double()
        present = sizes > 0
        weights = sizes.sum() / (present.sum() * sizes)
        found = torch.where(present, weights, 1.0).tolist()
    else:
        names = examples.task.classes or tuple(map(str, range(count)))
        unknown = sorted({*class_weights} - {*names})
        if unknown:
            raise DataError(
                f"training.class_weights names {', '.join(map(repr, unknown))}, and the classes "
                f"are {', '.join(map(repr, names))}; name one of these"
            )
        found = [float(class_weights.get(name, 1.0)) for name in names]
    task = Task(examples.task.name, examples.task.classes, tuple(found))
    return examples.of_task(task)


__all__ = [
    "TASKS",
    "ClassWeights",
    "Likelihood",
    "Product",
    "hits",
    "likelihood_of",
    "losses",
    "mean_loss",
    "require_classes",
    "require_outputs",
    "residuals",
    "row_weights",
    "weighted",
]
