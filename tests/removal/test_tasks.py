"""Every method removes from every task, by the loss that training minimises."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from puma.data import Dataset, Examples
from puma.data.task import Task
from puma.errors import ModelError
from puma.models import Ensemble
from puma.models.training import train
from puma.removal import PUMA, SISA, Amnesiac, RemovalMethod, Retrain, Trained
from puma.removal.puma import target_margin_step
from puma.removal.puma.target_margin_step import PULL, REACH, SHARES
from puma.requests.deletion_set import DeletionSet
from puma.settings import TrainingSettings

N, GONE = 80, 12
DAMPING = 0.05
FAST = TrainingSettings(epochs=10, batch_size=16, learning_rate=0.02)
WEIGHTED = FAST.model_copy(update={"class_weights": "balanced"})


@dataclass(frozen=True)
class Case:
    task: str
    training: TrainingSettings

    def data(self) -> Dataset:
        generator = torch.Generator().manual_seed(2)
        features = torch.randn(N + 20, 3, generator=generator, dtype=torch.float64)
        noise = torch.randn(N + 20, generator=generator, dtype=torch.float64)
        signal = features[:, 0] - features[:, 1] + 0.5 * noise
        regression = self.task == "regression"
        labels = signal if regression else (signal > 0.7).long()
        ids = [f"s{row}" for row in range(N + 20)]
        rows = Examples.of(features, labels, ids, task=Task(self.task))  # type: ignore[arg-type]
        classes = () if regression else ("no", "yes")
        return Dataset(
            "toy", rows.subset(torch.arange(N)), rows.subset(torch.arange(N, N + 20)), classes
        )


CASES = {
    "regression": Case("regression", FAST),
    "binary": Case("binary", FAST),
    "binary, balanced": Case("binary", WEIGHTED),
    "classification, balanced": Case("classification", WEIGHTED),
}
METHODS: dict[str, type[RemovalMethod]] = {
    "retrain": Retrain, "puma": PUMA, "puma_levels": PUMA, "sisa": SISA, "amnesiac": Amnesiac,
}  # fmt: skip
SETTINGS = {
    "retrain": {},
    "puma": {"reference_models": 0},
    "puma_levels": {"reference_models": 2, "reference_epochs": 0.5},
    "sisa": {"shards": 2, "slices": 2},
    "amnesiac": {"repair_epochs": 1},
}


def network(case: Case) -> nn.Module:
    outputs = 2 if case.task == "classification" else 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def weighted_loss(model: nn.Module, rows: Examples, weights: np.ndarray | None) -> float:
    """The mean loss by scikit-learn, with the weights of the classes."""
    with torch.no_grad():
        outputs = model(rows.features)
    if rows.task.is_regression:
        return float((outputs[:, 0] - rows.labels).square().mean() / 2)
    one = outputs.shape[1] == 1
    chance = outputs[:, 0].sigmoid() if one else outputs.softmax(1)[:, 1]
    sample = np.ones(len(rows)) if weights is None else weights[rows.labels]
    return float(log_loss(rows.labels, chance, sample_weight=sample) * sample.mean())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_a_removal_keeps_the_loss_that_training_minimised(name: str, method: str) -> None:
    case = CASES[name]
    data = case.data()
    remover = METHODS[method](training=case.training, seed=1, **SETTINGS[method])
    trained = remover.fit(network(case), data, progress=False)
    request = DeletionSet.of([f"s{row}" for row in range(GONE)], data)
    removal = remover.remove(trained, request, progress=False)
    weights = None
    if case.training.class_weights is not None:
        labels = data.train.labels.numpy()
        weights = compute_class_weight("balanced", classes=np.arange(2), y=labels)
    kept = data.train.subset(torch.arange(GONE, N))
    before = weighted_loss(trained.predictor, kept, weights)
    assert removal.criterion_before == pytest.approx(before)
    after = weighted_loss(removal.predictor, kept, weights)
    assert removal.criterion_after == pytest.approx(after)
    if method.startswith("puma"):
        assert abs(removal.criterion_drift) <= remover.budget + 1e-9  # type: ignore[attr-defined]
        assert removal.criterion_drift != 0
    # It has learnt: far below the loss of a constant.
    constant = 0.5 * data.train.labels.var() if case.task == "regression" else np.log(2)
    assert before < 0.8 * constant


@pytest.mark.parametrize("name", CASES)
def test_retraining_weighs_the_classes_of_the_rows_that_stay(name: str) -> None:
    case = CASES[name]
    data = case.data()
    remover = Retrain(training=case.training, seed=1)
    trained = remover.fit(network(case), data, progress=False)
    removal = remover.remove(
        trained, DeletionSet.of([f"s{row}" for row in range(GONE)], data), progress=False
    )
    kept = data.train.subset(torch.arange(GONE, N))
    settings = case.training
    if settings.class_weights is not None:
        weights = compute_class_weight("balanced", classes=np.arange(2), y=kept.labels.numpy())
        named = dict(zip(("no", "yes"), weights.tolist(), strict=True))
        settings = settings.model_copy(update={"class_weights": named})
    expected = network(case)
    train(expected, kept, settings, seed=1, progress=False)
    for first, second in zip(removal.predictor.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(first, second)


def test_class_weights_change_the_way_of_a_removal() -> None:
    """The same model and request: PUMA's direction is that of the weighted loss."""
    case = CASES["binary"]
    data = case.data()
    request = DeletionSet.of([f"s{row}" for row in range(GONE)], data)
    trained = Retrain(training=FAST).fit(network(case), data, progress=False)
    moves = []
    for weights in (None, "balanced", {"no": 1.0, "yes": 1.0}):
        training = FAST.model_copy(update={"class_weights": weights})
        removal = PUMA(training=training, reference_models=0).remove(
            trained, request, progress=False
        )
        moves.append(nn.utils.parameters_to_vector(removal.predictor.parameters()))
    assert not torch.allclose(moves[0], moves[1])
    torch.testing.assert_close(moves[0], moves[2])


