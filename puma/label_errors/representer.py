"""Representer points: what each row adds to the logits of a refitted last layer."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor, nn

from puma.data.base import Dataset, Examples
from puma.errors import (
    DataError,
    ModelError,
    SettingsError,
    SolverError,
    require_max_bytes,
    require_memory,
)
from puma.label_errors.ranker import as_suspicion
from puma.models.predictions import logits
from puma.models.tasks import likelihood_of, losses, residuals, row_weights

FEW = 64  # rows on which the last layer is found
POLISHING_STEPS = 10


@dataclass(frozen=True)
class Representation:
    """The refitted last layer: logits of row t = Σ_i ``alpha``_i · (f_iᵀf_t).

    All in double precision.

    Attributes:
        features: (n, d) f_i, the input of the last layer, with a 1 appended if that has a bias.
        alpha: (n, classes) α_i = −(1/(2·regularisation·n))·∂L_i/∂logits_i.
        weights: (classes, d) the layer itself, Σ_i α_i f_iᵀ at its optimum.
    """

    features: Tensor
    alpha: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Representer:
    """|α_i| of the row's own class (representer point selection, Yeh et al., 2018, section 4.1).

    The last linear layer is refitted to the training labels on the features f_i below it, with
    an L2 penalty: min_W mean_i L(W f_i, y_i) + ``regularisation``·‖W‖². Where its gradient is 0,
    W = Σ_i α_i f_iᵀ with α_i = −(1/(2·regularisation·n))·∂L_i/∂outputs_i (their Theorem 3.1), so
    α_{i,c} is the weight of row i for class c: its global importance. To find wrong labels, Yeh
    et al. look first at large |α_{i,y_i}| of the label y_i that the row was given.

    That is (1 − p(y_i|x_i))/(2·regularisation·n) of the REFITTED layer: the order is the one of
    its loss, so expect no more of this ranker than of ``Loss`` on a regularised model.

    A bias becomes the weight of a constant feature 1 and is penalised too; without that the
    theorem does not hold. scipy's L-BFGS and a few Newton steps replace their line search.

    Attributes:
        regularisation: Of the refit.
        tolerance: On the largest entry of the refit's gradient.
        max_iterations: Of L-BFGS.
        max_bytes: The memory for the features below the layer and for the logits.

    Raises:
        SettingsError: A setting cannot be used.
    """

    name: ClassVar[str] = "representer"

    regularisation: float = 0.003
    tolerance: float = 1e-10
    max_iterations: int = 10_000
    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        for setting in ("regularisation", "tolerance"):
            value = getattr(self, setting)
            if not (math.isfinite(value) and value > 0):
                raise SettingsError(f"{setting} must be finite and > 0, got {value}")
        if self.max_iterations < 1:
            raise SettingsError(f"max_iterations must be >= 1, got {self.max_iterations}")
        require_max_bytes(self.max_bytes)

    def suspicion(
        self,
        model: nn.Module,
        dataset: Dataset,
        *,
        progress: bool = False,  # noqa: ARG002
    ) -> Tensor:
        """(n,) |α_{i,y_i}| in logits per squared feature unit; raises what ``represent`` does.

        With one output |α_i|.
        """
        alpha = self.represent(model, dataset.train).alpha
        own = alpha[:, 0]
        if alpha.shape[1] > 1:
            own = alpha[torch.arange(len(alpha)), dataset.train.labels.cpu()]
        return as_suspicion(own.abs(), self.name)

    def represent(self, model: nn.Module, examples: Examples) -> Representation:
        """Refit the last layer on ``examples``; ``model`` is left as it was.

        Raises:
            ModelError: The model's logits are not the output of an nn.Linear.
            SolverError: The fit does not reach ``tolerance``, or takes more than ``max_bytes``.
            DataError: Features are not finite, or the layer has no output for a label.
        """
        features, outputs = _features(model, examples, self.max_bytes)
        likelihood = likelihood_of(examples.task)
        if not likelihood.fits(torch.zeros(1, outputs), examples.labels):
            raise DataError(
                f"the last layer has {outputs} outputs, which do not suit the labels; the model "
                f"must return {likelihood.wanted}"
            )
        weights, excess = self._fit(features, _double(examples), outputs)
        alpha = -excess / (2 * self.regularisation * len(features))
        return Representation(*(torch.from_numpy(each) for each in (features, alpha, weights)))

    def _fit(
        self, features: np.ndarray, examples: Examples, outputs: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """((K, d) weights, (n, K) ∂L_i/∂outputs_i at them)."""
        n, d = features.shape
        penalty, task, labels = self.regularisation, examples.task, examples.labels

        def at(flat: np.ndarray) -> Tensor:
            return torch.from_numpy(features @ flat.reshape(outputs, d).T)

        def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
            value = losses(task, at(flat), labels).mean().item() + penalty * (flat @ flat)
            excess = residuals(task, at(flat), labels).numpy()
            return value, (excess.T @ features / n).ravel() + 2 * penalty * flat

        found = minimize(
            objective,
            np.zeros(outputs * d),
            jac=True,
            method="L-BFGS-B",
            options={
                "gtol": self.tolerance,
                "ftol": 0.0,
                "maxiter": self.max_iterations,
                "maxfun": 100 * self.max_iterations,
            },
        )
        weights = found.x
        # Its line search compares values, which round-off makes equal long before the gradient
        # is 0. From there Newton's method, which looks at the gradient alone, needs a step or two.
        for _ in range(POLISHING_STEPS if found.status != 1 else 0):
            slope = objective(weights)[1]
            if np.abs(slope).max() <= self.tolerance:
                break
            curvature = _curvature(features, at(weights), examples, penalty)
            weights = weights - cg(curvature, slope, rtol=1e-6)[0]
        reached = float(np.abs(objective(weights)[1]).max())
        if not reached <= self.tolerance:
            raise SolverError(
                f"the refit of the last layer stopped at a gradient of {reached:.3g} after "
                f"{found.nit} iterations, tolerance {self.tolerance:.3g}; raise regularisation or "
                "max_iterations, or loosen tolerance"
            )
        excess = residuals(task, at(weights), labels).numpy()
        return weights.reshape(outputs, d), excess


def _curvature(
    features: np.ndarray, outputs: Tensor, examples: Examples, penalty: float
) -> LinearOperator:
    """The Hessian of the refit's objective where the (n, K) ``outputs`` are, by its products."""
    of_outputs = likelihood_of(examples.task).curvature(outputs)
    own = row_weights(examples.task, examples.labels, outputs)
    weights = torch.ones(len(outputs)) if own is None else own
    size = outputs.shape[1] * features.shape[1]

    def product(vector: np.ndarray) -> np.ndarray:
        tangent = features @ vector.reshape(outputs.shape[1], -1).T
        curved = (of_outputs(torch.from_numpy(tangent)) * weights[:, None]).numpy()
        loss: np.ndarray = (curved.T @ features / len(features)).ravel()
        return loss + 2 * penalty * vector.ravel()

    return LinearOperator((size, size), matvec=product, dtype=np.float64)


