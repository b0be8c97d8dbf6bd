"""The Gram matrix of the margins' gradients: the empirical neural tangent kernel of the margin."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import jvp

from puma.data.base import Examples
from puma.influence.flat_model import FlatModel, batches, require_consistent, require_examples
from puma.influence.gauss_newton import MarginGaussNewton
from puma.influence.layer_gradients import NoRuleError
from puma.models.tasks import likelihood_of

DIRECTIONS = 512  # random ones, for networks with layers that have no rule


def margin_gram(model: nn.Module, examples: Examples, *, seed: int = 0) -> Tensor:
    """Compute K_ij = ∇m_i·∇m_j of the examples' margins, by the trainable parameters of ``model``.

    Layer by layer, without a gradient of any single example where the layer is linear
    (:class:`.gradient_rows.GradientRows`). A network with trainable parameters elsewhere, or used
    outside of their layer, is projected: K is estimated from the
    derivatives along random directions, without bias and with a relative standard error of about
    √(2/512) on the diagonal.

    Args:
        model: In eval mode here, whatever it is in; not changed.
        examples: The n rows.
        seed: Of the random directions; the global random state is not used.

    Returns:
        (n, n) float64, symmetric and positive semi-definite; squared logits per squared
        parameter unit.

    Raises:
        DataError: There are no examples, or their dtype is not the model's.
        ModelError: The model is random in eval mode.
    """
    flat = FlatModel(model)
    require_examples(examples, "the kernel of the margins")
    require_consistent(flat, examples)
    try:
        rows = MarginGaussNewton(flat, examples).rows(len(examples))
    except NoRuleError:
        return _projected(flat, examples, seed)
    rows = rows.double()
    return rows.gram(rows)


def _projected(flat: FlatModel, examples: Examples, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.empty(len(examples), DIRECTIONS, dtype=torch.float64, device=flat.device)
    for number in range(DIRECTIONS):
        direction = torch.randn(flat.size, generator=generator).to(flat.vector)
        start = 0
        for features, labels in batches(flat, examples):

            def value(vector: Tensor, x: Tensor = features, y: Tensor = labels) -> Tensor:
                return likelihood_of(examples.task).margins(flat.logits(vector, x), y)

            with torch.no_grad():
                derivative = jvp(value, (flat.vector,), (direction,))[1]
            found[start : start + len(labels), number] = derivative.double()
            start += len(labels)
    return found @ found.T / DIRECTIONS
