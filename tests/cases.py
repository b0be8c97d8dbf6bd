"""Tiny problems in double precision."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from puma.data import Examples

DOUBLE = torch.float64


def random_examples(
    n: int, *shape: int, classes: int = 3, seed: int = 0, dtype: torch.dtype = DOUBLE
) -> Examples:
    """n rows whose labels depend on the features only in part."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, *shape, generator=generator, dtype=DOUBLE)
    noise = torch.randn(n, classes, generator=generator, dtype=DOUBLE)
    signal = torch.stack([features.flatten(1)[:, c % 3] for c in range(classes)], 1)
    return Examples.of(features.to(dtype), (signal + noise).argmax(1))


def linear(features: int = 3, classes: int = 3) -> nn.Module:
    """Softmax regression, no bias: its parameters are W (classes, features), row by row."""
    return _seeded(lambda: nn.Linear(features, classes, bias=False))


def logistic(theta: Tensor, classes: int) -> nn.Linear:
    """Softmax regression at the flat parameters ``theta``."""
    model = nn.Linear(theta.numel() // classes, classes, bias=False, dtype=DOUBLE)
    model.weight.data = theta.view(classes, -1).clone()
    return model


def mlp() -> nn.Module:
    """3-5-3 with ReLU: 38 parameters."""
    return _seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)))


def normalised() -> nn.Module:
    """BatchNorm with lived-in statistics, and dropout: 53 parameters."""

    def build() -> nn.Module:
        model = nn.Sequential(
            nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3)
        ).double()
        with torch.no_grad():
            for _ in range(3):
                model.train()(torch.randn(20, 3, dtype=DOUBLE) * 2 + 1)
        return model

    return _seeded(build)


def frozen() -> nn.Module:
    """The first layer does not train."""
    model = mlp()
    model[0].requires_grad_(False)  # type: ignore[index]
    return model


def non_contiguous() -> nn.Module:
    """The first weight is stored column by column."""
    model = mlp()
    layer = model[0]  # type: ignore[index]
    layer.weight = nn.Parameter(layer.weight.detach().T.contiguous().T)
    assert not layer.weight.is_contiguous()
    return model


def convolutional() -> nn.Module:
    """Two convolutions and a BatchNorm with lived-in statistics on 1 x 4 x 4: 88 parameters."""

    def build() -> nn.Module:
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Conv2d(4, 2, 2, stride=2, groups=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(8, 3),
        ).double()
        with torch.no_grad():
            for _ in range(3):
                model.train()(torch.randn(20, 1, 4, 4, dtype=DOUBLE) * 2 + 1)
            model[1].weight.mul_(1.5)  # type: ignore[union-attr,operator]
        return model

    return _seeded(build)


class Tied(nn.Module):
    """One square weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, features: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(features)))


def tied() -> nn.Module:
    return _seeded(Tied)


def repeated() -> nn.Module:
    """One layer object in two places."""

    def build() -> nn.Module:
        layer = nn.Linear(3, 3)
        return nn.Sequential(layer, nn.Tanh(), layer)

    return _seeded(build)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "normalised": normalised,
    "frozen": frozen,
    "non-contiguous": non_contiguous,
    "tied": tied,
    "repeated": repeated,
}


def problem(name: str, n: int = 11) -> tuple[nn.Module, Examples]:
    """A model by its name in MODELS, or "convolutional", and ``n`` examples for it."""
    if name == "convolutional":
        return convolutional(), random_examples(n, 1, 4, 4)
    return MODELS[name](), random_examples(n, 3)


PROBLEMS = (*MODELS, "convolutional")


class Matrix:
    """A dense matrix as a linear operator that counts its products."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.size, self.dtype, self.products = matrix, len(matrix), matrix.dtype, 0

    def __matmul__(self, vector: Tensor) -> Tensor:
        self.products += 1
        return self.matrix @ vector


def spectrum(values: Tensor, seed: int = 0) -> Tensor:
    """A symmetric matrix with these eigenvalues in a random basis."""
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(
        torch.randn(len(values), len(values), generator=generator, dtype=DOUBLE)
    )
    matrix = basis @ torch.diag(values.to(DOUBLE)) @ basis.T
    return (matrix + matrix.T) / 2


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().double()
