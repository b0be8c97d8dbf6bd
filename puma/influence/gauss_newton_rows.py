"""A Gauss-Newton matrix as AᵀA with few rows: cheap products, and its inverse in closed form."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from puma.data.base import Examples
from puma.errors import (
    SettingsError,
    require_max_bytes,
    require_memory,
    require_seed,
)
from puma.influence.flat_model import FlatModel, batches, require_consistent, require_examples
from puma.influence.gradient_rows import GradientRows, gradient_rows
from puma.influence.layer_gradients import LayerRows, require_layer_gradients
from puma.influence.sharding import agreed, gathered, share
from puma.models.device import exact
from puma.models.tasks import likelihood_of, row_weights

# The exponent of the trace by which examples are drawn; measured on MNIST: docs/method.md.
TRACE_POWER = 0.75


class GaussNewtonRows:
    """The Gauss-Newton matrix of the task's mean loss as AᵀA, A of at most ``rows`` rows.

    Each row is a_i = w_i·J_iᵀu. J_i is the Jacobian of example i's outputs and u an eigenvector of
    the loss's Hessian in these (of cross-entropy diag(p_i) − p_i p_iᵀ), scaled so that all rows of
    all examples give the matrix of :class:`GaussNewton` exactly. If these, n·(classes − 1) for
    cross-entropy and n for one output, are no more than
    ``rows``, all are taken and AᵀA IS that matrix (``exact``). Otherwise it is an unbiased
    estimate: examples are drawn by systematic sampling with probability ∝ trace^0.75, the trace
    being that of the Hessian in the logits; each gives one eigenvector, drawn with probability
    ∝ its eigenvalue; the weights w_i undo the preference. A row that is drawn k times is computed
    once, √k times as long, so that there are often fewer rows than ``rows``.

    The model may have trainable parameters in Linear, Conv2d and BatchNorm layers only. A is
    computed at its first use and kept. Unit: nats per squared parameter unit.

    Args:
        flat: The model.
        examples: What the mean is over.
        rows: The most rows; None takes all, however many.
        seed: Of the draws; the global random state is not used.
        batch_size: Of the passes; None takes the model's own.
        max_bytes: The memory for A and AAᵀ.

    Raises:
        DataError: There are no examples.
        SettingsError: A setting cannot be used.
        SolverError: The rows need more memory than ``max_bytes``.
        ModelError: Another layer is trainable, a parameter is used outside of its layer, or the
            model is random in eval mode.
    """

    def __init__(
        self,
        flat: FlatModel,
        examples: Examples,
        *,
        rows: int | None = 1024,
        seed: int = 0,
        batch_size: int | None = None,
        max_bytes: int = 2**30,
    ) -> None:
        check_rows(rows, seed, max_bytes)
        require_examples(examples, "the Gauss-Newton matrix")
        batches(flat, examples, batch_size)
        require_consistent(flat, examples)
        self.size, self.dtype, self.flat, self.examples = flat.size, flat.dtype, flat, examples
        self._seed, self._batch_size = seed, batch_size
        each = likelihood_of(examples.task).rank(flat.classes(examples.features))
        whole = len(examples) * each
        self.exact = rows is None or whole <= rows
        self._each = each if self.exact else 1
        self._drawn = len(examples) if rows is None or self.exact else rows
        self._require_memory(max_bytes)

    def __matmul__(self, vector: Tensor) -> Tensor:
        return self.factor.T @ (self.factor @ vector)

    @cached_property
    def kernel(self) -> Tensor:
        """(rows, rows) AAᵀ in double precision; its nonzero eigenvalues are those of AᵀA."""
        return exact(self.factor @ self.factor.T)

    @cached_property
    def factor(self) -> Tensor:
        """(rows, p) A."""
        chosen, seeds = self.seeds()
        count, own = len(seeds), share(len(seeds))
        chosen, seeds = chosen[own], seeds[own]
        layers = LayerRows(self.flat)
        factor = torch.zeros(len(seeds), self.size, dtype=self.dtype, device=self.flat.device)
        step = self._batch_size or self.flat.batch_size
        for start in range(0, len(seeds), step):
            part = slice(start, start + step)
            features = self.examples.features[chosen[part]]
            rows = factor[part]
            layers.fill(rows, features, seeds[part])
            if start == 0:
                require_layer_gradients(self.flat, rows.T.matmul, features, seeds[part])
        return gathered(factor, count)

    def seeds(self) -> tuple[Tensor, Tensor]:
        """Return each row's example, and (rows, classes) w_i·u to pull back through its logits."""
        outputs, likelihood = self._outputs(), likelihood_of(self.examples.task)
        own = row_weights(self.examples.task, self.examples.labels.cpu(), outputs)
        n = len(outputs)
        generator = torch.Generator().manual_seed(self._seed)
        chosen, weights = torch.arange(n), torch.full((n,), 1 / n, dtype=torch.float64)
        if not self.exact:
            traces = likelihood.traces(outputs)
            if own is not None:
                traces = traces * own
            chosen, weights = _draw(traces**TRACE_POWER, self._drawn, generator)
        values, vectors = likelihood.eigenpairs(outputs[chosen])
        if own is not None:
            values = values * own[chosen, None]
        if self._each == 1 and values.shape[1] > 1:
            traces = values.sum(1, keepdim=True)
            uniform = torch.rand(len(values), 1, generator=generator, dtype=torch.float64)
            picked = (values.cumsum(1) < uniform * traces).sum(1).clamp(max=values.shape[1] - 1)
            # A row that was drawn k times is one row √k times as long.
            first, times = _first_and_times(chosen * values.shape[1] + picked)
            chosen, weights = chosen[first], weights[first] * times
            vectors = vectors[first, picked[first]][:, None]
            values = traces[first]  # eigenvalue / probability
        seeds = (values * weights[:, None]).sqrt()[:, :, None] * vectors
        chosen = chosen.repeat_interleave(seeds.shape[1])
        device = self.examples.features.device
        seeds = agreed(seeds.flatten(0, 1))  # where eigenvalues repeat, eigenvectors are a choice
        return agreed(chosen).to(device), seeds.to(self.dtype).to(device)

    @torch.no_grad()
    def _outputs(self) -> Tensor:
        """(n, K) in double precision: 1 − p must survive p near 1."""
        n, vector = len(self.examples), self.flat.vector
        parts = [exact(vector.new_empty(0, self.flat.classes(self.examples.features)))]
        parts += [
            exact(self.flat.logits(vector, features))
            for features, _ in batches(self.flat, self.examples, self._batch_size, part=share(n))
        ]
        return gathered(torch.cat(parts), n).cpu()

    def _require_memory(self, max_bytes: int) -> None:
        rows = self._drawn * self._each
        item = torch.finfo(self.dtype).bits // 8

        def needed(count: int) -> int:
            return count * self.size * item + 2 * count * count * 8  # AAᵀ and its factorisation

        most = int((((self.size * item) ** 2 + 64 * max_bytes) ** 0.5 - self.size * item) / 32)
        require_memory(
            needed(rows),
            max_bytes,
            f"{rows} rows of {self.size} parameters",
            f"lower rows to {most} or raise max_bytes",
        )


