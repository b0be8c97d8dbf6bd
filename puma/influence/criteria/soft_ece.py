"""How far confidence is from accuracy, made differentiable: a criterion C for calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from puma.data.base import Examples
from puma.errors import SettingsError
from puma.influence.flat_model import FlatModel, batches, require_examples
from puma.influence.sharding import share, summed
from puma.models.device import exact
from puma.models.tasks import likelihood_of, require_classes


@dataclass(frozen=True)
class SoftECE:
    """Expected calibration error with soft bins: the criterion C of Appendix E.

    With c_i the largest probability of example i, right_i 1 where that class is its label and
    else 0, and μ_b the centres of ``bins`` equal bins of [0, 1], example i belongs to bin b by
    m_ib = softmax_b(−(c_i − μ_b)²/``temperature``), and

        C = Σ_b share_b·|accuracy_b − confidence_b| = (1/n)·Σ_b |Σ_i m_ib·(right_i − c_i)|.

    C is between 0 and 1. As ``temperature`` goes to 0 it becomes the hard-binned error, away from
    the edges of bins. The paper names the error but neither the bins nor how it was made
    differentiable; these are ours. Whether a prediction is right is held constant: it is flat
    almost everywhere, and C jumps by up to 1/n per example where the predicted class changes. C
    also has a kink where a bin's sum is 0; the gradient there leaves that bin out.

    A ``temperature`` well below the squared width of a bin bends C so much that its gradient
    predicts no step: measure C after every step.

    Attributes:
        examples: What C is measured on.
        bins: The number of bins.
        temperature: How soft the bins are, in squared confidence.
        batch_size: Of the passes; None takes the model's own.

    Raises:
        DataError: There are no examples, or they are a regression's.
        SettingsError: ``bins`` is below 1, or ``temperature`` is not finite and > 0.
    """

    examples: Examples
    bins: int = 15
    temperature: float = 0.01
    batch_size: int | None = None

    def __post_init__(self) -> None:
        require_examples(self.examples, "the soft calibration error")
        require_classes(self.examples, "the soft calibration error", "take a loss instead")
        if self.bins < 1:
            raise SettingsError(f"bins must be >= 1, got {self.bins}")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise SettingsError(
                f"temperature must be finite and > 0, got {self.temperature}; for bins with sharp "
                "edges use puma.calibration.hard_ece"
            )

    def value(self, flat: FlatModel, vector: Tensor) -> float:
        """C at ``vector`` (p,), summed in double precision."""
        return float(self._sums(flat, vector).abs().sum()) / len(self.examples)

    def gradient(self, flat: FlatModel) -> Tensor:
        """(p,) ∇C at ``flat.vector``, per parameter unit.

        The side on which a bin errs depends on all examples, so one pass finds the bins' sums
        and a second one the gradient; no per-example gradient is formed.
        """
        signs = self._sums(flat, flat.vector).sign()
        vector = flat.vector.requires_grad_()
        total = torch.zeros_like(flat.vector)
        part = share(len(self.examples))
        for features, labels in batches(flat, self.examples, self.batch_size, part=part):
            with torch.enable_grad():
                signed = self._gaps(flat.logits(vector, features), labels) @ signs
            total += torch.autograd.grad(signed, vector)[0]
        return summed(total) / len(self.examples)

    @torch.no_grad()
    def _sums(self, flat: FlatModel, vector: Tensor) -> Tensor:
        """(bins,) Σ_i m_ib·(right_i − c_i): negative where the model is over-confident."""
        sums = exact(vector.new_zeros(self.bins))
        part = share(len(self.examples))
        for features, labels in batches(flat, self.examples, self.batch_size, part=part):
            sums += self._gaps(flat.logits(vector, features), labels)
        return summed(sums)

    def _gaps(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(bins,) one batch's share of the sums."""
        # In double: a float32 confidence near 1 has lost what tells it from 1.
        predictions = likelihood_of(self.examples.task).predictions(exact(logits))
        confidence, predicted = predictions.softmax(1).max(1)
        labels = labels.to(predicted.device)
        places = torch.arange(self.bins, dtype=torch.float64, device=predicted.device)
        distances = (confidence[:, None] - (places + 0.5) / self.bins) ** 2
        memberships = (-distances / self.temperature).softmax(1)
        return ((predicted == labels).double() - confidence) @ memberships
