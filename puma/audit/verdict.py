"""What an auditor concludes, in one word, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from puma.audit.retraining import GapToRetraining, RelativeConfidence, RemainingInfluence
from puma.settings import AuditSettings

Name = Literal["passed", "forgetting_incomplete", "over_forgotten", "utility_lost", "inconclusive"]
VERDICTS: tuple[Name, ...] = get_args(Name)
PASSED = "passed"


@dataclass(frozen=True)
class Verdict:
    """``name``: one of :data:`VERDICTS`. ``reason``: a sentence with the numbers behind it."""

    name: Name
    reason: str

    @property
    def passed(self) -> bool:
        return self.name == PASSED


@dataclass(frozen=True)
class Utility:
    """A test accuracy, plain or balanced, of the audited model and of those it is held against.

    audited, parent, retrained: shares; the last the mean of the retrained models. chance: half
    the prediction interval of a retrained model's.
    """

    name: str
    audited: float
    parent: float
    retrained: float
    chance: float

    @property
    def reference(self) -> float:
        """What the removal has to keep: not more than retraining would."""
        return min(self.parent, self.retrained)

    def lost(self, limit: float) -> bool:
        return self.reference - self.audited > max(limit, self.chance)


def judge(
    influence: RemainingInfluence,
    surer: RelativeConfidence,
    gap: GapToRetraining,
    utilities: tuple[Utility, ...],
    lost_classes: tuple[int, ...],
    n_removed: int,
    settings: AuditSettings,
) -> Verdict:
    """The verdict: of the first of these that holds.

    utility_lost: a test accuracy fell by more than its limit, or ``lost_classes`` are never
    recognised any more though every retrained model recognises some of their rows.
    forgetting_incomplete, over_forgotten: the remaining influence, or the chance to be surer than
    a retrained model, or the gap to retraining, is too far above or below the retrained models'.
    inconclusive: nothing was found, but models with and without the rows cannot be told apart,
    so that nothing would have been found of the parent either.
    passed: otherwise.

    Every limit is that of ``settings`` or what retrained models show by chance, if that is more.
    """
    return (
        _utility_lost(utilities, lost_classes, settings)
        or _too_far(influence, surer, gap, settings)
        or _concluded(influence, n_removed)
    )


def _utility_lost(
    utilities: tuple[Utility, ...], lost_classes: tuple[int, ...], settings: AuditSettings
) -> Verdict | None:
    limits = (settings.max_accuracy_loss, settings.max_balanced_accuracy_loss)
    for utility, limit in zip(utilities, limits, strict=True):
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
    surer: RelativeConfidence,
    gap: GapToRetraining,
    settings: AuditSettings,
) -> Verdict | None:
    most = max(settings.max_influence, influence.chance)
    surest = max(settings.max_surer, surer.chance)
    widest = max(settings.max_gap, 1 + gap.chance)
    side = "below" if gap.below else "above"
    excess = max(0.0, gap.ratio - 1)  # nearer than retrained models are to each other is no fault
    measures = (
        (
            influence.value,
            most,
            "the removed rows' influence on their own answers is "
            f"{influence.value:.2f} of what it was (0 = like retraining, up to {most:.2f} either "
            "way passes)",
        ),
        (
            surer.value - 0.5,
            surest,
            "the chance to be surer of a removed row than a retrained model is "
            f"{surer.value:.2f} (0.5 = like retraining, up to {surest:.2f} either way passes)",
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


def _concluded(influence: RemainingInfluence, n_removed: int) -> Verdict:
    if not influence.told_apart:
        return Verdict(
            "inconclusive",
            f"nothing was found, but models trained with and without these {n_removed} rows "
            "cannot be told apart by their answers to them either (chance alone moves the "
            f"influence by {influence.chance:.2f}, from 0 = retrained to 1 = never removed); raise "
            "audit.models, or audit several requests together",
        )
    return Verdict(
        "passed",
        f"the removed rows' influence on their own answers is {influence.value:.2f} of what it "
        f"was (0 = like retraining, give or take {influence.chance:.2f} by chance), their margins "
        "and the test accuracies are within the limits, and a version that removed nothing would "
        "have been found out",
    )
