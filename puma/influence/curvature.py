"""Which curvature: its kind, its damping and the examples it is taken over, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from puma.data.base import Examples
from puma.errors import SettingsError, require_seed
from puma.influence.flat_model import FlatModel, require_examples
from puma.influence.gauss_newton import GaussNewton
from puma.influence.gauss_newton_rows import GaussNewtonRows
from puma.influence.operators import Hessian, LinearOperator, Shifted, require_damping

CURVATURES: dict[str, Callable[[FlatModel, Examples], LinearOperator]] = {
    "gauss_newton": GaussNewton,
    "gauss_newton_rows": GaussNewtonRows,
    "hessian": Hessian,
}


@dataclass(frozen=True)
class Curvature:
    """Settings of the matrix H of Eq. 9; ``operator`` makes the matrix.

    To use the retained data only, pass only these to ``operator``.

    Attributes:
        kind: A name in CURVATURES.
        damping: Added to every eigenvalue, in nats per squared parameter unit.
        sample: Take the mean over that many examples, drawn with ``seed``; None takes all.
        seed: Of the sample.

    Raises:
        SettingsError: An unknown kind, a damping below 0, a sample below one, or a bad seed.
    """

    kind: str = "gauss_newton"
    damping: float = 0.1
    sample: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in CURVATURES:
            raise SettingsError(
                f"unknown curvature {self.kind!r}; choose one of {', '.join(sorted(CURVATURES))}"
            )
        require_damping(self.damping)
        require_seed(self.seed, SettingsError)
        if self.sample is not None:
            _require_positive(self.sample)

    def operator(self, flat: FlatModel, examples: Examples) -> Shifted:
        """Make the damped p x p matrix at ``flat.vector``, in nats per squared parameter unit."""
        if self.sample is not None:
            examples = sampled(examples, self.sample, seed=self.seed)
        return Shifted(CURVATURES[self.kind](flat, examples), self.damping)


def sampled(examples: Examples, n: int, *, seed: int = 0) -> Examples:
    """Draw ``n`` of the examples without replacement and keep their order; all if n >= theirs.

    The same seed draws the same rows, and the global random state is not used.

    Raises:
        DataError: There are no examples.
        SettingsError: n is below one, or a bad seed.
    """
    require_examples(examples, "a sample")
    rows = sampled_rows(len(examples), n, seed=seed)
    if len(rows) == len(examples):
        return examples
    return examples.subset(rows.to(examples.labels.device))


def sampled_rows(count: int, n: int, *, seed: int) -> Tensor:
    """The ascending places, among ``count`` examples, of those that :func:`sampled` draws."""
    _require_positive(n)
    require_seed(seed, SettingsError)
    if n >= count:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator)[:n].sort().values


def _require_positive(n: int) -> None:
    if not isinstance(n, Integral) or n < 1:
        raise SettingsError(f"sample must be >= 1, got {n!r}; pass an integer, or None for all")
