from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import one_hot

from puma.audit import ShadowAttack, auc, rate, shadow, train_shadow_attack
from puma.data.base import Dataset, Examples
from puma.errors import AuditError
from puma.models import mlp
from puma.settings import ShadowSettings, TrainingSettings
from puma.training import History, train
from tests.audit.conftest import CLASSES, MODEL, SHADOW, TRAINING, coin_flips


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
    members = attack.scores(overfitted, memory.train)
    nonmembers = attack.scores(overfitted, memory.test)
    assert members.shape == (200,)
    assert min(members.min(), nonmembers.min()) >= 0
    assert max(members.max(), nonmembers.max()) <= 1
    assert auc(members, nonmembers) > 0.8
    assert rate(members) > rate(nonmembers) + 0.4
    assert 0.7 < attack.quality <= 1
    assert 0.7 < attack.quality_auc <= 1


def test_same_seed_same_attack_other_seed_another(memory: Dataset, attack: ShadowAttack) -> None:
    model = mlp(10, CLASSES)
    state = torch.get_rng_state()
    again = train_shadow_attack(memory, MODEL, TRAINING, SHADOW, seed=0, progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert (again.quality, again.quality_auc) == (attack.quality, attack.quality_auc)
    expected = attack.scores(model, memory.test)
    assert np.array_equal(again.scores(model, memory.test), expected)
    other = train_shadow_attack(memory, MODEL, TRAINING, SHADOW, seed=1, progress=False)
    assert not np.array_equal(other.scores(model, memory.test), expected)


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
        assert torch.cdist(nonmembers, known).min(1).values.max() < 1e-6


def test_quality_is_measured_on_the_held_out_shadow(
    memory: Dataset, recorded: tuple[ShadowAttack, dict[str, Call]]
) -> None:
    attack, calls = recorded
    assert list(calls).index("attack") < list(calls).index("shadow 4/4")
    held_out = calls["shadow 4/4"]
    truth = np.isin(memory.train.subject_ids, held_out.examples.subject_ids)
    scores = attack.scores(held_out.model, memory.train)
    expected = balanced_accuracy_score(truth, scores > 0.5)
    assert attack.quality == pytest.approx(expected, abs=1e-12)
    assert attack.quality_auc == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)


def test_saved_attack_gives_the_same_scores(
    tmp_path: Path, memory: Dataset, overfitted: nn.Module, attack: ShadowAttack
) -> None:
    path = tmp_path / "deep" / "attack.pt"
    attack.save(path)
    loaded = ShadowAttack.load(path)
    expected = attack.scores(overfitted, memory.test)
    assert np.array_equal(loaded.scores(overfitted, memory.test), expected)
    assert (loaded.classes, loaded.quality, loaded.quality_auc) == (
        attack.classes,
        attack.quality,
        attack.quality_auc,
    )
    assert list(path.parent.iterdir()) == [path]


def test_what_is_not_an_attack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"no such attack; run the shadow stage"):
        ShadowAttack.load(tmp_path / "absent.pt")
    torch.save(mlp(4, 2).state_dict(), tmp_path / "weights.pt")
    (tmp_path / "noise.pt").write_bytes(b"noise")
    for name in ("weights.pt", "noise.pt"):
        with pytest.raises(AuditError, match="not a shadow attack written by PUMA"):
            ShadowAttack.load(tmp_path / name)


@pytest.mark.parametrize("training", [True, False])
def test_model_mode_is_untouched(memory: Dataset, attack: ShadowAttack, training: bool) -> None:
    model = nn.Sequential(mlp(10, CLASSES), nn.Dropout(0.5)).train(training)
    first, second = (attack.scores(model, memory.test) for _ in range(2))
    assert np.array_equal(first, second)
    assert all(module.training is training for module in model.modules())


def test_other_class_counts_are_refused(memory: Dataset, attack: ShadowAttack) -> None:
    with pytest.raises(AuditError, match="answers with 3 classes, the attack was trained for 4"):
        attack.scores(mlp(10, 3), memory.test)
    strange = Examples.of(memory.test.features, memory.test.labels + 1)
    with pytest.raises(AuditError, match="a label is 4, the attack was trained for classes 0 to 3"):
        attack.scores(mlp(10, CLASSES), strange)


def test_too_few_rows_for_a_shadow_are_refused() -> None:
    tiny = Dataset("tiny", coin_flips(22, 0), coin_flips(5, 1), tuple("abcd"))
    with pytest.raises(AuditError, match=r"of 22 training rows leaves 1 member.*raise"):
        train_shadow_attack(tiny, MODEL, TRAINING, ShadowSettings(), seed=0, progress=False)
