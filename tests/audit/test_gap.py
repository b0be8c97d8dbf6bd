"""How far the removed rows' margins are from those of retrained models, and on which side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from puma.audit import gap_to_retraining, relative_confidence
from puma.errors import AuditError
from tests.audit.oracles import Floats, mean_distance, mean_wins, reach, without_one

SIZES = pytest.mark.parametrize(("k", "m"), [(3, 1), (4, 7), (5, 150)])


def models(k: int, m: int, seed: int = 0, *, ties: bool = False) -> tuple[Floats, Floats]:
    """(m,) of an audited model and (k, m) of retrained ones, whose rows move together."""
    random = np.random.default_rng(seed)
    drawn = random.normal(size=(k + 1, m)) + random.normal(size=(k + 1, 1))
    values = np.round(drawn) if ties else drawn
    return values[0], values[1:]


@SIZES
def test_the_gap_is_the_mean_wasserstein_distance(k: int, m: int) -> None:
    audited, without_rows = models(k, m)
    found = gap_to_retraining(audited, without_rows)
    each = [wasserstein_distance([audited[j]], without_rows[:, j]) for j in range(m)]
    assert found.mean == pytest.approx(np.mean(each))
    assert found.worst == pytest.approx(np.mean(sorted(each)[-max(1, round(m / 100)) :]))
    assert found.below is bool(audited.mean() < without_rows.mean())


@SIZES
def test_what_is_expected_is_what_retrained_models_show_of_each_other(k: int, m: int) -> None:
    audited, without_rows = models(k, m)
    found = gap_to_retraining(audited, without_rows)
    known = [mean_distance(without_rows[j], without_one(without_rows, j)) for j in range(k)]
    assert found.expected == pytest.approx(np.mean(known))
    assert found.ratio == pytest.approx(found.mean / np.mean(known))
    # A model's mean distance varies by (k - 2)/(k - 1) of what its own place does: the others
    # are as far from it as it is from them.
    among = np.array(known) / np.mean(known) * (k - 1) / (k - 2)
    assert found.chance == pytest.approx(reach(among, 0.95))


@pytest.mark.parametrize("k", [3, 4, 8])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_a_retrained_models_ratio_is_within_chance_as_often_as_it_says(
    k: int, confidence: float
) -> None:
    random, draws, inside = np.random.default_rng(4), 500, 0
    for _ in range(draws):
        found = gap_to_retraining(
            random.normal(size=30), random.normal(size=(k, 30)), confidence=confidence
        )
        inside += abs(found.ratio - 1) <= found.chance
    # Three models know little of their own spread, and the band errs on the wide side.
    assert confidence - 0.03 <= inside / draws <= confidence + 0.07


def test_the_gap_has_the_unit_of_the_margins_and_its_ratio_has_none() -> None:
    audited, without_rows = models(5, 9)
    before = gap_to_retraining(audited, without_rows)
    after = gap_to_retraining(3 * audited + 7, 3 * without_rows + 7)
    assert (after.mean, after.expected, after.worst) == pytest.approx(
        (3 * before.mean, 3 * before.expected, 3 * before.worst)
    )
    assert (after.ratio, after.chance) == pytest.approx((before.ratio, before.chance))


@pytest.mark.parametrize(("shift", "below"), [(-50.0, True), (50.0, False)])
def test_a_model_far_away_is_so_on_its_side(shift: float, below: bool) -> None:
    audited, without_rows = models(6, 20)
    found = gap_to_retraining(audited + shift, without_rows)
    assert found.below is below
    assert found.mean == pytest.approx(50, rel=0.05)
    assert found.ratio > 1 + found.chance


def test_models_that_do_not_vary_are_refused() -> None:
    with pytest.raises(AuditError, match=r"all give the same margins.*check that their seeds"):
        gap_to_retraining(np.arange(4.0), np.ones((5, 4)))


@SIZES
@pytest.mark.parametrize("ties", [True, False])
def test_relative_confidence_is_the_mann_whitney_statistic_of_each_row(
    k: int, m: int, ties: bool
) -> None:
    audited, without_rows = models(k, m, ties=ties)
    wins = 0.0
    for row in range(m):
        for model in range(k):
            difference = audited[row] - without_rows[model, row]
            wins += 1.0 if difference > 0 else 0.5 if difference == 0 else 0.0
    found = relative_confidence(audited, without_rows).value
    assert found == pytest.approx(wins / (k * m))
    assert found == pytest.approx(mean_wins(audited, without_rows))


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_retrained_models_among_themselves_are_at_one_half(ties: bool, seed: int) -> None:
    _, without_rows = models(5, 13, seed, ties=ties)
    among = [
        relative_confidence(without_rows[j], without_one(without_rows, j)).value for j in range(5)
    ]
    assert np.mean(among) == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize(("k", "m"), [(3, 1), (5, 20)])
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_its_chance_is_what_retrained_models_show_of_each_other(
    k: int, m: int, confidence: float
) -> None:
    audited, without_rows = models(k, m)
    # Their mean is one half.
    null = [mean_wins(without_rows[j], without_one(without_rows, j)) for j in range(k)]
    found = relative_confidence(audited, without_rows, confidence=confidence).chance
    assert found == pytest.approx(reach(np.array(null), confidence))


@pytest.mark.parametrize(
    ("shift", "expected"), [(-100.0, 0.0), (100.0, 1.0)], ids=["forgotten", "known"]
)
def test_rows_that_are_known_or_stand_out_are_at_the_ends(shift: float, expected: float) -> None:
    audited, without_rows = models(5, 9)
    assert relative_confidence(audited + shift, without_rows).value == expected


def test_it_looks_at_the_order_alone() -> None:
    audited, without_rows = models(5, 9)
    before = relative_confidence(audited, without_rows)
    assert relative_confidence(np.exp(audited), np.exp(without_rows)) == before
    after = relative_confidence(-audited, -without_rows)
    assert (after.value, after.chance) == pytest.approx((1 - before.value, before.chance))


@pytest.mark.parametrize("together", [0.0, 0.8], ids=["rows alone", "rows together"])
def test_a_retrained_model_is_rarely_more_confident_than_chance_allows(together: float) -> None:
    random, draws, inside = np.random.default_rng(5), 300, 0
    for _ in range(draws):
        drawn = random.normal(size=(9, 25)) * np.sqrt(1 - together)
        drawn += random.normal(size=(9, 1)) * np.sqrt(together)
        found = relative_confidence(drawn[0], drawn[1:])
        inside += abs(found.value - 0.5) <= found.chance
    assert inside / draws >= 0.93


@pytest.mark.parametrize("measure", [gap_to_retraining, relative_confidence])
@pytest.mark.parametrize(
    ("audited", "without_rows", "words"),
    [
        ((4,), (2, 4), "at least 3 models of each kind, got 2"),
        ((3,), (5, 4), r"the same removed rows, got \(3,\)"),
        ((2, 4), (5, 4), "the same removed rows"),
        ((0,), (5, 0), "the same removed rows"),
    ],
)
def test_too_few_models_or_other_rows_are_refused(
    measure: Callable[[Floats, Floats], object],
    audited: tuple[int, ...],
    without_rows: tuple[int, int],
    words: str,
) -> None:
    random = np.random.default_rng(0)
    with pytest.raises(AuditError, match=words):
        measure(random.normal(size=audited), random.normal(size=without_rows))
