"""What each removal method is told."""

from __future__ import annotations

import operator
import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from puma.settings.base import INT64, Count, NonNegative, Number, Positive, Strict, Text
from puma.settings.names import RETAINED_LOSS


def _condition(text: str) -> str:
    from puma.where import Where, WhereError  # imports NumPy, and most settings have no condition

    try:
        Where(text)
    except WhereError as error:
        raise ValueError(str(error)) from error
    return text


def _pool_or_count(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One message where each side of the union would give its own."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError("expected pool, or a number of models from 0 on") from None


PoolOrCount = Annotated[
    Literal["pool"] | Annotated[int, Number, Field(ge=0), INT64], WrapValidator(_pool_or_count)
]


class PreservedCriterion(Strict):
    """A criterion that a removal keeps, and how far it may move.

    Attributes:
        criterion: retained_loss, validation_loss, soft_ece, group_loss, or
            "package.module:function", a differentiable function of (n, outputs) logits and (n,)
            labels. See :data:`puma.influence.CRITERIA`.
        budget: Largest allowed change, of either sign; in the criterion's unit, a loss in nats.
        where: A condition on the columns of the source table, which picks the rows of a group.
        over: Measured on the retained training rows, or on the validation rows; None: as the
            criterion is by itself.
        name: What metrics and messages call it; None: as the criterion, a function without its
            module.
    """

    criterion: Text
    budget: Positive
    where: Annotated[Text, AfterValidator(_condition)] | None = None
    over: Literal["retained", "validation"] | None = None
    name: Annotated[str, Field(pattern=r"^[a-z]\w*$", max_length=40)] | None = None

    @model_validator(mode="after")
    def _is_of_rows_that_suit_it(self) -> PreservedCriterion:
        if self.criterion == "group_loss" and self.where is None:
            raise ValueError('group_loss needs where, such as "age >= 60"')
        if self.criterion == RETAINED_LOSS and (self.where, self.over) != (None, None):
            raise ValueError(
                "retained_loss is of all retained rows: for a group write group_loss, for "
                "validation rows validation_loss"
            )
        if self.criterion == "validation_loss" and self.over == "retained":
            raise ValueError("validation_loss is over validation rows; leave `over` out")
        return self

    @property
    def title(self) -> str:
        """Its name, also where none is stated."""
        return self.name or re.split(r"[:.]", self.criterion)[-1].lower()

    @property
    def of_validation(self) -> bool:
        """Whether it is measured on the validation rows."""
        return self.over == "validation" or self.criterion == "validation_loss"


class PumaSettings(Strict):
    """PUMA's knobs; see :class:`puma.PUMA` for what each one does."""

    damping: Positive = 0.1
    budget: Positive = 0.01
    # Not written where it is empty: the identities of versions that have none stay as they are.
    preserve: tuple[PreservedCriterion, ...] = Field(default=(), exclude_if=operator.not_)
    max_dose: Positive = 1000.0
    steps: Count = 8
    repair: bool = True
    reweighting: Literal["always", "never"] = "always"
    reference_models: PoolOrCount = "pool"
    reference_fraction: Annotated[float, Number, Field(gt=0, le=1)] = 1.0
    reference_epochs: Annotated[float, Number, Field(gt=0, le=1)] = 0.5
    level_aim: Positive = 0.2
    level_tolerance: Positive = 0.5
    l1: NonNegative = 0.0
    l2: NonNegative = 1e-6
    max_weight: Positive = 1.0
    solver: str = "dual"
    tolerance: Positive = 0.003
    max_iterations: Count = 1000
    rows: Count = 1024
    curvature_sample: Count | None = None
    criterion_sample: Count | None = None
    # Not written where it is 0, for the same reason.
    negligible: Annotated[float, Number, Field(ge=0, lt=1)] = Field(
        default=0.0, exclude_if=operator.not_
    )

    @model_validator(mode="after")
    def _preserves_each_once(self) -> PumaSettings:
        titles = [each.title for each in self.promises]
        repeated = sorted({title for title in titles if titles.count(title) > 1})
        if repeated:
            raise ValueError(
                f"preserve has several entries called {', '.join(repeated)}; give each a `name` of "
                "its own"
            )
        stated = self.promises[0].budget
        if stated != self.budget:
            raise ValueError(
                f"budget is {self.budget:g}, and preserve gives retained_loss {stated:g}: both say "
                "how far the retained rows' mean loss may move; state one number, in both or in "
                "budget alone"
            )
        return self

    @property
    def promises(self) -> tuple[PreservedCriterion, ...]:
        """What a removal keeps: the retained rows' mean loss, and the others of ``preserve``."""
        first = [each for each in self.preserve if each.criterion == RETAINED_LOSS]
        others = [each for each in self.preserve if each.criterion != RETAINED_LOSS]
        plain = PreservedCriterion(criterion=RETAINED_LOSS, budget=self.budget)
        return (*(first or [plain]), *others)

    @property
    def groups(self) -> tuple[str, ...]:
        """The conditions that pick the groups of ``preserve``, each once."""
        return tuple(dict.fromkeys(each.where for each in self.preserve if each.where is not None))


class PumaPaperSettings(Strict):
    """The knobs of Algorithm 1 as printed; see :class:`puma.removal.PaperPUMA`."""

    eta: Positive = 0.05  # the paper recommends 0.01 to 0.1
    damping: Positive = 0.1
    curvature: Literal["hessian", "gauss_newton"] = "hessian"
    steps: Count = 200
    batch_size: Count = 32
    tolerance: Annotated[float, Number, Field(gt=0, lt=1)] = 0.5
    up_sample: Count = 200
    reweighter: str = "slsqp"
    l1: NonNegative = 0.0
    l2: NonNegative = 1e-6
    max_weight: Positive = 1.0


class RetrainSettings(Strict):
    """``schedule``: see :class:`puma.Retrain`."""

    schedule: Literal["equal_epochs", "equal_steps"] = "equal_epochs"


class SisaSettings(Strict):
    """SISA's knobs; see :class:`puma.SISA` for what each one does."""

    shards: Count = 5
    slices: Count = 5
    assignment: Literal["random", "ordered"] = "random"
    vote: Literal["mean", "majority"] = "mean"


class AmnesiacSettings(Strict):
    """Amnesiac ML's knobs; see :class:`puma.Amnesiac` for what each one does."""

    repair_epochs: Annotated[int, Number, Field(ge=0), INT64] = 5
    max_bytes: Count = 10**9
