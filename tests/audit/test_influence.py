"""How much of what the removed rows did is still there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from puma.audit import remaining_influence
from puma.audit.retraining import prediction_band
from puma.errors import AuditError
from tests.audit.oracles import Floats, covariance, left_out, position, reach

CASES = {
    "one row": (1, 6, 5),
    "two rows": (2, 3, 3),
    "fewer rows than models": (4, 8, 8),
    "more rows than models": (40, 5, 7),
}
EVERY_CASE = pytest.mark.parametrize("case", CASES)


def groups(case: str, *, shift: float = 1.5, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """(m,) of an audited model, and of models with and without the rows; rows move together."""
    m, k_with, k_without = CASES[case]
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(m, m)) / np.sqrt(m) + np.eye(m)
    shifts = shift * random.uniform(0.5, 1.5, m)
    drawn = [random.normal(size=(k, m)) @ mixing for k in (1, k_with, k_without)]
    return drawn[0][0] + 0.4 * shifts, drawn[1] + shifts, drawn[2]


class Known:
    """An estimator of a covariance that is known."""

    def __init__(self, matrix: Floats) -> None:
        self.matrix = matrix

    def fit(self, _: Any) -> Known:
        self.covariance_ = self.matrix
        return self


@EVERY_CASE
def test_the_position_is_that_of_a_dense_discriminant(case: str) -> None:
    given = groups(case)
    assert remaining_influence(*given).value == pytest.approx(position(*given), rel=1e-8)


@pytest.mark.parametrize("case", list(CASES)[1:])
def test_the_position_is_along_the_discriminant_of_sklearn(case: str) -> None:
    audited, with_rows, without_rows = given = groups(case)
    known = Known(covariance(with_rows, without_rows))
    classifier = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=known)
    truth = np.repeat([1, 0], [len(with_rows), len(without_rows)])
    classifier.fit(np.concatenate([with_rows, without_rows]), truth)
    means = [audited, with_rows.mean(0), without_rows.mean(0)]
    here, top, bottom = classifier.decision_function(np.array(means))
    expected = (here - bottom) / (top - bottom)
    assert remaining_influence(*given).value == pytest.approx(expected, rel=1e-6)


def test_a_covariance_that_is_shrunk_altogether_leaves_plain_distances() -> None:
    # Deviations of one size in unrelated directions: Ledoit and Wolf shrink them to 1.
    deviations = np.vstack([np.eye(6), -np.eye(6)])
    with_rows, without_rows = deviations + 2, deviations
    pooled = np.concatenate([deviations, deviations])
    assert ledoit_wolf_shrinkage(pooled, assume_centered=True) == 1
    audited = np.array([1.0, 0, 0, 0, 0, 5])
    found = remaining_influence(audited, with_rows, without_rows)
    assert found.value == pytest.approx(audited.mean() / 2)


def test_models_that_differ_along_one_line_alone_are_shrunk_a_little() -> None:
    # Ledoit and Wolf would not shrink at all, and such a covariance has no inverse.
    line = np.array([3.0, 1, 0, -2])
    deviations = np.array([line, -line, line, -line])
    pooled = np.concatenate([deviations, deviations])
    assert ledoit_wolf_shrinkage(pooled, assume_centered=True) == pytest.approx(0, abs=1e-12)
    step, audited = np.array([1, 0, 2, 0.5]), np.array([1.0, 2, 3, 4])
    found = remaining_influence(audited, deviations + step, deviations)
    shrunk = 0.999 * np.outer(line, line) + 0.001 * (line @ line) / 4 * np.eye(4)
    direction = np.linalg.inv(shrunk) @ step
    assert found.value == pytest.approx(audited @ direction / (step @ direction))


@EVERY_CASE
@pytest.mark.parametrize("shift", [0.3, 1.5, 15.0])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_bands_are_those_of_positions_by_the_other_models(
    case: str, shift: float, confidence: float
) -> None:
    audited, with_rows, without_rows = groups(case, shift=shift)
    found = remaining_influence(audited, with_rows, without_rows, confidence=confidence)
    low, high = left_out(with_rows, without_rows)
    expected = abs(low.mean()) + reach(low, confidence)
    assert found.chance == pytest.approx(expected, rel=1e-7)
    top, bottom = low.mean() + reach(low, confidence), high.mean() - reach(high, confidence)
    assert found.distinguishable is bool(top < bottom)


@EVERY_CASE
def test_the_means_of_the_groups_are_zero_and_one(case: str) -> None:
    _, with_rows, without_rows = groups(case)
    for audited, expected in ((without_rows.mean(0), 0), (with_rows.mean(0), 1)):
        found = remaining_influence(audited, with_rows, without_rows)
        assert found.value == pytest.approx(expected, abs=1e-9)


@EVERY_CASE
def test_it_is_linear_in_the_audited_margins(case: str) -> None:
    first, with_rows, without_rows = groups(case)
    second = groups(case, seed=1)[0]

    def value(audited: Floats) -> float:
        return remaining_influence(audited, with_rows, without_rows).value

    mixed = 0.3 * value(first) + 0.7 * value(second)
    assert value(0.3 * first + 0.7 * second) == pytest.approx(mixed, rel=1e-8)


@EVERY_CASE
@pytest.mark.parametrize("scale", [0.01, 7.0, -2.0])
def test_the_unit_and_the_origin_of_the_margins_do_not_matter(case: str, scale: float) -> None:
    given = groups(case)
    origin = np.random.default_rng(5).normal(0, 3, CASES[case][0])
    before = remaining_influence(*given)
    after = remaining_influence(*(scale * each + origin for each in given))
    assert (after.value, after.chance) == pytest.approx((before.value, before.chance), rel=1e-6)
    assert after.distinguishable is before.distinguishable


def draw(random: np.random.Generator, k: int, m: int) -> Floats:
    return random.normal(size=(k, m)) + 0.5 * random.normal(size=(k, 1))


@pytest.mark.parametrize(("m", "shift"), [(1, 3.0), (30, 0.0), (120, 0.0), (120, 0.4), (30, 3.0)])
@pytest.mark.slow
def test_retrained_models_lie_within_the_band_as_often_as_it_says(m: int, shift: float) -> None:
    random, draws, inside = np.random.default_rng(11), 80, 0
    for _ in range(draws):
        with_rows, without_rows = draw(random, 6, m) + shift, draw(random, 6, m)
        found = remaining_influence(draw(random, 1, m)[0], with_rows, without_rows)
        inside += abs(found.value) <= found.chance
    assert inside / draws >= 0.92


def test_a_lower_confidence_gives_a_narrower_band_that_misses_more() -> None:
    random, inside = np.random.default_rng(12), 0
    for _ in range(100):
        with_rows, without_rows = draw(random, 6, 8) + 3, draw(random, 6, 8)
        found = remaining_influence(draw(random, 1, 8)[0], with_rows, without_rows, confidence=0.5)
        inside += abs(found.value) <= found.chance
    assert 0.4 <= inside / 100 <= 0.75


@pytest.mark.parametrize(
    ("shift", "least", "most"), [(0.0, 0, 0.02), (0.2, 0, 0.1), (6.0, 0.95, 1)]
)
@pytest.mark.slow
def test_groups_are_distinguishable_when_they_differ(
    shift: float, least: float, most: float
) -> None:
    random, draws, apart, found_out = np.random.default_rng(13), 60, 0, 0
    for _ in range(draws):
        with_rows, without_rows = draw(random, 8, 20) + shift, draw(random, 8, 20)
        parent = draw(random, 1, 20)[0] + shift
        found = remaining_influence(parent, with_rows, without_rows)
        apart += found.distinguishable
        found_out += found.value > found.chance
    assert least <= apart / draws <= most
    if least:
        assert found_out / draws > 0.95  # what distinguishable promises


@pytest.mark.parametrize("k", [3, 5, 20])
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_prediction_bands_hold_one_more_value_as_often_as_they_say(
    k: int, confidence: float
) -> None:
    random = np.random.default_rng(2)
    known, further = random.normal(4, 2, (2000, k)), random.normal(4, 2, 2000)
    bands = np.array([prediction_band(line, confidence) for line in known])
    assert bands[:20] == pytest.approx([reach(line, confidence) for line in known[:20]])
    covered = (np.abs(further - known.mean(1)) <= bands).mean()
    assert covered == pytest.approx(confidence, abs=0.03)


@pytest.mark.parametrize("sizes", [(2, 8), (8, 2), (1, 1)])
def test_fewer_than_three_models_of_a_kind_are_refused(sizes: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    with pytest.raises(AuditError, match=rf"at least 3 models of each kind, got {min(sizes)}"):
        remaining_influence(np.zeros(4), *(random.normal(size=(k, 4)) for k in sizes))


@pytest.mark.parametrize("level", [0.0, 1.0], ids=["differ", "the same"])
def test_models_that_do_not_vary_are_refused(level: float) -> None:
    with pytest.raises(AuditError, match=r"all give the same margins.*check that their seeds"):
        remaining_influence(np.zeros(4), np.ones((3, 4)), np.full((3, 4), level))


def test_groups_of_the_same_models_are_refused() -> None:
    models = groups("fewer rows than models")[1]
    with pytest.raises(AuditError, match="the same mean margins; check that the deletion set"):
        remaining_influence(models[0], models, models.copy())


@pytest.mark.parametrize(
    ("audited", "with_rows", "without_rows"),
    [
        ((3,), (4, 2), (4, 3)),
        ((2,), (4, 3), (4, 3)),
        ((1, 3), (4, 3), (4, 3)),
        ((0,), (4, 0), (4, 0)),
    ],
    ids=["groups", "audited", "two dimensions", "no rows"],
)
def test_margins_of_other_rows_are_refused(
    audited: tuple[int, ...], with_rows: tuple[int, int], without_rows: tuple[int, int]
) -> None:
    with pytest.raises(AuditError, match="margins must be of the same removed rows, got"):
        remaining_influence(np.zeros(audited), np.zeros(with_rows), np.zeros(without_rows))
