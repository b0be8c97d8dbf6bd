"""What an attacker sees: the answers of a model, and of the version before it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from puma.data.base import Dataset, Examples
from puma.errors import AuditError
from puma.models import predictions

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """Two versions' logits on n rows. A registry keeps both, so an attacker may have both.

    before, after: (n, classes) float64 logits of the parent and of the version under attack;
    the same tensor where there is no parent. labels: (n,) int64. rows: (n,) which rows these
    are, counted over the training rows and then the test rows of the dataset.

    Raises AuditError for logits that are not finite, shapes that disagree, or a label that no
    logit stands for.
    """

    before: Tensor
    after: Tensor
    labels: Tensor
    rows: NDArray[np.int64]

    def __post_init__(self) -> None:
        n = len(self.labels)
        if self.after.ndim != 2 or self.before.shape != self.after.shape or n != len(self.after):
            raise AuditError(
                f"answers must be (n, classes) logits of both versions for n = {n} labels, got "
                f"{tuple(self.before.shape)} and {tuple(self.after.shape)}; ask both the same rows"
            )
        for name, logits in (("parent", self.before), ("audited version", self.after)):
            broken = int((~logits.isfinite()).any(1).sum())
            if broken:
                raise AuditError(
                    f"the {name} answers {broken} of {n} rows with NaN or infinity; its weights "
                    "are unusable, so repeat the removal with a smaller dose"
                )
        if n and int(self.labels.max()) >= self.after.shape[1]:
            raise AuditError(
                f"a label is {int(self.labels.max())}, but the model answers with "
                f"{self.after.shape[1]} classes; audit a model of this dataset"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Predictions(n={len(self)}, classes={self.after.shape[1]})"

    def at(self, rows: Tensor | NDArray[np.int64]) -> Predictions:
        """The answers for some of the rows; ``rows`` are indices into these n."""
        chosen = torch.as_tensor(rows)
        return Predictions(
            self.before[chosen], self.after[chosen], self.labels[chosen], self.rows[chosen.numpy()]
        )

    def of_parent(self) -> Predictions:
        """As if the version under attack were its own parent: the state before the removal."""
        return replace(self, after=self.before)


def predict_dataset(
    model: nn.Module, dataset: Dataset, parent: nn.Module | None = None
) -> Predictions:
    """The answers of ``model``, and of its ``parent``, for every training and every test row."""
    after = logits_of(model, dataset)
    before = after if parent is None else logits_of(parent, dataset)
    return predictions_from_logits(before, after, dataset)


def predictions_from_logits(before: Tensor, after: Tensor, dataset: Dataset) -> Predictions:
    """The answers with these (n, classes) logits for every training and then every test row."""
    labels = labels_of(dataset)
    return Predictions(before, after, labels, np.arange(len(labels)))


def labels_of(dataset: Dataset) -> Tensor:
    """(n,) int64 labels: training rows first, then test rows."""
    return torch.cat([dataset.train.labels, dataset.test.labels])


def predict_examples(model: nn.Module, examples: Examples) -> Predictions:
    """The answers of one model alone for ``examples``; ``rows`` counts these."""
    logits = predictions.logits(model, examples.features).double()
    return Predictions(logits, logits, examples.labels, np.arange(len(examples)))


def logits_of(model: nn.Module, dataset: Dataset) -> Tensor:
    """(n, classes) float64 logits: training rows first, then test rows."""
    parts = (dataset.train.features, dataset.test.features)
    return torch.cat([predictions.logits(model, part) for part in parts]).double()


def losses(logits: Tensor, labels: Tensor) -> Array:
    """(n,) cross-entropy in nats, >= 0.

    In double precision: in single precision every confidently fitted row has a loss of exactly
    0, and they all tie.
    """
    values: Array = cross_entropy(logits.double(), labels, reduction="none").numpy()
    return values


def margins(logits: Tensor, labels: Tensor) -> Array:
    """(n,) :func:`puma.models.predictions.margins` in double precision."""
    values: Array = predictions.margins(logits.double(), labels).numpy()
    return values
