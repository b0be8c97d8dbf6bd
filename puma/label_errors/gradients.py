"""Per-example gradients as rows, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import one_hot

from puma.data.base import Examples
from puma.errors import SettingsError
from puma.influence import FlatModel
from puma.influence.flat_model import batches
from puma.influence.layer_gradients import LayerRows

# How the rows are formed: by the layers' own rules (Linear, Conv2d, BatchNorm), or by torch.func
# for any layer that it can batch, several times slower.
HOW = ("layers", "vmap")
CHUNK_BYTES = 2**26


def gradient_rows(flat: FlatModel, examples: Examples, *, how: str = "layers") -> Iterator[Tensor]:
    """(B, p) blocks of the per-example gradients ∇L_i at ``flat.vector``, in order.

    ∇L_i = J_iᵀ(p_i − y_i), J_i the Jacobian of the logits, p_i the probabilities, y_i the one-hot
    label. A block is at most CHUNK_BYTES, or one row. Unit: nats per parameter unit.

    Raises SettingsError for an unknown ``how``; with "layers", ModelError for other layers.
    """
    require_how(how)
    fill = _by_layers(flat) if how == "layers" else _by_vmap(flat)
    for features, labels in batches(flat, examples, chunk(flat, flat.batch_size)):
        yield fill(features, labels)


def chunk(flat: FlatModel, most: int, *, rows_each: int = 1) -> int:
    """How many examples of ``rows_each`` rows fit in CHUNK_BYTES: 1 at least, ``most`` at most."""
    item = torch.finfo(flat.dtype).bits // 8
    return max(1, min(most, CHUNK_BYTES // (flat.size * item * rows_each)))


def require_how(how: str) -> None:
    """Raise SettingsError unless ``how`` is one of HOW."""
    if how not in HOW:
        raise SettingsError(f"gradients must be one of {', '.join(HOW)}, got {how!r}")


def _by_layers(flat: FlatModel) -> Callable[[Tensor, Tensor], Tensor]:
    layers = LayerRows(flat.module(flat.vector), flat.slices)

    def fill(features: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            logits = flat.logits(flat.vector, features)
        excess = logits.softmax(1) - one_hot(labels, logits.shape[1])
        rows = torch.zeros(len(labels), flat.size, dtype=flat.dtype, device=flat.device)
        layers.fill(rows, features, excess.to(flat.dtype))
        return rows

    return fill


def _by_vmap(flat: FlatModel) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(point: Tensor, feature: Tensor, label: Tensor) -> Tensor:
        return flat.losses(point, feature[None], label[None])[0]

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    return lambda features, labels: gradients(flat.vector, features, labels).detach()
