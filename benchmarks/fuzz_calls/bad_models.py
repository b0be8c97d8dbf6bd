"""Models that whatever needs a classifier of two numbers must refuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor, nn


class _Pair(nn.Module):
    """Returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(features), features


def _filled(value: float) -> nn.Module:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, value)
    return model


def bad_models() -> tuple[Any, ...]:
    """What is no classifier of two numbers into two classes."""
    frozen = nn.Linear(2, 2).requires_grad_(False)
    return (
        None,
        "mlp",
        np.zeros((2, 2)),
        nn.Linear,
        lambda features: features,
        nn.Identity(),
        frozen,
        nn.Linear(2, 1),
        nn.Linear(3, 2),
        nn.Linear(2, 2).double(),
        nn.Linear(2, 2).half(),
        nn.Sequential(nn.Linear(2, 2), nn.Flatten(0)),
        nn.Sequential(nn.Linear(2, 2), nn.Unflatten(1, (2, 1))),
        _Pair(),
        _filled(math.nan),
        _filled(math.inf),
    )
