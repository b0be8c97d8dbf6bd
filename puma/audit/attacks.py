"""Attacks that need no training. Higher score = more likely a member."""

from __future__ import annotations

import numpy as np
from torch import nn
from torch.nn.functional import cross_entropy

from puma.data.base import Examples
from puma.predictions import logits


def loss_attack_scores(model: nn.Module, examples: Examples) -> np.ndarray:
    """(n,) minus the cross-entropy of every example, in nats, at most 0.

    A model fits what it was trained on, so a higher score means more likely a member
    (Yeom et al., "Privacy Risk in Machine Learning", 2018).
    """
    # In float32 every confidently fitted example has a loss of exactly 0 and they all tie.
    outputs = logits(model, examples.features).double()
    return -cross_entropy(outputs, examples.labels, reduction="none").numpy()
