"""What an audit compares with and attacks by, and where its verdict draws the lines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from puma.settings.base import INT64, Count, Fraction, Number, Positive, Strict
from puma.settings.names import EvidenceSource


def _two_partitions_a_half(models: int) -> int:
    """Each half of a pool, of four models a partition, needs two partitions to compare."""
    if models == 8:
        raise ValueError("a pool has at least 16 models, or 0 for no pool")
    return models


class PoolSettings(Strict):
    """What is trained once and serves every request; see :class:`puma.references.Pool`.

    models: each without a quarter of the people; 0 = there is no pool. everybody: so many with
    them all.
    """

    models: Annotated[
        int, Number, Field(ge=0, multiple_of=8), INT64, AfterValidator(_two_partitions_a_half)
    ] = 32
    everybody: Annotated[int, Number, Field(ge=3), INT64] = 16


class ShadowSettings(Strict):
    """The paper's attack (Appendix A, Membership Attack Setup)."""

    models: Count = 5
    fraction: Annotated[float, Number, Field(gt=0, lt=0.5)] = 0.09
    epochs: Count = 50
    features: Literal["softmax", "softmax_label", "sorted"] = "softmax_label"
    attack_hidden: tuple[Count, ...] = (128, 64)
    attack_epochs: Count = 50


class AuditSettings(Strict):
    """What an audit is made with, and where its verdict draws the lines.

    evidence: "pool" predicts the models without the removed rows from the pool; "retrain" trains
    them for every request. models: so many are trained with the removed rows, and so many
    without. shadow_models:
    LiRA's, on random halves of all rows. confidence: of every interval.
    max_influence: largest :class:`puma.audit.RemainingInfluence` that passes, on either side of
    0. max_surer: the same for the distance of ``surer_than_retrained`` from one half.
    max_gap: largest :class:`puma.audit.GapToRetraining` ratio.
    max_accuracy_loss, max_balanced_accuracy_loss: largest falls of the test accuracies below the
    lower of the parent's and the retrained models'.
    Every limit gives way to what retrained models show of each other by chance, if that is more.
    jobs: processes that train models; null = one for each core.
    """

    evidence: EvidenceSource = "pool"
    models: Annotated[int, Number, Field(ge=3), INT64] = 8
    shadow_models: Annotated[int, Number, Field(ge=4), INT64] = 32
    confidence: Fraction = 0.95
    max_influence: Positive = 0.25
    max_surer: Annotated[float, Number, Field(gt=0, le=0.5)] = 0.3
    max_gap: Annotated[float, Number, Field(gt=1, allow_inf_nan=False)] = 2.0
    max_accuracy_loss: Fraction = 0.03
    max_balanced_accuracy_loss: Fraction = 0.05
    jobs: Count | None = None
