from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from puma.audit import (
    PASSED,
    VERDICTS,
    GapToRetraining,
    RelativeConfidence,
    RemainingInfluence,
    Utility,
    Verdict,
    judge,
)
from puma.settings import AuditSettings

LIMITS = AuditSettings(
    max_influence=0.25,
    max_surer=0.3,
    max_gap=2.0,
    max_accuracy_loss=0.03,
    max_balanced_accuracy_loss=0.05,
)


@dataclass(frozen=True)
class Findings:
    """What an audit measured; at first, a model just like the retrained ones."""

    influence: float = 0.0
    influence_chance: float = 0.1
    distinguishable: bool = True
    confidence: float = 0.5
    confidence_chance: float = 0.1
    ratio: float = 1.0
    gap_chance: float = 0.3
    below: bool = True
    accuracy: float = 0.8
    balanced: float = 0.7
    parent: tuple[float, float] = (0.8, 0.7)
    retrained: tuple[float, float] = (0.8, 0.7)
    utility_chance: float = 0.01
    lost: tuple[int, ...] = ()

    def judged(self, settings: AuditSettings = LIMITS) -> Verdict:
        audited, names = (self.accuracy, self.balanced), ("accuracy", "balanced accuracy")
        utilities = [
            Utility(*each, self.utility_chance)
            for each in zip(names, audited, self.parent, self.retrained, strict=True)
        ]
        return judge(
            RemainingInfluence(self.influence, self.influence_chance, self.distinguishable),
            RelativeConfidence(self.confidence, self.confidence_chance),
            GapToRetraining(2 * self.ratio, 2.0, 9.0, self.gap_chance, self.below),
            (utilities[0], utilities[1]),
            self.lost,
            17,
            settings,
        )


LIKE_RETRAINED = Findings()
STILL, PAST, LOST = "forgetting_incomplete", "over_forgotten", "utility_lost"
UNTOLD = "indistinguishable"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, PASSED),
        ({"distinguishable": False}, UNTOLD),
        # The influence: at most the limit, or chance where that is more, on either side.
        ({"influence": 0.25}, PASSED),
        ({"influence": 0.26}, STILL),
        ({"influence": -0.25}, PASSED),
        ({"influence": -0.26}, PAST),
        ({"influence": 0.39, "influence_chance": 0.4}, PASSED),
        ({"influence": 0.41, "influence_chance": 0.4}, STILL),
        ({"influence": -0.39, "influence_chance": 0.4}, PASSED),
        ({"influence": -0.41, "influence_chance": 0.4}, PAST),
        ({"influence": 1.0, "distinguishable": False}, STILL),
        ({"influence": 0.39, "influence_chance": 0.4, "distinguishable": False}, UNTOLD),
        # The relative confidence, counted from one half.
        ({"confidence": 0.79}, PASSED),
        ({"confidence": 0.81}, STILL),
        ({"confidence": 0.21}, PASSED),
        ({"confidence": 0.19}, PAST),
        ({"confidence": 0.9, "confidence_chance": 0.41}, PASSED),
        ({"confidence": 0.95, "confidence_chance": 0.41}, STILL),
        ({"confidence": 0.0, "confidence_chance": 0.6}, PASSED),
        # The gap: a ratio, and its side.
        ({"ratio": 2.0, "below": False}, PASSED),
        ({"ratio": 2.1, "below": False}, STILL),
        ({"ratio": 2.0, "below": True}, PASSED),
        ({"ratio": 2.1, "below": True}, PAST),
        ({"ratio": 2.4, "below": False, "gap_chance": 1.5}, PASSED),
        ({"ratio": 2.6, "below": False, "gap_chance": 1.5}, STILL),
        ({"ratio": 0.1, "below": False}, PASSED),
        ({"ratio": 0.1, "below": True}, PASSED),
        # The accuracies: below the lower of the parent's and the retrained models'.
        ({"accuracy": 0.771}, PASSED),
        ({"accuracy": 0.769}, LOST),
        ({"balanced": 0.651}, PASSED),
        ({"balanced": 0.649}, LOST),
        ({"accuracy": 0.9, "balanced": 0.9}, PASSED),
        ({"accuracy": 0.741, "utility_chance": 0.06}, PASSED),
        ({"accuracy": 0.739, "utility_chance": 0.06}, LOST),
        ({"accuracy": 0.66, "parent": (0.68, 0.7)}, PASSED),
        ({"accuracy": 0.64, "parent": (0.68, 0.7)}, LOST),
        ({"accuracy": 0.66, "retrained": (0.68, 0.7)}, PASSED),
        ({"accuracy": 0.64, "retrained": (0.68, 0.7)}, LOST),
        ({"lost": (2,)}, LOST),
        # The first that holds: utility, then what is too far, then what cannot be told.
        ({"accuracy": 0.5, "influence": 1.0, "distinguishable": False}, LOST),
        ({"lost": (0,), "influence": -1.0}, LOST),
        ({"confidence": 0.0, "distinguishable": False}, PAST),
        ({"influence": 1.0, "confidence": 0.0}, STILL),
    ],
)
def test_the_verdict_is_that_of_the_first_rule_that_holds(
    changes: dict[str, object], expected: str
) -> None:
    found = replace(LIKE_RETRAINED, **changes).judged()  # type: ignore[arg-type]
    assert found.name == expected
    assert found.passed is (expected == PASSED)
    assert found.reason


