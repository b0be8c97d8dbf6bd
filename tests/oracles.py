"""Slow, plain truths to test against: none of this uses puma.influence.

Parameters are the model's own, in the order of ``model.parameters()``, trainable ones only.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from puma.data import Examples


def flat_parameters(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in _trainable(model)])


def per_example_losses(model: nn.Module, examples: Examples) -> Tensor:
    return cross_entropy(model.eval()(examples.features), examples.labels, reduction="none")


def per_example_gradients(model: nn.Module, examples: Examples) -> Tensor:
    """(n, p), one backward pass an example."""
    return torch.stack([_gradient(loss, model) for loss in per_example_losses(model, examples)])


def dense_hessian(model: nn.Module, examples: Examples) -> Tensor:
    """(p, p) of the mean loss, by differentiating the gradient entry by entry."""
    mean = per_example_losses(model, examples).mean()
    gradient = _gradient(mean, model, create_graph=True)
    return torch.stack([_gradient(entry, model) for entry in gradient])


def dense_gauss_newton(model: nn.Module, examples: Examples) -> Tensor:
    """(p, p) from explicit Jacobians: the mean of Jᵀ(diag(p) − ppᵀ)J."""
    total = torch.zeros(())
    for feature in examples.features:
        output = model.eval()(feature[None])[0]
        jacobian = torch.stack([_gradient(entry, model) for entry in output])
        p = output.detach().softmax(0)
        total = total + jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian
    return total / len(examples)


def dense_margin_gradients(model: nn.Module, examples: Examples) -> Tensor:
    """(n, p) of log(p/(1 − p)) for the label's probability p, one backward pass an example."""
    rows = []
    for feature, label in zip(examples.features, examples.labels, strict=True):
        p = model.eval()(feature[None])[0].softmax(0)[label]
        rows.append(_gradient(torch.log(p) - torch.log(1 - p), model))
    return torch.stack(rows)


def per_example_jacobians(model: nn.Module, examples: Examples) -> Tensor:
    """(n, classes, p) of the logits, one backward pass an entry."""
    outputs = [model.eval()(feature[None])[0] for feature in examples.features]
    return torch.stack([torch.stack([_gradient(o, model) for o in output]) for output in outputs])


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _gradient(scalar: Tensor, model: nn.Module, *, create_graph: bool = False) -> Tensor:
    parameters = _trainable(model)
    gradients = torch.autograd.grad(
        scalar,
        parameters,
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    return torch.cat([g.reshape(-1) for g in gradients])


class LogisticRegression:
    """Closed-form softmax regression without bias: L = mean_i w_i·CE_i + decay/2·‖W‖²."""

    def __init__(self, examples: Examples, *, decay: float) -> None:
        self.x, self.y, self.decay = examples.features, examples.labels, decay
        self.classes = int(self.y.max()) + 1

    def gradients(self, theta: Tensor) -> Tensor:
        """(n, p) ∇CE_i = (p_i − e_{y_i}) ⊗ x_i."""
        excess = self._probabilities(theta) - one_hot(self.y, self.classes)
        return (excess[:, :, None] * self.x[:, None, :]).flatten(1)

    def hessian(self, theta: Tensor, weights: Tensor | None = None) -> Tensor:
        weights = torch.ones(len(self.x), dtype=self.x.dtype) if weights is None else weights
        total = self.decay * torch.eye(theta.numel(), dtype=theta.dtype)
        for w, p, x in zip(weights, self._probabilities(theta), self.x, strict=True):
            block = torch.diag(p) - torch.outer(p, p)
            total = total + w / len(self.x) * torch.kron(block, torch.outer(x, x))
        return total

    def optimum(self, weights: Tensor | None = None) -> Tensor:
        """(p,) the minimiser by Newton's method, to round-off."""
        weights = torch.ones(len(self.x), dtype=self.x.dtype) if weights is None else weights
        theta = torch.zeros(self.classes * self.x.shape[1], dtype=self.x.dtype)
        for _ in range(50):
            gradient = self.gradients(theta).T @ weights / len(self.x) + self.decay * theta
            if gradient.norm() < 1e-14:
                break
            # pinv: softmax is blind to a shift of all classes, so without decay H is singular.
            step = torch.linalg.pinv(self.hessian(theta, weights), hermitian=True) @ gradient
            theta = theta - step
        return theta

    def mean_loss(self, theta: Tensor, examples: Examples) -> float:
        logits = examples.features @ theta.view(self.classes, -1).T
        return cross_entropy(logits, examples.labels).item()

    def _probabilities(self, theta: Tensor) -> Tensor:
        return (self.x @ theta.view(self.classes, -1).T).softmax(1)


def reweighting_objective(
    weights: np.ndarray, scores: np.ndarray, target: float, l1: float, l2: float
) -> float:
    """The function that Eq. 10 minimises."""
    return float(
        (scores @ weights - target) ** 2 + l1 * np.abs(weights).sum() + l2 * weights @ weights
    )


def kkt_residual(
    weights: np.ndarray,
    scores: np.ndarray,
    target: float,
    l1: float,
    l2: float,
    bounds: tuple[float, float],
) -> float:
    """Largest violation of the optimality conditions, relative to the slope at λ = 0."""
    lower, upper = bounds
    slope = 2 * scores * (scores @ weights - target) + 2 * l2 * weights
    # One-sided derivatives; no descent may be left to either side that the bounds allow.
    right = slope + np.where(weights >= 0, l1, -l1)
    left = slope + np.where(weights > 0, l1, -l1)
    upwards = np.where(weights < upper, np.maximum(0, -right), 0)
    downwards = np.where(weights > lower, np.maximum(0, left), 0)
    return float(np.maximum(upwards, downwards).max() / (2 * abs(target) * np.abs(scores).max()))
