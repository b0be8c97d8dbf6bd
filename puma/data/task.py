"""What is learnt from the rows: classes, or numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.errors import DataError
from puma.settings import TaskName

QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Task:
    """What the labels of some rows are. :data:`puma.models.tasks.TASKS` says how it is learnt.

    Attributes:
        name: classification (one output per class), binary (two classes, and one output: the
            logit of the second), or regression (one output: the number).
        classes: Their names, in the order of their numbers; empty where nobody named them, and
            for a regression.
        class_weights: What a row's loss counts in training, by its class; None: 1 for all.
        centre: Of a regression: the target of a row with label 0, in the target's own unit.
        scale: Of a regression: the step of the target that is 1 in the labels.

    Raises:
        DataError: The classes do not suit the name.
    """

    name: TaskName = "classification"
    classes: tuple[str, ...] = ()
    class_weights: tuple[float, ...] | None = None
    centre: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.name == "binary" and len(self.classes) not in (0, 2):
            raise DataError(
                f"task binary has one logit for two classes, and there are {len(self.classes)}; "
                "set task: classification"
            )
        if self.name == "regression" and self.classes:
            raise DataError(
                f"a regression has no classes, got {len(self.classes)} names; leave them out, or "
                "set task: classification"
            )

    @property
    def is_regression(self) -> bool:
        """Whether the labels are numbers, not classes."""
        return self.name == "regression"

    @property
    def outputs(self) -> int:
        """How many numbers a model of the ``classes`` gives for a row."""
        return len(self.classes) if self.name == "classification" else 1

    def checked(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (n,) labels as int64 classes, or for a regression as numbers of ``dtype``.

        Raises:
            DataError: They are no such labels.
        """
        whole = labels.dtype in (torch.int64, torch.int32)
        if self.is_regression:
            if labels.ndim != 1 or not (whole or labels.is_floating_point()):
                raise DataError(
                    f"labels of a regression must be one number per example, got shape "
                    f"{tuple(labels.shape)} of {labels.dtype}"
                )
            if not labels.isfinite().all():
                raise DataError(
                    f"{int((~labels.isfinite()).sum())} of {len(labels)} labels are NaN or "
                    "infinite; correct them, or leave these rows out"
                )
            return labels.detach().to(dtype)
        if labels.ndim != 1 or not whole:
            raise DataError(
                f"labels must be one integer class number per example, got shape "
                f"{tuple(labels.shape)} of {labels.dtype}"
            )
        if len(labels) and int(labels.min()) < 0:
            raise DataError(f"labels must be >= 0, got {int(labels.min())}")
        return labels.to(torch.int64)

    def strata(self, labels: Tensor) -> Tensor:
        """(n,) which rows are alike by their label: its class, or the quarter that a number is in.

        What is drawn or clustered within each class is drawn within each quarter.
        """
        if not self.is_regression or not len(labels):
            return labels
        bounds = labels.double().quantile(torch.tensor(QUARTILES, dtype=torch.float64))
        return torch.bucketize(labels.double(), bounds)


CLASSIFICATION = Task()
REGRESSION = Task("regression")
