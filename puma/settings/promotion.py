"""Which versions may serve, and when a full training is due again."""

from __future__ import annotations

from pydantic import model_validator

from puma.settings.base import Count, Positive, Strict
from puma.settings.names import VerdictName


class PromotionSettings(Strict):
    """``accept``: the verdicts with which ``puma promote`` lets a version serve.

    A verdict other than ``passed`` does not show that the rows are forgotten: with
    ``indistinguishable`` the version has to show it in another way, see
    :func:`puma.registry.promotion_rules.check_conditions`.
    """

    accept: tuple[VerdictName, ...] = ("passed", "indistinguishable")

    @model_validator(mode="after")
    def _accepts_what_passed(self) -> PromotionSettings:
        if "passed" not in self.accept:
            raise ValueError("promotion.accept must name passed: nothing is shown better")
        return self


class RetrainAfter(Strict):
    """When removals made from removals have gone far enough since the last full training.

    drift: nats, the sum of their criterion drifts, of either sign. count: how many.
    """

    drift: Positive = 0.02
    count: Count = 10
