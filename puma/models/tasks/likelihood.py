"""What every task's likelihood says of a model's outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from puma.data.task import Task

Product = Callable[[Tensor], Tensor]


class Likelihood(ABC):
    """How outputs are judged by labels: loss, margin and score of a row, metrics of many.

    The outputs (B, K) are what the model returns for B rows.

    Attributes:
        metrics: The names of what :meth:`measured` returns, the headline first.
        test_metrics: Their names where they are of the test rows, as versions carry them.
        has_classes: Whether the labels are classes.
        margin: What :meth:`margins` are, in words, with their unit.
        score: What :meth:`scores` are.
    """

    metrics: ClassVar[tuple[str, ...]]
    test_metrics: ClassVar[tuple[str, ...]]
    has_classes: ClassVar[bool] = True
    margin: ClassVar[str] = "logit margin of the label"
    score: ClassVar[str] = "logit margin of the label"

    @abstractmethod
    def fits(self, outputs: Tensor, labels: Tensor) -> bool:
        """Whether (B, K) ``outputs`` have the columns that these labels need."""

    @property
    @abstractmethod
    def wanted(self) -> str:
        """In words, the outputs that :meth:`fits` wants, and how a model gives them."""

    @abstractmethod
    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(B,) minus the log-likelihood of each label in nats, up to a constant."""

    def mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean of :meth:`losses`."""
        return self.losses(outputs, labels).mean()

    def residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(B, K) the gradient of each row's loss in its own outputs."""
        with torch.enable_grad():
            point = outputs.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.losses(point, labels).sum(), point)
        return found

    @abstractmethod
    def margins(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(B,) where each row stands: unbounded, near to normal over models, differentiable.

        Target margins and the comparison with retrained models are in this unit.
        """

    def scores(self, margins: Tensor) -> Tensor:
        """(B,) how sure the model is of each label: larger is surer, whatever the label."""
        return margins

    @abstractmethod
    def curvature(self, outputs: Tensor) -> Product:
        """Return the map tangent -> M tangent, both (B, K); M is the loss's Hessian in the outputs.

        M is positive semi-definite, of each row by itself.
        """

    @abstractmethod
    def eigenpairs(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The eigenvalues (B, r) > 0 and eigenvectors (B, r, K) of that Hessian, ascending."""

    def traces(self, outputs: Tensor) -> Tensor:
        """(B,) the sums of these eigenvalues."""
        return self.eigenpairs(outputs)[0].sum(1)

    @abstractmethod
    def rank(self, outputs: int) -> int:
        """The number r of these eigenvalues for a model of so many ``outputs``."""

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """(B, C) logits of every class; of a regression the (B, 1) predicted label."""

    @abstractmethod
    def labels(self, predictions: Tensor) -> Tensor:
        """(B,) the int64 most probable class; of a regression the float32 predicted label."""

    @abstractmethod
    def measured(self, predictions: Tensor, labels: Tensor, task: Task) -> dict[str, float]:
        """The :attr:`metrics` of B rows, from their :meth:`predictions`.

        One that these rows do not define is left out.
        """


def hits(predictions: Tensor, labels: Tensor) -> Tensor:
    """(B,) whether the most probable class is the label."""
    return predictions.argmax(1) == labels


def accuracy(predictions: Tensor, labels: Tensor) -> dict[str, float]:
    """The share of :func:`hits`, by its name."""
    return {"accuracy": hits(predictions, labels).cpu().double().mean().item()}


def ones_like_rows(outputs: Tensor) -> Tensor:
    """(B, 1, 1) ones: the eigenvector of a row with one output."""
    return torch.ones(len(outputs), 1, 1, dtype=outputs.dtype, device=outputs.device)