def gauss_newton_rows(flat: FlatModel, examples: Examples) -> GradientRows:
    """Compute A of the whole Gauss-Newton matrix AᵀA, see :class:`GaussNewtonRows`, layer by layer.

    Raises:
        NoRuleError: The layers do not give the model's per-example gradients.
    """
    chosen, seeds = GaussNewtonRows(flat, examples, rows=None, max_bytes=2**62).seeds()
    return gradient_rows(flat, examples.features, seeds, rows=chosen)


def check_rows(rows: int | None, seed: int, max_bytes: int) -> None:
    """Raise SettingsError for settings that no :class:`GaussNewtonRows` can have."""
    if rows is not None and rows < 1:
        raise SettingsError(f"rows must be >= 1, or None for all, got {rows}")
    require_seed(seed, SettingsError)
    require_max_bytes(max_bytes)


def _first_and_times(keys: Tensor) -> tuple[Tensor, Tensor]:
    """(where each of the distinct ``keys`` stands first, how often it comes), by its size."""
    _, group, times = keys.unique(return_inverse=True, return_counts=True)
    first = torch.empty(len(times), dtype=torch.int64)
    first[group.flip(0)] = torch.arange(len(keys)).flip(0)
    return first, times


def _draw(preference: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(``count`` indices with probability ∝ ``preference``, weights of an unbiased MEAN).

    Systematic: one random offset, equal steps through the cumulative sum. Each index comes as
    often as expected, up to one, so equal preferences give no repetition.
    """
    ends = preference.cumsum(0)
    total = float(ends[-1])
    if total == 0:  # every prediction is certain: all rows are zero, whichever are drawn
        return torch.arange(count) % len(ends), torch.zeros(count, dtype=torch.float64)
    offset = torch.rand(1, generator=generator, dtype=torch.float64)
    places = (torch.arange(count, dtype=torch.float64) + offset) * (total / count)
    chosen = torch.searchsorted(ends, places, right=True).clamp(max=len(ends) - 1)
    return chosen, total / (preference[chosen] * count * len(ends))