def test_there_are_six_verdicts_and_one_of_them_passes() -> None:
    # The last is that of versions which an earlier PUMA audited.
    assert set(VERDICTS) == {PASSED, STILL, PAST, LOST, UNTOLD, "inconclusive"}
    assert [Verdict(name, "").passed for name in VERDICTS].count(True) == 1


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"influence": 0.26}, {"max_influence": 0.27}),
        ({"confidence": 0.81}, {"max_surer": 0.32}),
        ({"ratio": 2.1, "below": False}, {"max_gap": 2.2}),
        ({"ratio": 2.1, "below": True}, {"max_gap": 2.2}),
        ({"accuracy": 0.769}, {"max_accuracy_loss": 0.04}),
        ({"balanced": 0.649}, {"max_balanced_accuracy_loss": 0.06}),
    ],
)
def test_every_limit_is_that_of_the_settings(
    changes: dict[str, object], limit: dict[str, float]
) -> None:
    findings = replace(LIKE_RETRAINED, **changes)  # type: ignore[arg-type]
    assert not findings.judged().passed
    assert findings.judged(LIMITS.model_copy(update=limit)).passed


@pytest.mark.parametrize("below", [True, False])
@pytest.mark.parametrize("ratio", [0.2, 0.99])
def test_a_model_nearer_than_retrained_ones_are_to_each_other_passes(
    below: bool, ratio: float
) -> None:
    strict = LIMITS.model_copy(update={"max_gap": 1.1})
    findings = replace(LIKE_RETRAINED, ratio=ratio, below=below, gap_chance=0.05)
    assert findings.judged(strict).passed
    assert not replace(findings, ratio=1.2).judged(strict).passed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"influence": 0.61}, ("influence", "0.61", "up to 0.25")),
        ({"influence": -0.61}, ("influence", "-0.61", "up to 0.25", "loss is too high")),
        ({"influence": 0.61, "influence_chance": 0.5}, ("0.61", "up to 0.50")),
        ({"confidence": 0.93}, ("more confident", "0.93", "0.5 = like retraining", "up to 0.30")),
        ({"confidence": 0.07}, ("more confident", "0.07", "up to 0.30", "loss is too high")),
        ({"ratio": 3.14, "below": False}, ("3.1 times", "above them", "up to 2.0 times")),
        ({"ratio": 3.14, "below": True}, ("3.1 times", "below them", "loss is too high")),
        (
            {"accuracy": 0.512, "retrained": (0.654, 0.7)},
            ("accuracy on the test rows is 0.512", "0.142 below", "0.800", "0.654", "0.030"),
        ),
        ({"balanced": 0.5}, ("balanced accuracy", "0.500", "0.200 below", "0.700", "0.050")),
        ({"lost": (1, 3)}, ("class 1, 3", "every retrained model recognises some")),
        ({"distinguishable": False}, ("these 17 rows", "0.10", "cannot show", "within the limits")),
        ({"influence": 0.07}, ("0.07", "0.10 by chance", "would have been found out")),
    ],
)
def test_the_reason_says_what_was_found_and_what_is_allowed(
    changes: dict[str, object], words: tuple[str, ...]
) -> None:
    reason = replace(LIKE_RETRAINED, **changes).judged().reason  # type: ignore[arg-type]
    assert [each for each in words if each not in reason] == []


def test_a_loss_of_accuracy_is_counted_from_the_lower_reference() -> None:
    utility = Utility("accuracy", audited=0.7, parent=0.9, retrained=0.75, chance=0.02)
    assert utility.reference == 0.75
    assert utility.lost(0.04)
    assert not utility.lost(0.06)
    assert not replace(utility, chance=0.06).lost(0.04)
    assert replace(utility, parent=0.6).reference == 0.6
    assert not replace(utility, parent=0.6).lost(0.001)
