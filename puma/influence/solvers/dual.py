"""The direct solve through the rows that matter: one Cholesky factor for many right-hand sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from puma.data.base import Examples
from puma.errors import SolverError, require_max_bytes
from puma.influence.flat_model import FlatModel
from puma.influence.gauss_newton import GaussNewton
from puma.influence.gauss_newton_rows import gauss_newton_rows
from puma.influence.gradient_rows import GradientRows
from puma.influence.layer_gradients import NoRuleError
from puma.influence.operators import LinearOperator, unshifted
from puma.influence.sharding import agreed
from puma.influence.solvers.cg import ConjugateGradients
from puma.influence.solvers.solver import Solution, check_rhs, norm, zero_solution
from puma.models.device import exact
from puma.models.tasks import likelihood_of

# Of the damping: so much the squared lengths of the rows that are left out may add up to.
LEFT_OUT = 0.05


class RowsInverse:
    """H⁻¹ of H = AᵀA + δI, by the Cholesky factor of KKᵀ + δI, K the rows of A that matter.

    H⁻¹x lies in the span of x and of the rows of A: H⁻¹ = (I − Aᵀ(AAᵀ + δI)⁻¹A)/δ. The shortest
    rows whose squared lengths add up to at most 5 % of δ are left out of K. What they add to H is
    then at most 5 % of δI, so the inverse is exact up to a twentieth, and each refinement
    x + H⁻¹(b − Hx) with the whole H divides the error by twenty or more.

    Attributes:
        rows: A.
        used: K.
        shift: δ > 0.
    """

    def __init__(self, rows: GradientRows, used: GradientRows, shift: float) -> None:
        self.rows, self.used, self.shift = rows, used, shift
        self._factor = _cholesky(self.used.gram(self.used), shift)

    def __call__(self, vector: Tensor) -> Tensor:
        """(p,) H⁻¹ times ``vector``, up to what is left out."""
        inner = _solved(self._factor, self.used @ vector)
        return (vector - self.used.transposed(inner)) / self.shift

    def product(self, vector: Tensor) -> Tensor:
        """(p,) H times ``vector``, with all rows."""
        return self.rows.transposed(self.rows @ vector) + self.shift * vector

    def between(self, others: GradientRows) -> Tensor:
        """(m, m) B H⁻¹ Bᵀ for other rows B (m, p), up to what is left out."""
        shared = exact(self.used.gram(others))
        across = torch.linalg.solve_triangular(self._factor, shared, upper=False)
        found: Tensor = (exact(others.gram(others)) - across.T @ across) / self.shift
        return found


class FewRows(Protocol):
    """A linear map R (m, p) of few rows."""

    @property
    def count(self) -> int:
        """The number m of rows."""
        ...

    def __matmul__(self, vector: Tensor) -> Tensor:
        """(m,) R times ``vector`` (p,)."""
        ...

    def transposed(self, coefficients: Tensor) -> Tensor:
        """(p,) Rᵀ times ``coefficients`` (m,)."""
        ...

    def between(self, inverse: RowsInverse) -> Tensor:
        """(m, m) R H⁻¹ Rᵀ."""
        ...


@runtime_checkable
class PlusFewRows(Protocol):
    """An operator H + RᵀR: a damped Gauss-Newton matrix H, and few rows R."""

    @property
    def curvature(self) -> LinearOperator:
        """H."""
        ...

    def few_rows(self) -> FewRows:
        """Compute R. Raises NoRuleError where a layer has no rule for its gradients."""
        ...


@dataclass(frozen=True)
class Dual:
    """The exact solve through the gradients of the rows that matter, or conjugate gradients.

    A damped Gauss-Newton matrix H = AᵀA + δI has one row √(w/n)·J_iᵀu for every example and
    every class but one. One Cholesky factor of AAᵀ + δI for the rows that matter
    (:class:`RowsInverse`) solves for any right-hand side; it is kept for each GaussNewton object.
    H + RᵀR (:class:`PlusFewRows`) takes one more factor, of the size of R. Solutions are refined
    with the products of all rows until the tolerance is met.

    The rows must be few: all of them, layer by layer, and two square matrices of those that
    matter must fit ``max_bytes``. Where they do not, or a trainable layer is not Linear, Conv2d
    or BatchNorm, conjugate gradients solve. ``Solution.rows`` is then 0.

    Attributes:
        tolerance: On the relative residual.
        max_iterations: Of the conjugate gradients.
        max_bytes: What the rows and the factor may take.

    Raises:
        SettingsError: A setting cannot be used.
    """

    solves_sums: ClassVar[bool] = True

    tolerance: float = 1e-4
    max_iterations: int = 1000
    max_bytes: int = 2**28
    _known: WeakKeyDictionary[GaussNewton, _Known] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        _ = self._iterative  # checks the two settings
        require_max_bytes(self.max_bytes)

    def solve(self, operator: LinearOperator, rhs: Tensor) -> Solution:
        """Solve ``operator`` x = ``rhs`` (p,).

        Raises:
            SolverError: The operator is not made of a damped Gauss-Newton matrix, is not positive
                definite, or round-off does not allow the tolerance; ``rhs`` is not finite.
        """
        check_rhs(operator, rhs)
        direct = self._direct(operator)
        if direct is None:
            return self._iterative.solve(operator, rhs)
        scale = norm(rhs)
        if scale == 0:
            return zero_solution(rhs)
        # A unit right-hand side keeps squared norms clear of float32's underflow.
        wanted = (exact(rhs) / scale).to(rhs)
        value, remainder, residual = torch.zeros_like(wanted), wanted, 1.0
        while residual > self.tolerance:
            value = value + direct.inverse(remainder)
            remainder = wanted - direct.product(value)
            before, residual = residual, norm(remainder)
            if not residual < before / 2:
                raise SolverError(
                    f"the direct solve stops at a relative residual of {residual:.3g}, tolerance "
                    f"{self.tolerance:.3g}: round-off allows no more; raise damping or loosen "
                    "tolerance"
                )
        value = (exact(value) * scale).to(rhs)
        return Solution(value, converged=True, iterations=0, residual=residual, rows=direct.rows)

    @property
    def _iterative(self) -> ConjugateGradients:
        return ConjugateGradients(tolerance=self.tolerance, max_iterations=self.max_iterations)

    def _direct(self, operator: LinearOperator) -> _Direct | None:
        """How to solve directly; None by the rule of the class."""
        if not isinstance(operator, PlusFewRows):
            inverse = self._inverse(operator)
            if inverse is None:
                return None
            return _Direct(inverse, inverse.product, inverse.used.count)
        inverse = self._inverse(operator.curvature)
        if inverse is None:
            return None
        rows = operator.few_rows()
        if not self._fits(inverse.rows, inverse.used.count + rows.count):
            return None
        return _plus(inverse, rows)

    def _inverse(self, operator: LinearOperator) -> RowsInverse | None:
        base, shift = unshifted(operator)
        if not isinstance(base, GaussNewton):
            raise SolverError(
                f"dual needs the rows of a Gauss-Newton matrix, got {type(base).__name__}; "
                "pass Shifted(GaussNewton(...), damping) or use solver 'cg'"
            )
        if shift == 0:
            raise SolverError(
                "the operator is not positive definite: few rows leave most directions without "
                "curvature; raise damping above 0"
            )
        known = self._known.get(base)
        if known is None or known.shift != shift:
            known = self._known[base] = _Known(shift, self._computed(base, shift))
        return known.inverse

    def _computed(self, matrix: GaussNewton, shift: float) -> RowsInverse | None:
        flat, examples = matrix.flat, matrix.examples
        classes = flat.classes(examples.features)
        if 16 * len(examples) * classes**2 > self.max_bytes:  # to find what the rows are
            return None
        try:
            if self._too_large(
                flat, examples, len(examples) * likelihood_of(examples.task).rank(classes)
            ):
                return None
            rows = gauss_newton_rows(flat, examples)
        except NoRuleError:
            return None
        used = significant(rows, shift)
        return RowsInverse(rows, rows.at(used), shift) if self._fits(rows, len(used)) else None

    def _too_large(self, flat: FlatModel, examples: Examples, count: int) -> bool:
        """Whether so many rows exceed the bound; one is tried where they might."""
        if 8 * count * flat.size <= self.max_bytes:
            return False
        one = torch.tensor([0], device=examples.labels.device)
        return gauss_newton_rows(flat, examples.subset(one)).nbytes * count > self.max_bytes

    def _fits(self, rows: GradientRows, factor: int) -> bool:
        return rows.nbytes + 16 * factor**2 <= self.max_bytes


@dataclass(frozen=True)
class _Known:
    """What was found out for a Gauss-Newton matrix with this damping."""

    shift: float
    inverse: RowsInverse | None


@dataclass(frozen=True)
class _Direct:
    """A rough inverse of a matrix, its exact products, and the size of its factor."""

    inverse: Callable[[Tensor], Tensor]
    product: Callable[[Tensor], Tensor]
    rows: int


def _plus(curvature: RowsInverse, rows: FewRows) -> _Direct:
    """For H + RᵀR: (H + RᵀR)⁻¹ = H⁻¹ − H⁻¹Rᵀ(I + RH⁻¹Rᵀ)⁻¹RH⁻¹."""
    factor = _cholesky(rows.between(curvature), 1.0)

    def inverse(vector: Tensor) -> Tensor:
        first = curvature(vector)
        inner = _solved(factor, rows @ first)
        return first - curvature(rows.transposed(inner))

    def product(vector: Tensor) -> Tensor:
        return curvature.product(vector) + rows.transposed(rows @ vector)

    return _Direct(inverse, product, curvature.used.count + rows.count)


def significant(rows: GradientRows, shift: float) -> Tensor:
    """Indices of the rows but the shortest, whose squared lengths add up to 5 % of ``shift``."""
    squares, order = agreed(rows.squares()).sort()
    left_out = int((squares.cumsum(0) <= LEFT_OUT * shift).sum())
    return order[left_out:].sort().values


def _solved(factor: Tensor, vector: Tensor) -> Tensor:
    """LLᵀx = ``vector`` for its factor L in double precision, in the vector's own."""
    found: Tensor = torch.cholesky_solve(exact(vector)[:, None], factor)[:, 0]
    return found.to(vector)


def _cholesky(kernel: Tensor, shift: float) -> Tensor:
    """The factor of ``kernel`` + ``shift``·I, in double precision; may overwrite the kernel."""
    damped = exact(kernel)
    damped.diagonal().add_(shift)
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(damped)
    if int(info) != 0 or not torch.isfinite(factor.diagonal()).all():
        raise SolverError(
            "the operator is not positive definite to working precision: its rows are not finite, "
            f"or damping {shift:.3g} drowns in their round-off; check the model or raise damping"
        )
    return factor
