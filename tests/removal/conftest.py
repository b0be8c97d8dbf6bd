"""A small regularised logistic regression whose optimum is known to round-off."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from puma.data import Dataset, Examples
from puma.removal import Trained

WEIGHT_DECAY = 1e-2


@dataclass(frozen=True)
class Problem:
    trained: Trained

    @property
    def dataset(self) -> Dataset:
        return self.trained.dataset


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def optimum(examples: Examples, *, objective_rows: int, start: nn.Linear) -> nn.Linear:
    """argmin (1/objective_rows)·Σ L_i + weight_decay/2·‖θ‖², by Newton's method in float64."""
    shape = start.weight.shape
    point = torch.zeros_like(flat(start))

    def objective(vector: Tensor) -> Tensor:
        weight, bias = vector[: shape.numel()].view(shape), vector[shape.numel() :]
        logits = examples.features @ weight.T + bias
        total = cross_entropy(logits, examples.labels, reduction="sum") / objective_rows
        return total + WEIGHT_DECAY / 2 * vector @ vector

    for _ in range(50):
        gradient = torch.autograd.functional.jacobian(objective, point)
        hessian = torch.autograd.functional.hessian(objective, point)
        point = point - torch.linalg.solve(hessian, gradient)
    assert gradient.norm() < 1e-12
    model = nn.Linear(shape[1], shape[0]).double()
    nn.utils.vector_to_parameters(point, model.parameters())
    return model


def blobs(n: int, *, seed: int, classes: int = 2, features: int = 3) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centres = torch.eye(classes, features, dtype=torch.float64)
    noise = torch.randn(n, features, generator=generator, dtype=torch.float64)
    return Examples.of(centres[labels] + noise, labels)


@pytest.fixture(scope="session")
def problem() -> Problem:
    dataset = Dataset("blobs", blobs(400, seed=0), blobs(100, seed=1), ("a", "b"))
    start = nn.Linear(3, 2).double()
    model = optimum(dataset.train, objective_rows=400, start=start)
    return Problem(Trained(model, dataset, start))
