"""EK-FAC (George et al., 2018) by way of curvlinops: one Kronecker product a layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from puma.errors import ModelError, SettingsError, SolverError
from puma.influence.flat_model import batches
from puma.influence.gauss_newton import GaussNewton
from puma.influence.layer_gradients import require_layers
from puma.influence.operators import LinearOperator, unshifted
from puma.influence.solvers.solver import (
    Solution,
    check_rhs,
    norm,
    relative_residual,
    zero_solution,
)

LAYERS = (nn.Linear, nn.Conv2d)


@dataclass(frozen=True)
class EKFAC:
    """(E + δI)⁻¹b with E the eigenvalue-corrected Kronecker factors of a Gauss-Newton matrix.

    Solves ``Shifted(GaussNewton(...), δ)``. E has no entries between layers. Within a layer it is
    diagonal in the product of the eigenbases of two covariances: of the layer's inputs, and of the
    gradients of its outputs. Weight and bias share a block. The curvature of the outputs is exact
    (curvlinops' type-2 Fisher); nothing is sampled. E equals the matrix for one linear layer if
    the examples share their predicted probabilities or their features; in general it is an
    approximation. E is computed once for each GaussNewton object.

    Models with trainable parameters outside of Linear and Conv2d, tied weights, layers that are
    called several times in a pass, grouped convolutions and padding other than with zeros are
    refused by name: the factors do not hold for them.

    Attributes:
        batch_size: Of the passes; None takes the model's own.

    Raises:
        SettingsError: ``batch_size`` is below one.
    """

    solves_sums: ClassVar[bool] = False

    batch_size: int | None = None
    _known: WeakKeyDictionary[GaussNewton, _Factors] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise SettingsError(f"batch_size must be >= 1, got {self.batch_size}")

    def solve(self, operator: LinearOperator, rhs: Tensor) -> Solution:
        """Solve ``operator`` x = ``rhs`` (p,), and measure the residual on the operator.

        Raises:
            SolverError: The operator is not a damped Gauss-Newton matrix, or ``rhs`` is not finite.
            ModelError: EK-FAC does not cover the model.
        """
        check_rhs(operator, rhs)
        apply = self.inverse(operator)
        if norm(rhs) == 0:
            return zero_solution(rhs)
        value = apply(rhs)
        if not torch.isfinite(value).all():
            raise SolverError("EK-FAC's solution is not finite; check the model or raise damping")
        return Solution(value, True, 0, relative_residual(operator, rhs, value))

    def inverse(self, operator: LinearOperator) -> Callable[[Tensor], Tensor]:
        """Return the map x -> (E + δI)⁻¹x, a preconditioner. Raises what ``solve`` raises."""
        base, shift = unshifted(operator)
        if not isinstance(base, GaussNewton):
            raise SolverError(
                f"ekfac needs the layers of a Gauss-Newton matrix, got {type(base).__name__}; "
                "pass Shifted(GaussNewton(...), damping) or use solver 'cg'"
            )
        if shift == 0:
            raise SolverError(
                "the operator is not positive definite enough for ekfac, whose factors have "
                "eigenvalues of 0; raise damping above 0"
            )
        if base not in self._known:
            self._known[base] = _Factors(base, self.batch_size)
        factors = self._known[base]
        return lambda vector: factors.solve(vector, shift)


class _Factors:
    """curvlinops' EK-FAC of the covered parameters, and where these lie in the flat vector."""

    def __init__(self, base: GaussNewton, batch_size: int | None) -> None:
        try:
            from curvlinops import EKFACLinearOperator  # type: ignore[import-untyped]
        except ImportError as error:
            raise SolverError(
                "solver 'ekfac' needs the package curvlinops-for-pytorch, which is not installed; "
                "install it or use solver 'woodbury'"
            ) from error
        flat = base.flat
        model = flat.module(flat.vector)
        layers = require_layers(model, "ekfac", LAYERS)
        _require_plain(model, layers, base)
        own = {id(p): name for name, p in model.named_parameters()}
        covered = [
            p
            for layer in layers.values()
            for p in layer._parameters.values()
            if p is not None and p.requires_grad
        ]
        self._places = [flat.slices[own[id(p)]] for p in covered]
        for parameter in model.parameters():
            parameter.requires_grad_(any(parameter is p for p in covered))
        data = list(batches(flat, base.examples, batch_size))
        self._matrix: Any = EKFACLinearOperator(
            model,
            nn.CrossEntropyLoss(reduction="mean"),
            covered,
            data,
            check_deterministic=False,
            fisher_type="type-2",
            num_per_example_loss_terms=1,
            separate_weight_and_bias=False,
            num_data=len(base.examples),
        )

    def solve(self, vector: Tensor, shift: float) -> Tensor:
        from curvlinops import KFACInverseLinearOperator

        inverse = KFACInverseLinearOperator(self._matrix, damping=shift, use_exact_damping=True)
        with torch.enable_grad():  # the first product differentiates
            image = inverse @ torch.cat([vector[place] for place in self._places])
        result = torch.empty_like(vector)
        parts = image.split([place.stop - place.start for place in self._places])
        for place, part in zip(self._places, parts, strict=True):
            result[place] = part
        return result


def _require_plain(model: nn.Module, layers: dict[str, nn.Module], base: GaussNewton) -> None:
    """Refuse by name what the Kronecker factors silently get wrong."""
    for name, layer in layers.items():
        if isinstance(layer, nn.Conv2d) and (layer.groups > 1 or layer.padding_mode != "zeros"):
            raise ModelError(
                f"ekfac does not cover the convolution {name!r}, which is grouped or pads with "
                "something else than zeros; use solver 'woodbury'"
            )
    holders = Counter(
        id(p) for module in model.modules() for p in module._parameters.values() if p is not None
    )
    calls: Counter[str] = Counter()
    handles = [
        layer.register_forward_hook(lambda *_, name=name: calls.update([name]))
        for name, layer in layers.items()
    ]
    with torch.no_grad():
        model(base.examples.features[:1])
    for handle in handles:
        handle.remove()
    for name, layer in layers.items():
        tied = any(holders[id(p)] > 1 for p in layer._parameters.values() if p is not None)
        if tied or calls[name] != 1:
            raise ModelError(
                f"ekfac needs layers with weights of their own that are used once, but {name!r} "
                f"is {'tied' if tied else f'called {calls[name]} times'}; use solver 'woodbury'"
            )
