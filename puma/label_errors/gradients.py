"""Per-example gradients as rows, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from puma.data.base import Examples
from puma.influence import FlatModel
from puma.influence.flat_model import batches
from puma.influence.layer_gradients import LayerRows
from puma.models.tasks import residuals

CHUNK_BYTES = 2**26


def gradient_rows(flat: FlatModel, examples: Examples) -> Iterator[Tensor]:
    """Yield (B, p) blocks of the per-example gradients ∇L_i at ``flat.vector``, in order.

    ∇L_i = J_iᵀr_i, with J_i the Jacobian of the outputs and r_i the gradient of the loss in them:
    of classes, their probabilities less the one-hot label. A block is at most CHUNK_BYTES, or one
    row. Unit: nats per parameter unit.

    Raises:
        ModelError: A trainable layer is not Linear, Conv2d or BatchNorm.
    """
    layers = LayerRows(flat)
    for features, labels in batches(flat, examples, chunk(flat, flat.batch_size)):
        with torch.no_grad():
            logits = flat.logits(flat.vector, features)
        excess = residuals(examples.task, logits, labels)
        rows = torch.zeros(len(labels), flat.size, dtype=flat.dtype, device=flat.device)
        layers.fill(rows, features, excess.to(flat.dtype))
        yield rows


def chunk(flat: FlatModel, most: int, *, rows_each: int = 1) -> int:
    """Count the examples of ``rows_each`` rows that fit in CHUNK_BYTES, from 1 to ``most``."""
    item = torch.finfo(flat.dtype).bits // 8
    return max(1, min(most, CHUNK_BYTES // (flat.size * item * rows_each)))
