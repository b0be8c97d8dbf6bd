"""What an attacker sees: the predictions of a model, and of the version before it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from puma.data.base import Examples
from puma.data.task import CLASSIFICATION, REGRESSION, Task
from puma.errors import AuditError
from puma.models import predictions
from puma.models.tasks import Likelihood, likelihood_of

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """The predictions of two versions for n rows. A registry keeps both, and so may an attacker.

    Attributes:
        before: (n, classes) float64 logits of the parent; of a regression (n, 1) the predicted
            labels.
        after: The same of the audited version; the same tensor as ``before`` for a version
            without a parent.
        labels: (n,) int64 classes; of a regression, numbers.
        rows: (n,) int64 places of these rows among the training rows and then the test rows.
        task: What the labels are; two classes have two logits here, with one logit, too.

    Raises:
        AuditError: Logits are not finite, shapes disagree, or a label has no logit.
    """

    before: Tensor
    after: Tensor
    labels: Tensor
    rows: NDArray[np.int64]
    task: Task = CLASSIFICATION

    def __post_init__(self) -> None:
        n = len(self.labels)
        if self.after.ndim != 2 or self.before.shape != self.after.shape or n != len(self.after):
            raise AuditError(
                f"predictions must be (n, classes) logits of both versions for n = {n} labels, "
                f"got {tuple(self.before.shape)} and {tuple(self.after.shape)}; apply both to the "
                "same rows"
            )
        for name, logits in (("parent", self.before), ("audited version", self.after)):
            broken = int((~logits.isfinite()).any(1).sum())
            if broken:
                raise AuditError(
                    f"the {name} predicts NaN or infinity for {broken} of {n} rows; its weights "
                    "are unusable, so repeat the removal with a smaller dose"
                )
        has_classes = likelihood_of(self.task).has_classes
        if n and has_classes and int(self.labels.max()) >= self.after.shape[1]:
            raise AuditError(
                f"a label is {int(self.labels.max())}, but the model predicts "
                f"{self.after.shape[1]} classes; audit a model of this dataset"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Predictions(n={len(self)}, classes={self.after.shape[1]})"

    @property
    def losses(self) -> Array:
        """(n,) loss of the audited version in nats, >= 0.

        It is in double precision: in single precision every confidently fitted row has a loss of
        exactly 0, and they all tie.
        """
        losses: Array = self._likelihood.losses(self.after.double(), self.labels).numpy()
        return losses

    @property
    def margins(self) -> Array:
        """(n,) :meth:`puma.models.tasks.Likelihood.margins` of the audited version, in float64."""
        margins: Array = self._likelihood.margins(self.after.double(), self.labels).numpy()
        return margins

    @property
    def scores(self) -> Array:
        """(n,) how sure the audited version is of each label: larger is surer."""
        return scores_of(self.margins, self.task)

    @property
    def _likelihood(self) -> Likelihood:
        """Of what :attr:`after` holds: one logit has become two."""
        return likelihood_of(REGRESSION if self.task.is_regression else CLASSIFICATION)

    def at(self, rows: Tensor | NDArray[np.int64]) -> Predictions:
        """Choose some of these n rows, by their indices."""
        chosen = torch.as_tensor(rows)
        return Predictions(
            self.before[chosen],
            self.after[chosen],
            self.labels[chosen],
            self.rows[chosen.numpy()],
            self.task,
        )

    def of_parent(self) -> Predictions:
        """The predictions of the parent as if it were audited: the state before the removal."""
        return replace(self, after=self.before)


def predict(model: nn.Module, *parts: Examples, parent: nn.Module | None = None) -> Predictions:
    """Apply ``model``, and its ``parent`` if it has one, to every row of ``parts`` in order.

    For an audit, the parts are the training rows and then the test rows of a dataset.
    """

    def predicted(of: nn.Module) -> Tensor:
        return torch.cat([predictions.predicted(of, part) for part in parts]).double()

    labels = torch.cat([part.labels for part in parts])
    after = predicted(model)
    before = after if parent is None else predicted(parent)
    return Predictions(before, after, labels, np.arange(len(labels)), parts[0].task)


def scores_of(margins: Array, task: Task) -> Array:
    """(...) :meth:`puma.models.tasks.Likelihood.scores` of (...) margins of rows of ``task``."""
    found: Array = likelihood_of(task).scores(torch.from_numpy(margins)).numpy()
    return found
