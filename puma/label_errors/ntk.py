"""Influence without the inverse curvature, which the paper calls NTK."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from puma.data.base import Dataset, Examples
from puma.influence import FlatModel, directional_derivatives, weighted_gradient
from puma.influence.criteria import CRITERIA, require_criterion
from puma.label_errors.ranker import as_suspicion
from puma.label_errors.weak_signal import signal_strength, warn_if_weak


@dataclass(frozen=True)
class NTK:
    """−∇C·∇L_i, without H⁻¹: what one step of gradient descent on row i does to C.

    Positive: a small step that lowers row i's loss raises C.

    Attributes:
        criterion: As of :class:`~puma.label_errors.psi.Psi`.
        weight_decay: As of Psi.
        per_example_gradients: Form every ∇L_i by a backward pass of its own, as the paper's
            timings of this method suggest that it did. The scores are the same to round-off, so
            this only serves to compare runtimes. The default is one forward-mode pass along ∇C.
        check: As of Psi; it costs 8 gradients.

    Raises:
        SettingsError: A setting cannot be used.
    """

    name: ClassVar[str] = "ntk"

    criterion: str = "validation_loss"
    weight_decay: float = 0.0
    per_example_gradients: bool = False
    check: bool = True

    def __post_init__(self) -> None:
        require_criterion(self.criterion, self.weight_decay)

    def suspicion(self, model: nn.Module, dataset: Dataset, *, progress: bool = False) -> Tensor:
        """(n,) −∇C·∇L_i, in C's unit times nats per squared parameter unit."""
        flat = FlatModel(model)
        if self.check:
            strength = signal_strength(
                flat, dataset, self.criterion, weight_decay=self.weight_decay
            )
            warn_if_weak(strength, self.criterion, self.name)
        gradient = CRITERIA[self.criterion](dataset, self.weight_decay).gradient(flat)
        if self.per_example_gradients:
            scores = _one_by_one(flat, dataset.train, gradient, progress)
        else:
            scores = directional_derivatives(flat, dataset.train, gradient)
        return as_suspicion(-scores, self.name)


def _one_by_one(flat: FlatModel, examples: Examples, direction: Tensor, progress: bool) -> Tensor:
    """(n,) ∇L_i · direction, one backward pass a row."""
    weight = torch.ones(1, dtype=flat.dtype, device=flat.device)
    rows = torch.arange(len(examples), device=examples.labels.device)
    slopes = [
        weighted_gradient(flat, examples.subset(row), weight) @ direction
        for row in tqdm(rows.split(1), desc="ntk", unit="row", disable=not progress, mininterval=2)
    ]
    return torch.stack(slopes)
