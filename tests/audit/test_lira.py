from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from puma.audit import LiRA, Population
from puma.errors import AuditError
from puma.metrics import auc
from tests.audit.conftest import Planted, random_predictions
from tests.audit.oracles import Floats, likelihood_ratios


def shadows_of(values: Floats, member: np.ndarray) -> Population:
    return Population(values, values > 0, member)


@pytest.fixture
def shadows() -> Population:
    """7 shadows of 12 rows; every row has its own level, and members lie higher."""
    random = np.random.default_rng(0)
    member = np.array([random.permutation(7) < random.integers(2, 6) for _ in range(12)]).T
    values = random.normal(size=(7, 12)) + 3 * random.normal(size=12) + 2 * member
    return shadows_of(values, member)


def test_scores_are_the_ratio_of_two_normal_likelihoods(shadows: Population) -> None:
    predictions = random_predictions(12, 1).at(np.array([3, 0, 11, 5, 3]))
    expected = likelihood_ratios(shadows, predictions.margins, predictions.rows)
    np.testing.assert_allclose(LiRA(shadows).scores(predictions), expected, rtol=1e-10)


def test_the_ratio_of_margins_takes_any_number_of_models(shadows: Population) -> None:
    random, rows = np.random.default_rng(2), np.array([4, 1, 9])
    values = random.normal(0, 5, (6, 3))
    found = LiRA(shadows).ratio(values, rows)
    assert found.shape == (6, 3)
    for line, expected in zip(found, values, strict=True):
        np.testing.assert_allclose(line, likelihood_ratios(shadows, expected, rows), rtol=1e-10)


def test_with_equal_spreads_the_ratio_is_a_straight_line() -> None:
    # Members at 3 ± 1, others at 1 ± 1 (variance 2): log ratio = (x − 2)·2/2.
    member = np.array([[True], [True], [False], [False]])
    lira = LiRA(shadows_of(np.array([[4.0], [2.0], [2.0], [0.0]]), member))
    values = np.array([[2.0], [3.0], [-1.0]])
    np.testing.assert_allclose(lira.ratio(values, np.array([0]))[:, 0], [0, 1, -3], atol=1e-12)


def test_rows_of_different_difficulty_are_put_on_one_scale(shadows: Population) -> None:
    # A margin that a hard row has as a member is one that an easy row has as no member.
    truth = shadows.member.ravel()
    plain = roc_auc_score(truth, shadows.margins.ravel())
    found = roc_auc_score(truth, LiRA(shadows).ratio(shadows.margins, np.arange(12)).ravel())
    assert found > plain + 0.1


def test_members_score_higher_in_models_it_never_saw(planted: Planted) -> None:
    lira, unseen = planted.evidence.lira, 160 + np.arange(3, 120)
    for version, members in (
        (planted.original, np.arange(160)),
        (planted.retrained[0], np.setdiff1d(np.arange(160), planted.deletion_set.rows.numpy())),
    ):
        given = planted.predictions(version)
        found = auc(lira.scores(given.at(members)), lira.scores(given.at(unseen)))
        loss = auc(*(part.margins for part in map(given.at, (members, unseen))))
        assert found > 0.85
        assert found > loss


def test_removed_rows_of_a_retrained_model_look_like_no_members(planted: Planted) -> None:
    removed = planted.deletion_set.rows.numpy()
    lira = planted.evidence.lira
    before, after = planted.predictions(planted.original), planted.predictions(planted.retrained[0])
    assert (lira.scores(before.at(removed)) > 0).mean() > 0.7
    assert (lira.scores(after.at(removed)) > 0).mean() < 0.45


@pytest.mark.parametrize("side", [True, False])
def test_a_row_with_fewer_than_two_models_on_a_side_is_refused(
    shadows: Population, side: bool
) -> None:
    member = shadows.member.copy()
    member[:, 5] = [side, *[not side] * 6]
    with pytest.raises(AuditError, match=r"in at least 2 shadow models and outside of 2, got 7"):
        LiRA(shadows_of(shadows.margins, member))
    member[:2, 5] = side
    LiRA(shadows_of(shadows.margins, member))


def test_predictions_of_other_rows_are_refused(shadows: Population) -> None:
    with pytest.raises(AuditError, match="row 12 is none of the 12 rows of the shadow models"):
        LiRA(shadows).scores(random_predictions(13, 0))
    assert len(LiRA(shadows).scores(random_predictions(12, 0).at(np.arange(0)))) == 0


def test_shadows_without_any_chance_are_refused() -> None:
    member = np.array([[True], [True], [False], [False]])
    lira = LiRA(shadows_of(np.array([[4.0], [4.0], [2.0], [0.0]]), member))
    with pytest.raises(AuditError, match="nothing is known of chance; check that their seeds"):
        lira.ratio(np.array([1.0]), np.array([0]))
