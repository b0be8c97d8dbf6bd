"""The conclusion of an audit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from puma.audit.retraining import GapToRetraining, RelativeConfidence, RemainingInfluence
from puma.settings import AuditSettings, VerdictName

# inconclusive: that of versions which an earlier PUMA audited. It said so where it says
# indistinguishable now; evidence that is missing or broken is an AuditError, and no verdict.
VERDICTS: tuple[VerdictName, ...] = get_args(VerdictName)
PASSED = "passed"


@dataclass(frozen=True)
class Verdict:
    """The conclusion of an audit.

    Attributes:
        name: One of :data:`VERDICTS`.
        reason: A sentence with the numbers behind it.
    """

    name: VerdictName
    reason: str

    @property
    def passed(self) -> bool:
        """Whether the audit passed."""
        return self.name == PASSED


@dataclass(frozen=True)
class Utility:
    """A test metric of the audited model, its parent and the retrained models.

    Attributes:
        name: "accuracy" or "balanced accuracy"; of a regression "R²".
        audited: Of the audited model.
        parent: Of its parent.
        retrained: The mean of the retrained models.
        chance: Half the prediction interval of one retrained model.
    """

    name: str
    audited: float
    parent: float
    retrained: float
    chance: float

    @property
    def reference(self) -> float:
        """The value that the removal has to keep: not more than retraining keeps."""
        return min(self.parent, self.retrained)

    def lost(self, limit: float) -> bool:
        """Whether the audited model fell below the reference by more than ``limit`` and chance."""
        return self.reference - self.audited > max(limit, self.chance)


def judge(
    influence: RemainingInfluence,
    confidence: RelativeConfidence,
    gap: GapToRetraining,
    utilities: tuple[Utility, ...],
    lost_classes: tuple[int, ...],
    n_removed: int,
    settings: AuditSettings,
) -> Verdict:
    """Conclude the first of these that holds.

    - utility_lost: A test accuracy fell by more than its limit, or there are ``lost_classes``.
    - forgetting_incomplete, over_forgotten: The remaining influence, the relative confidence or
      the gap to retraining is too far above or below the retrained models'.
    - indistinguishable: Nothing was found, and nothing could have been found: models with and
      without the rows cannot be told apart. Requests of a few rows mostly end here.
    - passed: Otherwise.

    Every limit is that of ``settings``, or what retrained models show by chance if that is more.

    Args:
        influence: What remains of the removed rows' influence.
        confidence: How often the model is more confident than retrained models.
        gap: Its distance from them.
        utilities: The plain and the balanced test accuracy; of a regression R² alone.
        lost_classes: Classes that the model never predicts, and every retrained model does.
        n_removed: How many rows were removed.
        settings: The limits.
    """
    return (
        _utility_lost(utilities, lost_classes, settings)
        or _too_far(influence, confidence, gap, settings)
        or _concluded(influence, n_removed, utilities)
    )


def _utility_lost(
    utilities: tuple[Utility, ...], lost_classes: tuple[int, ...], settings: AuditSettings
) -> Verdict | None:
    limits = (settings.max_accuracy_loss, settings.max_balanced_accuracy_loss)
    for utility, limit in zip(utilities, limits[: len(utilities)], strict=True):
        if utility.lost(limit):
            return Verdict(
                "utility_lost",
                f"{utility.name} on the test rows is {utility.audited:.3f}: "
                f"{utility.reference - utility.audited:.3f} below the lower of the parent's "
                f"({utility.parent:.3f}) and the retrained models' ({utility.retrained:.3f}), and "
                f"{max(limit, utility.chance):.3f} is allowed",
            )
    if lost_classes:
        return Verdict(
            "utility_lost",
            f"no test row of class {', '.join(map(str, lost_classes))} is recognised any more, "
            "and every retrained model recognises some",
        )
    return None


def _too_far(
    influence: RemainingInfluence,
    confidence: RelativeConfidence,
    gap: GapToRetraining,
    settings: AuditSettings,
) -> Verdict | None:
    most = max(settings.max_influence, influence.chance)
    highest = max(settings.max_surer, confidence.chance)
    widest = max(settings.max_gap, 1 + gap.chance)
    side = "below" if gap.below else "above"
    excess = max(0.0, gap.ratio - 1)  # nearer than retrained models are to each other is no fault
    measures = (
        (
            influence.value,
            most,
            "the removed rows' influence on their own predictions is "
            f"{influence.value:.2f} of what it was (0 = like retraining, up to {most:.2f} either "
            "way passes)",
        ),
        (
            confidence.value - 0.5,
            highest,
            "the chance to be more confident of a removed row than a retrained model is "
            f"{confidence.value:.2f} (0.5 = like retraining, up to {highest:.2f} either way "
            "passes)",
        ),
        (
            -excess if gap.below else excess,
            widest - 1,
            f"the removed rows' margins are {gap.ratio:.1f} times as far from retrained models' "
            f"as these are from each other, on average {side} them (up to {widest:.1f} times "
            "passes)",
        ),
    )
    for value, limit, words in measures:
        if value > limit:
            return Verdict("forgetting_incomplete", words)
        if value < -limit:
            return Verdict("over_forgotten", f"{words}: their loss is too high")
    return None


def _concluded(
    influence: RemainingInfluence, n_removed: int, utilities: tuple[Utility, ...]
) -> Verdict:
    kept = "the test accuracies are"
    if len(utilities) == 1:
        kept = f"{utilities[0].name} of the test rows is"
    if not influence.distinguishable:
        return Verdict(
            "indistinguishable",
            f"nothing was found, and nothing could have been found: models trained with and "
            f"without {'this row' if n_removed == 1 else f'these {n_removed} rows'} cannot be told "
            "apart by their predictions (chance alone moves the influence by "
            f"{influence.chance:.2f}, from 0 = retrained to 1 = never removed), so that this audit "
            "cannot show that anything is forgotten; it does show that the predictions differ from "
            f"those of retrained models by no more than chance, and that {kept} within the limits",
        )
    return Verdict(
        "passed",
        f"the removed rows' influence on their own predictions is {influence.value:.2f} of what it "
        f"was (0 = like retraining, give or take {influence.chance:.2f} by chance), their margins "
        f"and {kept} within the limits, and a version that removed nothing would have been found "
        "out",
    )
