"""Networks for rows of numbers: one linear layer, or several with ReLU between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(features: int, classes: int, hidden: tuple[int, ...] = (64, 32)) -> nn.Sequential:
    """Build a fully connected network with ReLU between its layers (paper, Appendix A)."""
    widths = (features, *hidden, classes)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def fully_connected(shape: Sequence[int], classes: int, hidden: tuple[int, ...]) -> nn.Sequential:
    """Build an :func:`mlp` for examples of ``shape``; images are flattened first."""
    network = mlp(math.prod(shape), classes, hidden)
    return network if len(shape) == 1 else nn.Sequential(nn.Flatten(), *network)
