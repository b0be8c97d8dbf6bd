"""First derivatives of per-example losses: summed by weight, or along one direction."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.func import jvp

from puma.data.base import Examples
from puma.errors import DataError, SettingsError
from puma.influence.flat_model import FlatModel, batches
from puma.influence.sharding import gathered, share, summed
from puma.models.device import exact
from puma.models.tasks import residuals

# jvp imports this at its first call, which may be timed: half a second. PyTorch deprecates
# what it is itself built on, and warns of it there.
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=r".*torch\.jit\.script.*")
    import torch._decomp.decompositions_for_jvp


def weighted_gradient(
    flat: FlatModel,
    examples: Examples,
    weights: Tensor,
    *,
    batch_size: int | None = None,
    negligible: float = 0.0,
) -> Tensor:
    """(p,) Σ_i weights_i ∇L_i at ``flat.vector``: one backward pass per batch.

    With ones on a set this is the sum V of Algorithm 1. Examples of weight 0 are skipped. Unit:
    nats per parameter unit.

    An example's gradient is J_iᵀr_i, with J_i the Jacobian of its outputs and r_i the gradient
    of its loss in these, next to 0 where the model predicts its label with certainty. With
    ``negligible`` above 0 one pass forwards finds the r_i, and as many examples as possible are
    left out while their |weights_i|·‖r_i‖ add up to at most this share of all examples'. The sum
    is then off by at most negligible · max‖J_i‖ · Σ|weights_i|·‖r_i‖.

    Raises:
        DataError: ``weights`` is not one finite number per example, (n,).
        SettingsError: ``negligible`` is not at least 0 and below 1.
    """
    if weights.shape != (len(examples),) or not torch.isfinite(weights).all():
        raise DataError(
            f"weights must be one finite number for each of {len(examples)} examples, got shape "
            f"{tuple(weights.shape)} with {int((~torch.isfinite(weights)).sum())} not finite"
        )
    if not 0 <= negligible < 1:
        raise SettingsError(f"negligible must be >= 0 and < 1, got {negligible}")
    used = weights.nonzero()[:, 0]
    if negligible > 0:
        used = _telling(flat, examples, weights, used, batch_size, negligible)
    used = used[share(len(used))]
    weights = weights[used].to(flat.vector)
    vector = flat.vector.requires_grad_()
    total = flat.vector.zero_()
    parts = batches(flat, examples, batch_size, rows=used)
    for (features, labels), weight in zip(
        parts, weights.split(batch_size or flat.batch_size), strict=False
    ):
        with torch.enable_grad():
            loss = flat.losses(vector, features, labels, examples.task) @ weight
        total += torch.autograd.grad(loss, vector)[0]
    return summed(total)


@torch.no_grad()
def _telling(
    flat: FlatModel,
    examples: Examples,
    weights: Tensor,
    used: Tensor,
    batch_size: int | None,
    negligible: float,
) -> Tensor:
    """Those of the rows ``used``, in their order, that are not left out."""
    vector, parts = flat.vector, [weights.new_empty(0)]
    for features, labels in batches(flat, examples, batch_size, rows=used[share(len(used))]):
        found = residuals(examples.task, flat.logits(vector, features), labels)
        parts.append(found.norm(dim=1).to(weights))
    size = exact(gathered(torch.cat(parts), len(used)) * weights[used].abs())
    ascending, order = size.sort()
    left_out = order[ascending.cumsum(0) <= negligible * size.sum()]
    kept = torch.ones(len(used), dtype=torch.bool, device=used.device)
    kept[left_out] = False
    return used[kept]


def directional_derivatives(
    flat: FlatModel, examples: Examples, direction: Tensor, *, batch_size: int | None = None
) -> Tensor:
    """(n,) d/dε L_i(θ + ε·direction) at ε = 0, which is ∇L_i · direction, for every example.

    One forward-mode pass per batch; no per-example gradient is formed, so memory does not grow
    with n. Positive: a step along ``direction`` raises that example's loss. Unit: nats.

    Raises:
        DataError: ``direction`` is not (p,).
    """
    vector = flat.vector
    if direction.shape != vector.shape:
        raise DataError(
            f"direction must have shape {tuple(vector.shape)}, got {tuple(direction.shape)}"
        )
    direction = direction.detach().to(flat.dtype)
    slopes = [vector.new_empty(0)]
    part = share(len(examples))
    for features, labels in batches(flat, examples, batch_size, part=part):

        def losses(point: Tensor, features: Tensor = features, labels: Tensor = labels) -> Tensor:
            return flat.losses(point, features, labels, examples.task)

        # Under no_grad the primal pass would otherwise still record a backward graph.
        with torch.no_grad():
            slopes.append(jvp(losses, (vector,), (direction,))[1])
    return gathered(torch.cat(slopes), len(examples))
