"""The reference level and the steps towards it, on a network that knows a group of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import cross_entropy

from puma.data import Dataset, Examples
from puma.deletion import DeletionSet
from puma.errors import DeletionError, SolverError
from puma.models import mlp
from puma.removal import PUMA, Retrain, Trained
from puma.removal import reference as reference_module
from puma.removal.reference import loss_ranks, reference_ranks
from puma.settings import TrainingSettings
from tests.removal.conftest import blobs, flat

TRAINING = TrainingSettings(epochs=120, batch_size=32, learning_rate=5e-3)
MARKED = [str(number) for number in range(40)]


def single(examples: Examples, prefix: str = "") -> Examples:
    ids = [f"{prefix}{name}" for name in examples.subject_ids]
    return Examples.of(examples.features.float(), examples.labels, ids)


@pytest.fixture(scope="module")
def trained() -> Trained:
    test = single(blobs(200, seed=4), "other-")
    train = single(blobs(240, seed=3))
    # The marked rows: a group far from all others, with a rule of its own.
    train.features[:40] = train.features[:40] / 2 - 4
    train.labels[:40] = (train.features[:40, 0] > train.features[:40, 0].median()).long()
    dataset = Dataset("noisy", train, test, ("a", "b"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = mlp(3, 2, (64, 32))
    return Retrain(training=TRAINING).fit(model, dataset, progress=False)


@pytest.fixture(scope="module")
def deletion_set(trained) -> DeletionSet:
    return DeletionSet.of(MARKED, trained.dataset)


def losses(model, examples: Examples) -> np.ndarray:
    with torch.no_grad():
        return cross_entropy(model(examples.features), examples.labels, reduction="none").numpy()


def attack_auc(model, removed: Examples, unseen: Examples) -> float:
    scores = -np.concatenate([losses(model, removed), losses(model, unseen)])
    return roc_auc_score([1] * len(removed) + [0] * len(unseen), scores)


def test_ranks_are_the_loss_attack_point_by_point(trained):
    model, removed, unseen = trained.predictor, trained.dataset.train, trained.dataset.test
    ranks = loss_ranks(model, removed, unseen)
    others = losses(model, unseen)
    for rank, loss in zip(ranks.tolist(), losses(model, removed), strict=True):
        expected = ((others < loss).sum() + 0.5 * (others == loss).sum()) / len(others)
        assert rank == pytest.approx(expected, abs=1e-12)
    assert 1 - ranks.mean().item() == pytest.approx(attack_auc(model, removed, unseen), abs=1e-9)


def test_reference_models_never_see_the_marked_rows(trained, deletion_set, monkeypatch):
    seen: list[set[str]] = []
    real = reference_module.train

    def spy(model, examples, settings, **rest):
        seen.append(set(examples.subject_ids.tolist()))
        assert settings.epochs == 5
        return real(model, examples, settings, **rest)

    monkeypatch.setattr(reference_module, "train", spy)
    data = trained.dataset
    before = flat(trained.initial).clone()
    ranks = reference_ranks(
        trained.initial,
        data.train.without(deletion_set.rows),
        data.train.subset(deletion_set.rows),
        data.test,
        TRAINING,
        models=3,
        fraction=0.5,
        epochs=5,
        seed=0,
        progress=False,
    )
    assert [len(ids) for ids in seen] == [100] * 3
    assert not set(MARKED) & set.union(*seen)
    assert seen[0] != seen[1]
    assert ranks.shape == (40,)
    assert torch.equal(flat(trained.initial), before)


def test_forgets_down_to_the_level_and_not_beyond(trained, deletion_set):
    data = trained.dataset
    removal = PUMA(training=TRAINING, budget=0.05, steps=8).remove(
        trained, deletion_set, progress=False
    )
    removed = data.train.subset(deletion_set.rows)
    found = removal.diagnostics
    original, reached = (
        attack_auc(model, removed, data.test) for model in (trained.predictor, removal.predictor)
    )
    assert found["level_reached"] == pytest.approx(reached, abs=1e-9)
    assert original > found["level_reference"] + 0.05, "there is something to forget"
    assert abs(reached - found["level_reference"]) <= 0.02
    assert found["forgetting_incomplete"] == 0
    assert len(removal.steps) == found["steps"] > 1
    assert all(abs(step["drift"]) <= 0.05 for step in removal.steps)
    assert removal.criterion_drift == pytest.approx(removal.steps[-1]["drift"], abs=1e-6)
    assert removal.parameters["dose"] == sum(step["dose"] for step in removal.steps)


def test_says_when_the_budget_forbids_it(trained, deletion_set):
    removal = PUMA(training=TRAINING, budget=1e-5, repair=False).remove(
        trained, deletion_set, progress=False
    )
    assert removal.diagnostics["forgetting_incomplete"] == 1
    assert abs(removal.criterion_drift) <= 1e-5 * 1.01
    assert removal.diagnostics["level_reached"] > removal.diagnostics["level_reference"] + 0.01


def test_repairing_wins_budget_back(trained, deletion_set):
    removal = PUMA(training=TRAINING, budget=1e-5, steps=6).remove(
        trained, deletion_set, progress=False
    )
    repaired = [step["repaired"] for step in removal.steps]
    assert repaired[0] == 0
    assert max(repaired) > 0
    without = PUMA(training=TRAINING, budget=1e-5, steps=6, repair=False).remove(
        trained, deletion_set, progress=False
    )
    assert removal.diagnostics["level_reached"] < without.diagnostics["level_reached"]


def test_the_better_of_two_steps_is_taken(trained, deletion_set):
    def drift(reweighting: str) -> tuple[float, float]:
        removal = PUMA(
            training=TRAINING, budget=0.01, steps=1, reference_models=0, reweighting=reweighting
        ).remove(trained, deletion_set, progress=False)
        return removal.steps[0]["removed_loss"], removal.steps[0]["reweighted"]

    always, never, both = drift("always"), drift("never"), drift("both")
    assert (always[1], never[1]) == (1, 0)
    assert both == max(always, never)


def test_a_step_that_is_lost_in_round_off_is_no_removal(trained, deletion_set):
    with pytest.raises(SolverError, match="changes no weight"):
        PUMA(training=TRAINING, damping=1e14).remove(trained, deletion_set, progress=False)


def test_without_unseen_rows_there_is_no_level(trained):
    data = trained.dataset
    mine = Examples.of(data.test.features, data.test.labels, ["0"] * len(data.test))
    other = Dataset("noisy", data.train, mine, data.classes)
    with pytest.raises(DeletionError, match="no unseen rows are left"):
        PUMA(training=TRAINING).remove(
            Trained(trained.predictor, other, trained.initial), DeletionSet.of(["0"], other)
        )
