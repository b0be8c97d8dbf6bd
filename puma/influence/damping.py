"""Damping as a value: an absolute number, or a fraction of the curvature's own scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from puma.errors import SettingsError, SolverError
from puma.influence.operators import LinearOperator, Shifted, device_of


@dataclass(frozen=True)
class Damping:
    """``value``, in units of curvature or of an eigenvalue, to be added to every eigenvalue.

    relative_to: None takes ``value`` as it is; "mean" multiplies it by the mean eigenvalue,
    "top" by the largest. Absolute numbers do not transfer between models, fractions do.
    products: how many operator products the estimate may take. seed: of its random vectors;
    the global random state is not used. The estimates are those of :func:`mean_eigenvalue` and
    :func:`top_eigenvalue`.

    Raises SettingsError for a value that is not finite and >= 0, an unknown reference or fewer
    than 3 products.
    """

    value: float
    relative_to: str | None = None
    products: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise SettingsError(f"damping must be finite and >= 0, got {self.value}")
        if self.relative_to is not None and self.relative_to not in REFERENCES:
            raise SettingsError(
                f"damping is relative to {' or '.join(REFERENCES)}, or None for an absolute "
                f"value, got {self.relative_to!r}"
            )
        if self.products < 3:
            raise SettingsError(f"products must be >= 3, got {self.products}")

    def resolve(self, operator: LinearOperator) -> float:
        """The number to add to ``operator``, in its unit.

        Raises SolverError when the eigenvalue that ``value`` refers to is not positive.
        """
        if self.relative_to is None:
            return self.value
        scale = REFERENCES[self.relative_to](operator, products=self.products, seed=self.seed)
        if not (math.isfinite(scale) and scale > 0):
            raise SolverError(
                f"damping is relative to the {self.relative_to} eigenvalue, which is {scale:.3g}; "
                "use the Gauss-Newton matrix or an absolute damping"
            )
        return self.value * scale


def damped(operator: LinearOperator, damping: float | Damping) -> Shifted:
    """``operator`` + damping·I. Raises what :class:`Damping` does."""
    damping = damping if isinstance(damping, Damping) else Damping(damping)
    return Shifted(operator, damping.resolve(operator))


def mean_eigenvalue(operator: LinearOperator, *, products: int = 12, seed: int = 0) -> float:
    """trace / p, by Hutch++ (Meyer et al., 2021).

    Hutchinson's random signs alone err by √(2/effective rank/probes), which a Gauss-Newton matrix
    with its few large eigenvalues makes hopeless. So a third of the ``products`` finds a subspace,
    a third takes the trace on it exactly, and only the rest is sampled. Unbiased; exact for a
    rank up to products/3, and for p <= products.
    """
    if operator.size <= products:
        signs = torch.eye(operator.size, dtype=operator.dtype, device=device_of(operator))
        return _quadratic(operator, signs) / operator.size
    third = products // 3
    generator = torch.Generator().manual_seed(seed)
    sketch = _signs(operator, third, generator)
    basis, _ = torch.linalg.qr(_times(operator, sketch))
    probes = _signs(operator, products - 2 * third, generator)
    probes = probes - basis @ (basis.T @ probes)
    sampled = _quadratic(operator, probes) / probes.shape[1]
    return (_quadratic(operator, basis) + sampled) / operator.size


def top_eigenvalue(operator: LinearOperator, *, products: int = 12, seed: int = 0) -> float:
    """The largest eigenvalue by Lanczos' method with full reorthogonalisation.

    A lower bound, usually within 1 % after a dozen ``products``; stops earlier once settled.
    """
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(operator.size, generator=generator, dtype=torch.float64)
    vector = (start / start.norm()).to(operator.dtype).to(device_of(operator))
    basis: list[Tensor] = []
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(min(products, operator.size)):
        basis.append(vector)
        image = operator @ vector
        diagonal.append(_dot(vector, image))
        _require_finite(diagonal[-1])
        known = torch.stack(basis, 1)
        for _twice in range(2):  # once leaves round-off of the size of the top eigenvalue
            image = image - known @ (known.T @ image)
        length = math.sqrt(_dot(image, image))
        values, vectors = _tridiagonal(diagonal, beside)
        settled = length * abs(float(vectors[-1, -1])) <= 1e-4 * abs(float(values[-1]))
        if settled or length == 0:
            break
        beside.append(length)
        vector = image / length
    return float(values[-1])


REFERENCES = {"mean": mean_eigenvalue, "top": top_eigenvalue}


def _tridiagonal(diagonal: list[float], beside: list[float]) -> tuple[Tensor, Tensor]:
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if beside:
        matrix += torch.diag(torch.tensor(beside, dtype=torch.float64), 1)
        matrix += torch.diag(torch.tensor(beside, dtype=torch.float64), -1)
    return torch.linalg.eigh(matrix)


def _signs(operator: LinearOperator, count: int, generator: torch.Generator) -> Tensor:
    """(p, count) random ±1."""
    bits = torch.randint(0, 2, (operator.size, count), generator=generator)
    return (2 * bits - 1).to(operator.dtype).to(device_of(operator))


def _times(operator: LinearOperator, matrix: Tensor) -> Tensor:
    return torch.stack([operator @ column for column in matrix.T.contiguous()], 1)


def _quadratic(operator: LinearOperator, matrix: Tensor) -> float:
    """Σ vᵀAv over the columns v of ``matrix``."""
    total = sum(_dot(column, operator @ column) for column in matrix.T.contiguous())
    _require_finite(total)
    return total


def _dot(left: Tensor, right: Tensor) -> float:
    return float(left.double() @ right.double())


def _require_finite(number: float) -> None:
    if not math.isfinite(number):
        raise SolverError(
            "the operator returned a product that is not finite; check the model's parameters "
            "and the features"
        )
