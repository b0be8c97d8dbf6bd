"""Target margins and the steps towards them, on a network that knows a group of its own."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import cross_entropy

from puma.data import Dataset, Examples
from puma.errors import DeletionError, SettingsError, SolverError
from puma.influence import SOLVERS
from puma.models import mlp
from puma.models.predictions import margins_of
from puma.removal import PUMA, Retrain, Trained
from puma.removal.puma import target_margin_step
from puma.removal.puma import target_margins as module
from puma.removal.puma.method import ONE_STEP
from puma.removal.puma.target_margins import target_margins
from puma.requests.deletion_set import DeletionSet
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
        logits = model(examples.features).double()  # in single precision sure rows tie
        return cross_entropy(logits, examples.labels, reduction="none").numpy()


def attack_auc(model, removed: Examples, unseen: Examples) -> float:
    scores = -np.concatenate([losses(model, removed), losses(model, unseen)])
    return roc_auc_score([1] * len(removed) + [0] * len(unseen), scores)


def test_reference_models_never_see_the_marked_rows(trained, deletion_set, monkeypatch):
    seen, models = [], []
    real = module.train

    def spy(model, examples, settings, **rest):
        seen.append(set(examples.subject_ids.tolist()))
        assert settings.epochs == 5
        models.append(model)
        return real(model, examples, settings, **rest)

    monkeypatch.setattr(module, "train", spy)
    data = trained.dataset
    before = flat(trained.initial).clone()
    marked, retained = (take(deletion_set.rows) for take in (data.train.subset, data.train.without))
    targets = target_margins(
        trained.predictor,
        trained.initial,
        retained,
        marked,
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
    assert torch.equal(flat(trained.initial), before)
    # Each model's margins on the scale of the predictor's, then their mean.
    usual = median(np.abs(log_odds(trained.predictor, retained)))
    scaled = [
        log_odds(model, marked) * usual / median(np.abs(log_odds(model, retained)))
        for model in models
    ]
    np.testing.assert_allclose(targets.numpy(), np.mean(scaled, axis=0), rtol=1e-9)


def log_odds(model, examples: Examples) -> np.ndarray:
    """Of the labels; between two classes the difference of the logits."""
    with torch.no_grad():
        logits = model(examples.features).double().numpy()
    rows, own = np.arange(len(logits)), examples.labels.numpy()
    return logits[rows, own] - logits[rows, 1 - own]


def median(values: np.ndarray) -> float:
    """Of an even number, the lower of the two in the middle."""
    return np.sort(values)[(len(values) - 1) // 2]


def test_a_model_that_knows_no_class_has_no_scale(trained, deletion_set, monkeypatch):
    monkeypatch.setattr(module, "train", lambda *_, **__: None)
    data = trained.dataset
    dumb = copy.deepcopy(trained.initial)
    for parameter in dumb.parameters():
        parameter.data.zero_()
    with pytest.raises(SolverError, match=r"no scale; raise puma\.reference_epochs"):
        target_margins(
            trained.predictor,
            dumb,
            data.train.without(deletion_set.rows),
            data.train.subset(deletion_set.rows),
            TRAINING,
            models=1,
            fraction=1.0,
            epochs=1,
            seed=0,
            progress=False,
        )


def test_every_row_ends_at_its_target(trained, deletion_set):
    data = trained.dataset
    method = PUMA(reference_models=1, training=TRAINING, budget=0.05, level_tolerance=1.0)
    removal = method.remove(trained, deletion_set, progress=False)
    removed = data.train.subset(deletion_set.rows)
    found = removal.diagnostics
    targets = target_margins(
        trained.predictor,
        trained.initial,
        data.train.without(deletion_set.rows),
        removed,
        TRAINING,
        models=1,
        fraction=1.0,
        epochs=60,
        seed=0,
        progress=False,
    ).numpy()
    before, after = (log_odds(each, removed) for each in (trained.predictor, removal.predictor))
    assert np.abs(targets - before).mean() > 1, "there is something to forget"
    assert found["level_distance_before"] == pytest.approx(
        np.abs(targets - before).mean(), rel=1e-3
    )
    assert found["level_distance"] == pytest.approx(np.abs(targets - after).mean(), rel=1e-3)
    assert found["level_distance"] <= 1
    assert found["level_missed"] == 0
    assert found["level_reached"] == pytest.approx(
        attack_auc(removal.predictor, removed, data.test), abs=1e-9
    )
    others = log_odds(removal.predictor, data.test)
    assert found["level_reference"] == pytest.approx(
        roc_auc_score([1] * 40 + [0] * len(others), np.concatenate([targets, others])), abs=1e-9
    )
    assert abs(found["level_reached"] - found["level_reference"]) <= 0.05
    assert all(abs(step["drift"]) <= 0.05 for step in removal.steps)
    assert removal.criterion_drift == pytest.approx(removal.steps[-1]["drift"], abs=1e-6)
    assert removal.parameters["dose"] == sum(step["dose"] for step in removal.steps)
    distances = [found["level_distance_before"], *(step["distance"] for step in removal.steps)]
    assert distances == sorted(distances, reverse=True)


def test_reports_when_the_budget_forbids_it(trained, deletion_set):
    removal = PUMA(reference_models=1, training=TRAINING, budget=1e-5, repair=False).remove(
        trained, deletion_set, progress=False
    )
    assert removal.diagnostics["level_missed"] == 1
    assert abs(removal.criterion_drift) <= 1e-5 * 1.01
    assert removal.diagnostics["level_distance"] > 0.5


def test_repairing_wins_budget_back(trained, deletion_set):
    settings = {"reference_models": 1, "training": TRAINING, "budget": 1e-5, "steps": 6}
    removal = PUMA(**settings).remove(trained, deletion_set, progress=False)
    repaired = [step["repaired"] for step in removal.steps]
    assert repaired[0] == 0
    assert max(repaired) > 0
    without = PUMA(**settings, repair=False).remove(trained, deletion_set, progress=False)
    assert removal.diagnostics["level_distance"] < without.diagnostics["level_distance"]


def test_rows_at_their_targets_get_a_first_order_step(trained, deletion_set, monkeypatch):
    def already(predictor, *others, **_):
        return margins_of(predictor, others[2])  # the marked rows

    monkeypatch.setattr(target_margin_step, "target_margins", already)
    removal = PUMA(reference_models=1, training=TRAINING, budget=1e6).remove(
        trained, deletion_set, progress=False
    )
    plain = PUMA(training=TRAINING, budget=1e6, max_dose=1.0, **ONE_STEP).remove(
        trained, deletion_set, progress=False
    )
    torch.testing.assert_close(flat(removal.predictor), flat(plain.predictor))
    assert [step["dose"] for step in removal.steps] == [1.0]


def test_a_solver_without_target_margins_is_refused_by_name(trained, deletion_set):
    able = ", ".join(name for name, solver in sorted(SOLVERS.items()) if solver.solves_sums)
    assert "cg" in able
    assert "lissa" not in able
    with pytest.raises(SettingsError, match=rf"'lissa' cannot take.*choose one of {able}"):
        PUMA(reference_models=1, training=TRAINING, solver="lissa").remove(
            trained, deletion_set, progress=False
        )


def test_a_step_that_is_lost_in_round_off_is_no_removal(trained, deletion_set):
    with pytest.raises(SolverError, match="changes no weight"):
        PUMA(reference_models=1, training=TRAINING, damping=1e14).remove(
            trained, deletion_set, progress=False
        )


def test_without_unseen_rows_there_is_nothing_to_compare_with(trained):
    data = trained.dataset
    mine = Examples.of(data.test.features, data.test.labels, ["0"] * len(data.test))
    other = Dataset("noisy", data.train, mine, data.classes)
    with pytest.raises(DeletionError, match="no unseen rows are left"):
        PUMA(reference_models=1, training=TRAINING).remove(
            Trained(trained.predictor, other, trained.initial), DeletionSet.of(["0"], other)
        )
