"""How much each row's own loss hangs on the row: exactly, for all rows, by one factorisation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from puma.data.base import Dataset, Examples
from puma.errors import SettingsError, SolverError, require_max_bytes, require_memory
from puma.influence import (
    ConjugateGradients,
    FlatModel,
    GaussNewton,
    GaussNewtonRows,
    Shifted,
    weighted_gradient,
)
from puma.influence.operators import require_damping
from puma.label_errors.gradients import CHUNK_BYTES, chunk, gradient_rows
from puma.label_errors.ranker import as_suspicion
from puma.models.tasks import likelihood_of

METHODS = ("auto", "cg")
Quadratic = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class SelfInfluence:
    """g_iᵀH⁻¹g_i with g_i = ∇L_i and H the Gauss-Newton matrix G of the mean loss + damping·I.

    Up-weighting row i by ε/n lowers its own loss by (ε/n) times this (Koh and Liang, 2017), so a
    row that only its own presence explains has a large one. Never negative. The paper solves one
    system per row. But all rows share one matrix, and one factorisation of it serves them all:

    - With p parameters and N = n·(classes − 1) >= p (n of a model with one output), G is written
      down, p x p, and factorised. Time ~ n·p² + p³.
    - Otherwise G = AᵀA with N rows, and by Woodbury's identity
      gᵀH⁻¹g = (‖g‖² − ‖K⁻¹ᐟ²Ag‖²)/damping with K = AAᵀ + damping·I, N x N. Time ~ N²·p + N³.
      The difference loses as many digits as damping is below G's eigenvalues.

    All in double precision, whatever the model's own.

    Attributes:
        damping: Added to every eigenvalue of G, in nats per squared parameter unit.
        method: "auto" as above, for models whose trainable layers are Linear, Conv2d and
            BatchNorm. "cg" is conjugate gradients row by row: slow, for any layers.
        tolerance: Of the conjugate gradients.
        max_bytes: The memory for the matrices.

    Raises:
        SettingsError: A setting cannot be used.
    """

    name: ClassVar[str] = "self_influence"

    damping: float = 0.1
    method: str = "auto"
    tolerance: float = 1e-6
    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        require_damping(self.damping)
        if self.method not in METHODS:
            raise SettingsError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        ConjugateGradients(tolerance=self.tolerance)  # checks the number
        require_max_bytes(self.max_bytes)

    def suspicion(self, model: nn.Module, dataset: Dataset, *, progress: bool = False) -> Tensor:
        """(n,) g_iᵀH⁻¹g_i, in nats.

        Raises:
            SolverError: The matrices are beyond ``max_bytes``, or H is not positive definite.
            ModelError: "auto" does not know a layer.
        """
        flat = FlatModel(copy.deepcopy(model).double())
        examples = dataset.train
        examples = replace(examples, features=examples.features.double())
        with tqdm(
            total=len(examples), desc=self.name, unit="row", disable=not progress, mininterval=2
        ) as bar:
            return as_suspicion(self._scores(flat, examples, bar), self.name)

    def _scores(self, flat: FlatModel, examples: Examples, bar: tqdm[Any]) -> Tensor:
        if self.method == "cg":
            return _by_cg(flat, examples, self.damping, self.tolerance, bar)
        with torch.no_grad():
            outputs = flat.logits(flat.vector, examples.features[:1]).shape[1]
        each = likelihood_of(examples.task).rank(outputs)
        quadratic = self._prepared(flat, examples, each)
        parts = []
        for rows in gradient_rows(flat, examples):
            parts.append(quadratic(rows))
            bar.update(len(rows))
        return torch.cat(parts)

    def _prepared(self, flat: FlatModel, examples: Examples, each: int) -> Quadratic:
        """The map (B, p) gradients -> (B,) gᵀH⁻¹g."""
        count, p = len(examples) * each, flat.size
        by_parameters = p <= count
        numbers = 2 * p * p if by_parameters else count * p + 2 * count * count
        require_memory(
            8 * numbers + 3 * CHUNK_BYTES,
            self.max_bytes,
            f"self-influence: the matrices of {p} parameters and {count} rows",
            "raise max_bytes, rank fewer rows, freeze all but the last layers, or use method 'cg'",
        )
        if by_parameters:
            return _by_parameters(flat, examples, self.damping, each)
        return _by_examples(flat, examples, self.damping, self.max_bytes)


def _by_parameters(flat: FlatModel, examples: Examples, shift: float, each: int) -> Quadratic:
    matrix = torch.zeros(flat.size, flat.size, dtype=flat.dtype, device=flat.device)
    places = torch.arange(len(examples), device=examples.labels.device)
    for rows in places.split(chunk(flat, flat.batch_size, rows_each=each)):
        part = GaussNewtonRows(flat, examples.subset(rows), rows=None, max_bytes=2**62).factor
        matrix.addmm_(part.T, part, alpha=len(rows) / len(examples))
    factor = _factor(matrix, shift)
    return lambda rows: _half(factor, rows.T).square().sum(0)


def _by_examples(flat: FlatModel, examples: Examples, shift: float, max_bytes: int) -> Quadratic:
    if shift == 0:
        raise SolverError("Woodbury's identity divides by damping, which is 0; raise it")
    rows = GaussNewtonRows(flat, examples, rows=None, max_bytes=max_bytes).factor
    factor = _factor(rows @ rows.T, shift)

    def quadratic(gradients: Tensor) -> Tensor:
        explained = _half(factor, rows @ gradients.T).square().sum(0)
        return (gradients.square().sum(1) - explained) / shift

    return quadratic


def _by_cg(
    flat: FlatModel, examples: Examples, shift: float, tolerance: float, bar: tqdm[Any]
) -> Tensor:
    operator, solver = Shifted(GaussNewton(flat, examples), shift), ConjugateGradients(tolerance)
    weight = torch.ones(1, dtype=flat.dtype, device=flat.device)
    scores = []
    for row in torch.arange(len(examples), device=examples.labels.device).split(1):
        gradient = weighted_gradient(flat, examples.subset(row), weight)
        scores.append(gradient @ solver.solve(operator, gradient).value)
        bar.update()
    return torch.stack(scores)


def _factor(matrix: Tensor, shift: float) -> Tensor:
    """The lower Cholesky factor of ``matrix`` + ``shift``·I; the diagonal is changed in place."""
    matrix.diagonal().add_(shift)
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) != 0 or not torch.isfinite(factor).all():
        raise SolverError(
            f"the damped Gauss-Newton matrix is not positive definite with damping {shift:.3g}; "
            "raise damping, and check that the model's parameters are finite"
        )
    lower: Tensor = factor
    return lower


def _half(factor: Tensor, columns: Tensor) -> Tensor:
    solved: Tensor = torch.linalg.solve_triangular(factor, columns, upper=False)
    return solved