def test_the_step_to_target_errors_equals_the_dense_computation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a linear regression, whose loss is a quadratic form."""
    data = CASES["regression"].data()
    train_rows, rows = data.train, torch.arange(GONE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    targets = 5 * torch.randn(GONE, generator=generator, dtype=torch.float64)
    targets[0] = 60.0  # further than REACH
    monkeypatch.setattr(target_margin_step, "target_margins", lambda *_, **__: targets)
    removal = PUMA(
        reference_models=1,
        reweighting="never",
        damping=DAMPING,
        budget=1e6,
        steps=1,
        tolerance=1e-12,
    ).remove(
        Trained(copy.deepcopy(model), data, model),
        DeletionSet.of([f"s{row}" for row in range(GONE)], data),
        progress=False,
    )
    kept = train_rows.features[GONE:]
    hessian = kept.T @ kept / len(kept) + DAMPING * torch.eye(3, dtype=torch.float64)
    jacobian, start = 10 * train_rows.features[rows], model.weight.detach()[0]

    def distance(vector: Tensor) -> Tensor:
        return targets - 10 * (train_rows.features[rows] @ vector - train_rows.labels[rows])

    missing = distance(start).clamp(-REACH, REACH)
    assert (missing != distance(start)).any()
    joint = hessian + PULL / GONE * jacobian.T @ jacobian
    way = torch.linalg.solve(joint, PULL / GONE * jacobian.T @ missing)
    share = min(SHARES, key=lambda part: float(distance(start + part * way).abs().mean()))
    found = next(removal.predictor.parameters()).detach()[0]
    torch.testing.assert_close(found, start + share * way, rtol=1e-6, atol=1e-8)


def test_ensembles_of_one_output() -> None:
    data = CASES["binary"].data()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        members = [nn.Linear(3, 1, dtype=torch.float64) for _ in range(3)]
    outputs = torch.stack([each(data.test.features) for each in members])
    mean = Ensemble(members, task="regression").eval()(data.test.features)
    torch.testing.assert_close(mean, outputs.mean(0))
    logit = Ensemble(members, task="binary").eval()(data.test.features)
    torch.testing.assert_close(logit.sigmoid(), outputs.sigmoid().mean(0))
    votes = (outputs > 0).double().sum(0)
    majority = Ensemble(members, vote="majority", task="binary").eval()(data.test.features)
    torch.testing.assert_close(majority.sigmoid(), (votes + 0.5) / 4)
    silent = Ensemble(members, task="regression").eval()
    silent.voting[0] = False
    torch.testing.assert_close(silent(data.test.features), outputs[1:].mean(0))
    with pytest.raises(ModelError, match="a majority needs classes, and these members are of a"):
        Ensemble(members, vote="majority", task="regression")
