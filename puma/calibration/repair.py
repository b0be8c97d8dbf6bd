"""Better calibrated weights by influence: the paper's patch, and a step on the error itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from puma.calibration.measures import Calibration, measure
from puma.calibration.search import smallest_criterion
from puma.data.base import Dataset, Examples
from puma.errors import DataError, SettingsError
from puma.influence import (
    Curvature,
    FlatModel,
    MeanLoss,
    SoftECE,
    Solver,
    directional_derivatives,
    resolve_solver,
    reweight,
    weighted_gradient,
)
from puma.models import predictions

REWEIGHTINGS = ("solved", "one", "none")


class Groups(Protocol):
    """Rows of the training split that raise C, as long indices: S1, S2 and S3 of Appendix E."""

    @property
    def over_confident(self) -> Tensor:
        """S1, to be removed."""
        ...

    @property
    def over_uncertain(self) -> Tensor:
        """S2, to be up-weighted."""
        ...

    @property
    def other_noise(self) -> Tensor:
        """S3, to be removed."""
        ...


@dataclass(frozen=True)
class Step:
    """One step of a repair.

    Attributes:
        dose: The step size τ; 0 when none lowered C.
        predicted: The change of C to first order.
        change: The measured change of C.
    """

    dose: float
    predicted: float
    change: float


@dataclass(frozen=True, repr=False)
class Repair:
    """A new model, the original untouched, and what the repair did on the criterion's rows.

    Attributes:
        model: In eval mode.
        before: On the rows that C was measured on; for others use
            :func:`puma.calibration.measure`.
        after: Likewise.
        steps: In their order; one that found no step size is the last.
    """

    model: nn.Module
    before: Calibration
    after: Calibration
    steps: tuple[Step, ...]

    @property
    def dose(self) -> float:
        """Sum over the steps. 0: no dose lowered C, and the model is as it was."""
        return sum(step.dose for step in self.steps)


def patch(
    model: nn.Module,
    dataset: Dataset,
    groups: Groups,
    *,
    criterion: SoftECE | None = None,
    reweighting: str = "solved",
    eta: float | None = None,
    max_dose: float = 1000.0,
    max_loss_rise: float = 0.01,
    max_accuracy_loss: float = 0.01,
    curvature: Curvature | None = None,
    solver: str | Solver | None = None,
    l1: float = 0.0,
    l2: float = 1e-6,
    max_weight: float = 1.0,
) -> Repair:
    """Remove the over-confident rows and other noise, up-weight the over-uncertain (Appendix E).

    θ(τ) = θ + (τ/n)·H⁻¹(Σ_{S1∪S3} ∇L − Σ_{S2} λ∇L) (Eq. 11). The paper takes a fixed η <= 1e-4 on
    sums, which is τ = η·n, and measures nothing: that is ``eta``. Without it, τ is the step size
    up to ``max_dose`` with the smallest measured C within the two limits; 0 when none lowers C.
    The loss alone is no limit: that of an over-confident model falls so far that it pays for wrong
    predictions.

    Args:
        model: It is left as it was.
        dataset: Its training rows are what ``groups`` names.
        groups: S1, S2 and S3.
        criterion: C; None takes SoftECE on the training rows, as in the paper. SoftECE on
            ``dataset.test`` judges by rows that the model has not memorised, but then these can
            no longer measure what the repair is worth.
        reweighting: "solved" is Eq. 10 for ψ of this C. Eq. 10 makes S2 PRESERVE C: where its
            weights reach that, C does not change to first order at all, and what the paper
            reports as lower can only come from the higher orders. "one" is λ = 1. S2 is taken from
            the rows of lowest ψ, and up-weighting a row of negative ψ raises C (Eq. 8), so any
            λ > 0 gives away some of what the removal wins. "none", λ = 0, does not.
        eta: A fixed step size on sums, in place of the search.
        max_dose: The largest τ to try.
        max_loss_rise: The most by which the mean loss of C's rows may rise, in nats.
        max_accuracy_loss: The most by which their accuracy may fall.
        curvature: H, of the mean training loss; None takes Gauss-Newton with damping 0.1.
        solver: A name in :data:`puma.influence.SOLVERS`, a solver, or None for conjugate
            gradients.
        l1: Of Eq. 10.
        l2: Of Eq. 10.
        max_weight: |λ| is at most this.

    Raises:
        DataError: The groups are empty, overlap, or lie outside the training split.
        SettingsError: An unknown reweighting, or a limit that cannot be used.
        SolverError: A solve fails.
    """
    if reweighting not in REWEIGHTINGS:
        raise SettingsError(
            f"reweighting must be one of {', '.join(REWEIGHTINGS)}, got {reweighting!r}"
        )
    if eta is not None and not (math.isfinite(eta) and eta > 0):
        raise SettingsError(f"eta must be finite and > 0, got {eta}; None searches the dose")
    train = dataset.train
    removed = _rows(len(train), groups.over_confident, groups.other_noise)
    raised = _rows(len(train), groups.over_uncertain)
    _check_groups(removed, raised)
    criterion = SoftECE(train) if criterion is None else criterion
    flat = FlatModel(model)
    operator = (curvature or Curvature()).operator(flat, train)
    inverse = resolve_solver(solver)
    gradient = criterion.gradient(flat)

    weights = removed.to(flat.dtype)
    if reweighting == "one":
        weights[raised] = -1.0
    elif reweighting == "solved" and raised.any():
        preserved = inverse.solve(operator, gradient).value
        scores = directional_derivatives(flat, train, preserved)
        weights[raised] = -reweight(
            scores[raised],
            float(scores[removed].sum()),
            l1=l1,
            l2=l2,
            bounds=(-max_weight, max_weight),
        )
    summed = weighted_gradient(flat, train, weights)
    direction = inverse.solve(operator, summed).value / len(train)
    slope = float(gradient @ direction)
    start = criterion.value(flat, flat.vector)
    if eta is not None:
        dose = eta * len(train)
        reached = criterion.value(flat, flat.vector + dose * direction)
    else:
        guard = _Guard.of(flat, criterion, max_loss_rise, max_accuracy_loss)
        dose, reached = _search(flat, criterion, direction, guard, max_dose)
    step = Step(dose, predicted=dose * slope, change=reached - start)
    return _repaired(model, flat.module(flat.vector + dose * direction), criterion, (step,))


def calibrate_directly(
    model: nn.Module,
    dataset: Dataset | Examples,
    *,
    criterion: SoftECE | None = None,
    steps: int = 10,
    max_dose: float = 100.0,
    max_loss_rise: float = 0.01,
    max_accuracy_loss: float = 0.01,
    curvature: Curvature | None = None,
    solver: str | Solver | None = None,
) -> Repair:
    """Lower C itself by steps θ − τ·H⁻¹∇C, where PUMA's re-weighting preserves it.

    Not in the paper. H turns ∇C towards what the training rows are least sensitive to. Confident
    predictions have little curvature, and damping far above it stalls in a small linear model;
    lower it there. C is differentiated anew before every step. τ is the step size up to
    ``max_dose`` with the smallest MEASURED C within the two limits. Without the limit on accuracy,
    C falls by spoiling predictions, while the loss of an over-confident model falls and gives no
    warning. It ends after ``steps`` steps, or with one that finds no τ to lower C.

    Args:
        model: It is left as it was.
        dataset: The training rows, or a Dataset with them.
        criterion: C; None takes SoftECE on the training rows. A network that fits these too well
            is over-confident on others, so held-out rows are the better judge; they can then no
            longer measure the result.
        steps: The most steps.
        max_dose: The largest τ to try.
        max_loss_rise: The most by which the mean loss of C's rows may rise, in nats.
        max_accuracy_loss: The most by which their accuracy may fall.
        curvature: H, of the mean training loss; None takes Gauss-Newton with damping 0.1.
        solver: As of :func:`patch`.

    Raises:
        SettingsError: A limit that cannot be used, or ``steps`` below 1.
        SolverError: A solve fails.
    """
    if steps < 1:
        raise SettingsError(f"steps must be >= 1, got {steps}")
    train = dataset.train if isinstance(dataset, Dataset) else dataset
    criterion = SoftECE(train) if criterion is None else criterion
    inverse, settings = resolve_solver(solver), curvature or Curvature()
    flat = FlatModel(model)
    guard = _Guard.of(flat, criterion, max_loss_rise, max_accuracy_loss)
    taken: list[Step] = []
    while len(taken) < steps and (not taken or taken[-1].dose > 0):
        gradient = criterion.gradient(flat)
        direction = -inverse.solve(settings.operator(flat, train), gradient).value
        start = criterion.value(flat, flat.vector)
        dose, reached = _search(flat, criterion, direction, guard, max_dose)
        predicted = dose * float(gradient @ direction)
        taken.append(Step(dose, predicted=predicted, change=reached - start))
        flat = FlatModel(flat.module(flat.vector + dose * direction))
    return _repaired(model, flat.module(flat.vector), criterion, tuple(taken))


@dataclass(frozen=True, repr=False)
class _Guard:
    """What a repair may not cost the rows that it is judged by."""

    loss: MeanLoss
    highest_loss: float
    lowest_accuracy: float

    @classmethod
    def of(
        cls, flat: FlatModel, criterion: SoftECE, max_loss_rise: float, max_accuracy_loss: float
    ) -> _Guard:
        if not max_loss_rise >= 0:
            raise SettingsError(
                f"max_loss_rise must be >= 0 nats, got {max_loss_rise}; math.inf sets no bound"
            )
        if not 0 <= max_accuracy_loss <= 1:
            raise SettingsError(
                f"max_accuracy_loss must be between 0 and 1, got {max_accuracy_loss}; 1 sets no "
                "bound"
            )
        loss = MeanLoss(criterion.examples, criterion.batch_size)
        # Shares of n are a rounding apart from sums of shares: half a row of slack.
        slack = max_accuracy_loss + 0.5 / len(criterion.examples)
        return cls(
            loss,
            loss.value(flat, flat.vector) + max_loss_rise,
            predictions.accuracy(flat.module(flat.vector), criterion.examples) - slack,
        )

    def allows(self, flat: FlatModel, vector: Tensor) -> bool:
        if not self.loss.value(flat, vector) <= self.highest_loss:
            return False
        reached = predictions.accuracy(flat.module(vector), self.loss.examples)
        return reached >= self.lowest_accuracy


def _search(
    flat: FlatModel, criterion: SoftECE, direction: Tensor, guard: _Guard, max_dose: float
) -> tuple[float, float]:
    """(dose, C there) along ``direction``, within what ``guard`` allows."""

    def at(dose: float) -> Tensor:
        return flat.vector + dose * direction

    return smallest_criterion(
        lambda dose: criterion.value(flat, at(dose)),
        lambda dose: guard.allows(flat, at(dose)),
        max_dose=max_dose,
    )


def _repaired(
    before: nn.Module, after: nn.Module, criterion: SoftECE, steps: tuple[Step, ...]
) -> Repair:
    return Repair(after, measure(before, criterion), measure(after, criterion), steps)


def _rows(n: int, *groups: Tensor) -> Tensor:
    """(n,) mask of all rows in ``groups``."""
    mask = torch.zeros(n, dtype=torch.bool)
    for rows in groups:
        if rows.ndim != 1 or rows.dtype != torch.int64:
            raise DataError(
                "a group must be a list of training rows, long indices, got shape "
                f"{tuple(rows.shape)} of {rows.dtype}"
            )
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < n:
            raise DataError(f"a group points outside of the {n} training rows")
        mask[rows] = True
    return mask


def _check_groups(removed: Tensor, raised: Tensor) -> None:
    both = int((removed & raised).sum())
    if both:
        raise DataError(
            f"{both} rows are to be removed and up-weighted at once; take the groups from fewer "
            "than half of the rows, so that none is both most and least confident"
        )
    if not (removed | raised).any():
        raise DataError("the groups hold no row, so there is nothing to patch")