def _double(examples: Examples) -> Examples:
    """The same rows, on the CPU; the labels of a regression in double precision."""
    labels = examples.labels.cpu()
    if examples.task.is_regression:
        return replace(examples, features=examples.features.double(), labels=labels.double())
    return replace(examples, labels=labels)


def _features(model: nn.Module, examples: Examples, max_bytes: int) -> tuple[np.ndarray, int]:
    """((n, d) what enters the last layer in double precision, number of its outputs)."""
    model = copy.deepcopy(model).eval()
    layer = _last_linear(model, examples.features[:FEW])
    n, d, classes = len(examples), layer.in_features + 1, layer.out_features
    # Features as the model has them, twice, in double precision, and with the constant; some
    # arrays of logits, and what L-BFGS keeps.
    require_memory(
        8 * (3 * n * d + 6 * n * classes + 25 * classes * d),
        max_bytes,
        f"representer: the {d} features and {classes} logits of {n} rows",
        "rank fewer rows, use ranker 'loss', or raise max_bytes",
    )
    kept: list[Tensor] = []
    layer.register_forward_hook(lambda _, inputs, __: kept.append(inputs[0].detach().cpu()))
    logits(model, examples.features)
    features = torch.cat(kept).double().numpy()
    if not np.isfinite(features).all():
        raise DataError(
            f"{int((~np.isfinite(features)).sum())} features below the last layer are NaN or "
            "infinite; check the model's parameters"
        )
    if layer.bias is not None:
        features = np.hstack([features, np.ones((len(features), 1))])
    return features, layer.out_features


def _last_linear(model: nn.Module, features: Tensor) -> nn.Linear:
    """The nn.Linear whose output IS the model's. Raises ModelError when there is none."""
    ran: list[tuple[str, nn.Module, Tensor]] = []
    handles = [
        layer.register_forward_hook(
            # A copy: what follows may overwrite it in place.
            lambda layer, _, output, name=name: ran.append((name, layer, output.clone()))
        )
        for name, layer in model.named_modules()
        if not list(layer.children())
    ]
    try:
        final = logits(model, features)
    finally:
        for handle in handles:
            handle.remove()
    for _, layer, output in reversed(ran):
        alone = sum(layer is other for _, other, _ in ran) == 1
        if isinstance(layer, nn.Linear) and alone and _equal(output, final):
            return layer
    name, last = (ran[-1][0], ran[-1][1]) if ran else ("", model)
    raise ModelError(
        "representer needs a model whose logits are the output of an nn.Linear that is used once; "
        f"the last layer to run is {type(last).__name__} {name!r}; take another ranker, such as "
        "'self_influence'"
    )


def _equal(output: Tensor, final: Tensor) -> bool:
    same = output.shape == final.shape
    return same and torch.allclose(output, final, rtol=0, atol=0, equal_nan=True)
