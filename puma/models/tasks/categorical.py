"""Classes, one logit each: cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from puma.data.task import Task
from puma.models.tasks.likelihood import Likelihood, Product, accuracy


class Categorical(Likelihood):
    """The softmax of (B, classes) logits."""

    metrics = test_metrics = ("accuracy",)

    @property
    def wanted(self) -> str:
        """One column per class."""
        return (
            "logits of shape (batch, classes): give its last layer one output per class, or for "
            "two classes set task: binary"
        )

    def fits(self, outputs: Tensor, labels: Tensor) -> bool:
        """Whether every class has an output, and there are two at least."""
        top = int(labels.max()) if len(labels) else 0
        return outputs.shape[1] > max(top, 1)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(B,) cross-entropy."""
        return cross_entropy(outputs, labels, reduction="none")

    def mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy, in the order of PyTorch's own sum."""
        return cross_entropy(outputs, labels)

    def margins(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(B,) log(p/(1-p)) of the labelled class's probability p: unbounded, near to normal.

        The statistic of LiRA (Carlini et al., "Membership Inference Attacks From First
        Principles", 2022, Section IV-C), computed from the logits so that p = 1 stays finite.
        """
        own = outputs.gather(1, labels[:, None])
        others = outputs.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
        return own[:, 0] - others

    def curvature(self, outputs: Tensor) -> Product:
        """diag(p) − ppᵀ: the Hessian of cross-entropy in the logits."""
        probabilities = outputs.softmax(1)

        def product(tangent: Tensor) -> Tensor:
            weighted = probabilities * tangent
            return weighted - probabilities * weighted.sum(1, keepdim=True)

        return product

    def eigenpairs(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Those of diag(p) − ppᵀ, but for the direction that moves all logits alike."""
        p = outputs.softmax(1)
        values, vectors = torch.linalg.eigh(torch.diag_embed(p) - p[:, :, None] * p[:, None, :])
        # Ascending: the first belongs to the direction that moves all logits alike, and is 0.
        return values[:, 1:].clamp(min=0), vectors[:, :, 1:].transpose(1, 2)

    def traces(self, outputs: Tensor) -> Tensor:
        """(B,) Σp(1 − p)."""
        p = outputs.softmax(1)
        return (p * (1 - p)).sum(1)

    def rank(self, outputs: int) -> int:
        """All but one."""
        return outputs - 1

    def predictions(self, outputs: Tensor) -> Tensor:
        """(B, classes) the outputs themselves."""
        return outputs

    def labels(self, predictions: Tensor) -> Tensor:
        """(B,) the most probable class."""
        return predictions.argmax(1)

    def measured(self, predictions: Tensor, labels: Tensor, task: Task) -> dict[str, float]:  # noqa: ARG002
        """The accuracy."""
        return accuracy(predictions, labels)
