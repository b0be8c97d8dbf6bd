"""Per-example gradients as one matrix, whose linear layers stay products of two thin matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from puma.influence.flat_model import FlatModel
from puma.influence.layer_gradients import (
    LayerSignals,
    NoRuleError,
    layer_gradients,
    require_layer_gradients,
)
from puma.influence.sharding import gathered, share, unanimous


@dataclass(frozen=True)
class GradientRows:
    """The (r, p) matrix A whose row i is J_iᵀ seeds_i, in the model's dtype.

    J_i is the Jacobian of example i's logits by the trainable parameters. In a linear layer,
    row i is the outer product of what comes back and of what went in. Only these two are kept, so
    a row takes the widths of the layers and not their products; multiplying uses them as they are.

    Attributes:
        like: (0,) of the device and dtype of all numbers.
        count: r.
        size: p. Columns of no part are 0.
        parts: The columns, layer by layer.
    """

    like: Tensor
    count: int
    size: int
    parts: tuple[_Outer | _Written, ...]

    def __matmul__(self, vector: Tensor) -> Tensor:
        """(r,) A times ``vector`` (p,)."""
        total = self.like.new_zeros(self.count)
        for part in self.parts:
            total += part.times(vector)
        return total

    def transposed(self, coefficients: Tensor) -> Tensor:
        """(p,) Aᵀ times ``coefficients`` (r,)."""
        total = self.like.new_zeros(self.size)
        for part in self.parts:
            part.add_transposed(coefficients, total)
        return total

    def gram(self, other: GradientRows) -> Tensor:
        """(r, r') A times the transpose of ``other``, which has the same model's rows."""
        total = self.like.new_zeros(self.count, other.count)
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            total += mine.gram(theirs)  # type: ignore[arg-type]
        return total

    def squares(self) -> Tensor:
        """(r,) the squared lengths of the rows."""
        total = self.like.new_zeros(self.count)
        for part in self.parts:
            total += part.squares()
        return total

    def at(self, rows: Tensor) -> GradientRows:
        """The rows at these indices."""
        parts = tuple(part.at(rows) for part in self.parts)
        return GradientRows(self.like, len(rows), self.size, parts)

    def gathered(self, count: int) -> GradientRows:
        """The ``count`` rows of all ranks, of which these are this one's."""
        parts = tuple(part.gathered(count) for part in self.parts)
        return GradientRows(self.like, count, self.size, parts)

    def double(self) -> GradientRows:
        """The same in double precision."""
        parts = tuple(part.double() for part in self.parts)
        return GradientRows(self.like.double(), self.count, self.size, parts)

    @property
    def nbytes(self) -> int:
        """The memory of all parts."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True)
class _Outer:
    """A linear layer: row i of its weight is out_i ⊗ into_i, of its bias out_i."""

    into: Tensor
    out: Tensor
    weight: slice | None
    bias: slice | None

    def times(self, vector: Tensor) -> Tensor:
        total = self.out.new_zeros(len(self.out))
        if self.weight is not None:
            matrix = vector[self.weight].view(self.out.shape[1], self.into.shape[1])
            total += ((self.out @ matrix) * self.into).sum(1)
        if self.bias is not None:
            total += self.out @ vector[self.bias]
        return total

    def add_transposed(self, coefficients: Tensor, total: Tensor) -> None:
        weighted = self.out * coefficients[:, None]
        if self.weight is not None:
            total[self.weight] += (weighted.T @ self.into).flatten()
        if self.bias is not None:
            total[self.bias] += weighted.sum(0)

    def gram(self, other: _Outer) -> Tensor:
        inputs = self.out.new_full((len(self.out), len(other.out)), float(self.bias is not None))
        if self.weight is not None:
            inputs.addmm_(self.into, other.into.T)
        return inputs.mul_(self.out @ other.out.T)

    def squares(self) -> Tensor:
        inputs = self.into.square().sum(1) if self.weight is not None else 0.0
        return (inputs + float(self.bias is not None)) * self.out.square().sum(1)

    def at(self, rows: Tensor) -> _Outer:
        return _Outer(self.into[rows], self.out[rows], self.weight, self.bias)

    def gathered(self, count: int) -> _Outer:
        into, out = gathered(self.into, count), gathered(self.out, count)
        return _Outer(into, out, self.weight, self.bias)

    def double(self) -> _Outer:
        return _Outer(self.into.double(), self.out.double(), self.weight, self.bias)

    @property
    def nbytes(self) -> int:
        return self.into.nbytes + self.out.nbytes

    @staticmethod
    def joined(parts: Sequence[_Outer]) -> _Outer:
        into, out = (
            torch.cat(sides) for sides in zip(*((p.into, p.out) for p in parts), strict=True)
        )
        return _Outer(into, out, parts[0].weight, parts[0].bias)


@dataclass(frozen=True)
class _Written:
    """A parameter whose rows (r, its numbers) are written down."""

    rows: Tensor
    place: slice

    def times(self, vector: Tensor) -> Tensor:
        return self.rows @ vector[self.place]

    def add_transposed(self, coefficients: Tensor, total: Tensor) -> None:
        total[self.place] += self.rows.T @ coefficients

    def gram(self, other: _Written) -> Tensor:
        return self.rows @ other.rows.T

    def squares(self) -> Tensor:
        return self.rows.square().sum(1)

    def at(self, rows: Tensor) -> _Written:
        return _Written(self.rows[rows], self.place)

    def gathered(self, count: int) -> _Written:
        return _Written(gathered(self.rows, count), self.place)

    def double(self) -> _Written:
        return _Written(self.rows.double(), self.place)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    @staticmethod
    def joined(parts: Sequence[_Written]) -> _Written:
        return _Written(torch.cat([part.rows for part in parts]), parts[0].place)


def gradient_rows(
    flat: FlatModel,
    features: Tensor,
    seeds: Tensor,
    *,
    rows: Tensor | None = None,
) -> GradientRows:
    """Compute the matrix of J_iᵀ seeds_i at ``flat.vector``.

    Args:
        flat: The model; its trainable layers must all have a rule (:mod:`.layer_gradients`).
        features: (n, ...) of the examples.
        seeds: (r, classes) what is pulled back through each row's logits.
        rows: (r,) the example of each row; None: the examples in their order.

    Raises:
        NoRuleError: A trainable layer has no rule or does not see one entry per example, or a
            parameter is used outside of its layer.
    """
    count, own = len(seeds), share(len(seeds))
    # At least one row: the layers are what all ranks have to know.
    tried = slice(own.start, max(own.stop, min(own.start + 1, count)))
    found = unanimous(lambda: _own_rows(flat, features, seeds, rows, tried), NoRuleError)
    if tried != own:
        found = found.at(torch.arange(0, device=seeds.device))
    return found.gathered(count)


def _own_rows(
    flat: FlatModel, features: Tensor, seeds: Tensor, rows: Tensor | None, own: slice
) -> GradientRows:
    """Those of the rows ``own``."""
    signals = LayerSignals(flat, "a matrix of gradients")
    like = flat.vector[:0]
    pieces: list[tuple[_Outer | _Written, ...]] = []
    for start in range(own.start, own.stop, flat.batch_size):
        batch = slice(start, min(start + flat.batch_size, own.stop))
        chosen = features[batch] if rows is None else features[rows[batch]]
        pieces.append(_parts(signals, flat.slices, chosen, seeds[batch]))
        if start == own.start:
            first = GradientRows(like, len(chosen), flat.size, pieces[0])
            if not flat.layer_wise:  # once a model
                require_layer_gradients(flat, first.transposed, chosen, seeds[batch])
                flat.layer_wise = True
    joined = tuple(map(_joined, zip(*pieces, strict=True)))
    return GradientRows(like, own.stop - own.start, flat.size, joined)


def _parts(
    signals: LayerSignals, slices: dict[str, slice], features: Tensor, seeds: Tensor
) -> tuple[_Outer | _Written, ...]:
    """The rows of a batch. A parameter with several uses has the sum of what they give."""
    found = signals.of(features, seeds)
    uses = Counter(home for name, *_ in found for home in signals.homes[name].values())
    outer, written = list[_Outer](), dict[str, Tensor]()
    for name, into, out in found:
        layer, homes = signals.layers[name], signals.homes[name]
        if (
            isinstance(layer, nn.Linear)
            and into.ndim == 2
            and all(uses[h] == 1 for h in homes.values())
        ):
            weight, bias = (
                slices[homes[key]] if key in homes else None for key in ("weight", "bias")
            )
            outer.append(_Outer(into, out, weight, bias))
            continue
        gradients = layer_gradients(layer, into, out)
        for key, home in homes.items():
            rows = gradients[key].flatten(1)
            written[home] = written[home] + rows if home in written else rows
    return (*outer, *(_Written(rows, slices[home]) for home, rows in written.items()))


def _joined(parts: tuple[_Outer | _Written, ...]) -> _Outer | _Written:
    if len(parts) == 1:
        return parts[0]
    return type(parts[0]).joined(parts)  # type: ignore[arg-type]
