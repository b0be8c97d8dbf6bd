from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logit, softmax
from scipy.stats import entropy
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

from puma.audit import (
    ATTACKS,
    Predictions,
    auc_interval,
    confidence_attack,
    entropy_attack,
    loss_attack,
    predict,
    tpr_at_fpr,
    two_model_attack,
)
from puma.data.base import Dataset
from puma.metrics import auc
from puma.models import build_model
from puma.models.training import train
from tests.audit.conftest import (
    CLASSES,
    MODEL,
    TRAINING,
    Planted,
    coin_flips,
    predictions_of,
    random_predictions,
)


def by_hand(name: str, given: Predictions) -> np.ndarray:
    after, before, labels = given.after.numpy(), given.before.numpy(), given.labels.numpy()
    rows = np.arange(len(labels))
    scores: dict[str, np.ndarray] = {
        "loss": log_softmax(after, 1)[rows, labels],
        "confidence": softmax(after, 1).max(1),
        "entropy": -entropy(softmax(after, 1), axis=1),
        "two_models": logit(softmax(before, 1)[rows, labels])
        - logit(softmax(after, 1)[rows, labels]),
    }
    return scores[name]


@pytest.mark.parametrize("name", ATTACKS)
def test_scores_agree_with_scipy(name: str) -> None:
    given = random_predictions(80, 0)
    np.testing.assert_allclose(ATTACKS[name](given), by_hand(name, given), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ATTACKS)
def test_their_auc_is_that_of_sklearn(name: str) -> None:
    given = random_predictions(90, 1)
    members, others = given.at(np.arange(40)), given.at(np.arange(40, 90))
    expected = roc_auc_score(np.repeat([1, 0], [40, 50]), by_hand(name, given))
    found = auc(ATTACKS[name](members), ATTACKS[name](others))
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("level", [0.05, 0.1, 0.3])
def test_the_rate_at_a_level_is_that_of_the_adversarial_robustness_toolbox(
    name: str, level: float
) -> None:
    given = random_predictions(90, 2)
    members, others = given.at(np.arange(40)), given.at(np.arange(40, 90))
    # Its get_roc_for_fpr: the last point of the curve whose false-positive rate is low enough.
    false, true, _ = roc_curve(np.repeat([1, 0], [40, 50]), by_hand(name, given))
    expected = true[np.where(false <= level)[0][-1]]
    assert tpr_at_fpr(ATTACKS[name](members), ATTACKS[name](others), level).value == expected


def test_the_loss_attack_is_the_log_of_the_confidence_in_the_label() -> None:
    # p = 0.9 for the right class and 0.2 for a wrong one.
    given = predictions_of(np.log([[0.9, 0.1], [0.8, 0.2]]), [0, 1])
    np.testing.assert_allclose(loss_attack(given), np.log([0.9, 0.2]))
    np.testing.assert_allclose(confidence_attack(given), [0.9, 0.8])
    expected = [0.9 * np.log(0.9) + 0.1 * np.log(0.1), 0.8 * np.log(0.8) + 0.2 * np.log(0.2)]
    np.testing.assert_allclose(entropy_attack(given), expected)


def test_the_ranges_are_those_of_their_definitions() -> None:
    flat, sure = (
        predictions_of(np.zeros((1, CLASSES)), [0]),
        predictions_of([[900.0, 0, 0, 0]], [0]),
    )
    assert loss_attack(flat)[0] == pytest.approx(-np.log(CLASSES))
    assert entropy_attack(flat)[0] == pytest.approx(-np.log(CLASSES))
    assert confidence_attack(flat)[0] == pytest.approx(1 / CLASSES)
    assert [run(sure)[0] for run in (loss_attack, entropy_attack, confidence_attack)] == [0, 0, 1]


def test_two_versions_that_are_the_same_tell_nothing() -> None:
    assert not two_model_attack(random_predictions(20, 3).of_parent()).any()


def test_a_row_that_the_version_lost_scores_higher_than_one_it_gained() -> None:
    given = predictions_of([[0.0, 0], [5, 0]], [0, 0], before=[[5.0, 0], [0, 0]])
    np.testing.assert_allclose(two_model_attack(given), [5, -5], atol=1e-12)


def test_members_of_an_overfitted_model_score_higher(
    memory: Dataset, overfitted: nn.Module
) -> None:
    given = predict(overfitted, memory.train, memory.test)
    found = {
        name: auc(run(given.at(np.arange(200))), run(given.at(np.arange(200, 400))))
        for name, run in ATTACKS.items()
    }
    # The label tells most: unseen rows are answered wrongly, but often with confidence.
    assert found["loss"] > 0.9
    assert found["loss"] > found["confidence"] + 0.05 > 0.65
    assert found["loss"] > found["entropy"] + 0.05 > 0.65
    assert found["two_models"] == 0.5  # it is its own parent


@pytest.mark.slow
def test_members_and_nonmembers_change_places_with_the_data(memory: Dataset) -> None:
    swapped = Dataset("swapped", memory.test, memory.train, memory.classes)
    model = build_model(MODEL, swapped, seed=6)
    train(model, swapped.train, TRAINING, seed=6, progress=False)
    given = predict(model, memory.train, memory.test)
    scores = loss_attack(given)
    assert auc(scores[200:], scores[:200]) > 0.9
    assert auc(scores[:200], scores[200:]) < 0.1


@pytest.mark.parametrize("fitted", [True, False], ids=["trained on others", "untrained"])
@pytest.mark.slow
def test_a_model_that_saw_neither_group_cannot_tell_them_apart(
    memory: Dataset, overfitted: nn.Module, fitted: bool
) -> None:
    model = overfitted if fitted else build_model(MODEL, memory, seed=3)
    covered = dict.fromkeys(("loss", "confidence", "entropy"), 0)
    for seed in range(100, 400):
        strangers = predict(model, coin_flips(150, seed))
        for name in covered:
            scores = ATTACKS[name](strangers)
            interval = auc_interval(scores[:50], scores[50:])
            covered[name] += interval.low < 0.5 < interval.high
    assert all(0.92 <= count / 300 <= 0.98 for count in covered.values())  # .95 is meant


def test_both_versions_together_betray_who_left(planted: Planted) -> None:
    removed = planted.deletion_set.rows.numpy()
    unseen = 160 + np.setdiff1d(np.arange(120), planted.deletion_set.test_rows.numpy())
    given = planted.predictions(planted.retrained[0])
    both = auc(two_model_attack(given.at(removed)), two_model_attack(given.at(unseen)))
    alone = auc(loss_attack(given.at(removed)), loss_attack(given.at(unseen)))
    assert both > 0.8 > 0.6 > alone
    same = planted.predictions(planted.original)
    assert not torch.equal(given.after, same.after)
    assert auc(two_model_attack(same.at(removed)), two_model_attack(same.at(unseen))) == 0.5
