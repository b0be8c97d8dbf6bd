from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import one_hot

from puma.audit import FEATURES, ShadowAttack, predict, rate, shadow, train_shadow_attack
from puma.data.base import Dataset, Examples
from puma.errors import AuditError
from puma.metrics import auc
from puma.models import mlp
from puma.models.training import History, train
from puma.settings import ShadowSettings, TrainingSettings
from tests.audit.conftest import (
    CLASSES,
    MODEL,
    SHADOW,
    TRAINING,
    coin_flips,
    predictions_of,
    random_predictions,
)


@dataclass
class Call:
    """One use of the training loop."""

    label: str
    model: nn.Module
    examples: Examples
    settings: TrainingSettings
    seed: int


@pytest.fixture(scope="module")
def recorded(memory: Dataset) -> tuple[ShadowAttack, dict[str, Call]]:
    """An attack trained with the settings of ``attack``, and every training that made it."""
    calls: list[Call] = []

    def spy(
        model: nn.Module, examples: Examples, settings: TrainingSettings, **rest: Any
    ) -> History:
        calls.append(Call(rest["label"], model, examples, settings, rest["seed"]))
        return train(model, examples, settings, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shadow, "train", spy)
        result = train_shadow_attack(memory, MODEL, TRAINING, SHADOW, seed=0, progress=False)
    return result, {call.label: call for call in calls}


def outputs_and_labels(model: nn.Module, examples: Examples) -> Tensor:
    with torch.no_grad():
        probabilities = model(examples.features).softmax(1)
    return torch.cat([probabilities, one_hot(examples.labels, CLASSES)], 1)


def test_members_score_higher(memory: Dataset, overfitted: nn.Module, attack: ShadowAttack) -> None:
    members = attack.scores(predict(overfitted, memory.train))
    nonmembers = attack.scores(predict(overfitted, memory.test))
    assert members.shape == (200,)
    assert min(members.min(), nonmembers.min()) >= 0
    assert max(members.max(), nonmembers.max()) <= 1
    assert auc(members, nonmembers) > 0.8
    assert rate(members) > rate(nonmembers) + 0.4
    assert 0.7 < attack.quality <= 1
    assert 0.7 < attack.quality_auc <= 1


@pytest.mark.slow
def test_same_seed_same_attack_other_seed_another(memory: Dataset, attack: ShadowAttack) -> None:
    predictions = random_predictions(50, 0)
    state = torch.get_rng_state()
    again = train_shadow_attack(memory, MODEL, TRAINING, SHADOW, seed=0, progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert (again.quality, again.quality_auc) == (attack.quality, attack.quality_auc)
    expected = attack.scores(predictions)
    assert np.array_equal(again.scores(predictions), expected)
    other = train_shadow_attack(memory, MODEL, TRAINING, SHADOW, seed=1, progress=False)
    assert not np.array_equal(other.scores(predictions), expected)


def test_shadows_have_distinct_seeds_and_members_under_a_tenth(
    memory: Dataset, recorded: tuple[ShadowAttack, dict[str, Call]]
) -> None:
    _, calls = recorded
    shadows = [call for label, call in calls.items() if label.startswith("shadow")]
    assert [call.label for call in shadows] == [f"shadow {i}/4" for i in (1, 2, 3, 4)]
    for call in shadows:
        assert len(call.examples) == 18 < len(memory.train) / 10
        assert len(set(call.examples.subject_ids)) == 18
        assert set(call.examples.subject_ids) <= set(memory.train.subject_ids)
        assert call.settings == TRAINING.model_copy(update={"epochs": SHADOW.epochs})
    assert calls["attack"].settings.epochs == SHADOW.attack_epochs
    assert len({call.seed for call in calls.values()}) == 5
    assert len({frozenset(call.examples.subject_ids) for call in shadows}) == 4


def test_the_attack_learns_from_members_and_as_many_nonmembers_of_each_shadow(
    memory: Dataset, recorded: tuple[ShadowAttack, dict[str, Call]]
) -> None:
    _, calls = recorded
    learnt = calls["attack"].examples
    assert len(learnt) == 3 * 2 * 18  # three shadows; nothing of the held-out fourth
    for block in range(3):
        call = calls[f"shadow {block + 1}/4"]
        rows = torch.arange(36) + 36 * block
        part = learnt.subset(rows)
        assert int(part.labels.sum()) == 18
        members = part.features[part.labels == 1]
        torch.testing.assert_close(members, outputs_and_labels(call.model, call.examples))
        others = memory.train.without(memory.train.owned_by(call.examples.subject_ids))
        known = outputs_and_labels(call.model, others)
        nonmembers = part.features[part.labels == 0]
        distances = (nonmembers[:, None] - known).abs().amax(2)
        assert distances.amin(1).max() < 1e-6


def test_quality_is_measured_on_the_held_out_shadow(
    memory: Dataset, recorded: tuple[ShadowAttack, dict[str, Call]]
) -> None:
    attack, calls = recorded
    assert list(calls).index("attack") < list(calls).index("shadow 4/4")
    held_out = calls["shadow 4/4"]
    truth = np.isin(memory.train.subject_ids, held_out.examples.subject_ids)
    scores = attack.scores(predict(held_out.model, memory.train))
    expected = balanced_accuracy_score(truth, scores > 0.5)
    assert attack.quality == pytest.approx(expected, abs=1e-12)
    assert attack.quality_auc == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)


