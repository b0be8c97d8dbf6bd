"""Two classes by one logit: binary cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from puma.data.task import Task
from puma.models.tasks.likelihood import Likelihood, Product, accuracy, ones_like_rows


class Bernoulli(Likelihood):
    """The sigmoid of (B, 1) logits: the probability of class 1.

    It is the softmax of the logits (0, z), in its losses, margins and derivatives.
    """

    metrics = test_metrics = ("accuracy",)

    @property
    def wanted(self) -> str:
        """One column."""
        return (
            "the logit of the second class, of shape (batch, 1): give its last layer one output, "
            "or set task: classification"
        )

    def fits(self, outputs: Tensor, labels: Tensor) -> bool:
        """Whether there is one output, and no third class."""
        return outputs.shape[1] == 1 and (not len(labels) or int(labels.max()) < 2)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(B,) binary cross-entropy."""
        logits = outputs[:, 0]
        return binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")

    def margins(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(B,) the logit of the row's own class: z or −z."""
        return outputs[:, 0] * (2 * labels - 1).to(outputs)

    def curvature(self, outputs: Tensor) -> Product:
        """p(1 − p)."""
        probabilities = outputs.sigmoid()
        weights = probabilities * (1 - probabilities)
        return lambda tangent: weights * tangent

    def eigenpairs(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """p(1 − p), and 1."""
        # sigmoid(−z) where 1 − sigmoid(z) would round to 0.
        return outputs.sigmoid() * (-outputs).sigmoid(), ones_like_rows(outputs)

    def rank(self, outputs: int) -> int:
        """All: the one."""
        return outputs

    def predictions(self, outputs: Tensor) -> Tensor:
        """(B, 2) logits 0 and z, whose softmax is the sigmoid of z."""
        return torch.cat([torch.zeros_like(outputs), outputs], 1)

    def labels(self, predictions: Tensor) -> Tensor:
        """(B,) the most probable class."""
        return predictions.argmax(1)

    def measured(self, predictions: Tensor, labels: Tensor, task: Task) -> dict[str, float]:  # noqa: ARG002
        """The accuracy."""
        return accuracy(predictions, labels)