@pytest.mark.parametrize("kind", FEATURES)
def test_saved_attack_gives_the_same_scores(tmp_path: Path, memory: Dataset, kind: str) -> None:
    settings = SHADOW.model_copy(update={"models": 1, "epochs": 5, "features": kind})
    attack = train_shadow_attack(memory, MODEL, TRAINING, settings, seed=0, progress=False)
    path = tmp_path / "deep" / "attack.pt"
    attack.save(path)
    loaded = ShadowAttack.load(path)
    predictions = random_predictions(50, 1)
    assert np.array_equal(loaded.scores(predictions), attack.scores(predictions))
    assert (loaded.classes, loaded.features, loaded.quality, loaded.quality_auc) == (
        CLASSES,
        kind,
        attack.quality,
        attack.quality_auc,
    )
    assert list(path.parent.iterdir()) == [path]


def test_features_are_those_of_their_names() -> None:
    outputs = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], dtype=torch.float64).log()
    labels = torch.tensor([1, 2])
    expected = {
        "softmax": [[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]],
        "softmax_label": [[0.1, 0.7, 0.2, 0, 1, 0], [0.5, 0.2, 0.3, 0, 0, 1]],
        "sorted": [[0.7, 0.2, 0.1, 1], [0.5, 0.3, 0.2, 0]],
    }
    assert set(FEATURES) == set(expected)
    for kind, values in expected.items():
        np.testing.assert_allclose(FEATURES[kind](outputs, labels), values, atol=1e-12)


def test_sorted_features_treat_all_classes_alike() -> None:
    predictions, order = random_predictions(40, 2), torch.tensor([2, 0, 3, 1])
    renamed = (predictions.after[:, order], order.argsort()[predictions.labels])
    for kind, alike in (("sorted", True), ("softmax", False), ("softmax_label", False)):
        found = FEATURES[kind](*renamed)
        assert torch.allclose(found, FEATURES[kind](predictions.after, predictions.labels)) is alike


def test_the_softmax_alone_does_not_know_the_label() -> None:
    predictions = random_predictions(40, 3)
    others = (predictions.labels + 1) % CLASSES
    for kind, blind in (("softmax", True), ("sorted", False), ("softmax_label", False)):
        found = FEATURES[kind](predictions.after, others)
        assert torch.equal(found, FEATURES[kind](predictions.after, predictions.labels)) is blind


def test_scores_are_the_networks_probability_of_a_member(attack: ShadowAttack) -> None:
    predictions = random_predictions(60, 4)
    hidden = np.hstack([softmax(predictions.after.numpy(), 1), np.eye(CLASSES)[predictions.labels]])
    weights = [value.double().numpy() for value in attack.network.state_dict().values()]
    for layer in range(0, len(weights), 2):
        hidden = np.maximum(hidden, 0) if layer else hidden
        hidden = hidden @ weights[layer].T + weights[layer + 1]
    np.testing.assert_allclose(attack.scores(predictions), softmax(hidden, 1)[:, 1], atol=1e-5)


def test_what_is_not_an_attack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"no such attack; run the shadow stage"):
        ShadowAttack.load(tmp_path / "absent.pt")
    torch.save(mlp(4, 2).state_dict(), tmp_path / "weights.pt")
    (tmp_path / "noise.pt").write_bytes(b"noise")
    for name in ("weights.pt", "noise.pt"):
        with pytest.raises(AuditError, match="not a shadow attack written by PUMA"):
            ShadowAttack.load(tmp_path / name)


def test_other_class_counts_are_refused(attack: ShadowAttack) -> None:
    with pytest.raises(AuditError, match="predicts 3 classes, the attack was trained for 4"):
        attack.scores(predictions_of(np.zeros((2, 3)), [0, 1]))


def test_too_few_rows_for_a_shadow_are_refused() -> None:
    tiny = Dataset("tiny", coin_flips(22, 0), coin_flips(5, 1), tuple("abcd"))
    with pytest.raises(AuditError, match=r"of 22 training rows leaves 1 member.*raise"):
        train_shadow_attack(tiny, MODEL, TRAINING, ShadowSettings(), seed=0, progress=False)
