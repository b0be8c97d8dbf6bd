"""Audits of a regression that memorises its rows, and of two classes by one logit."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score, roc_auc_score

from puma.audit import (
    AuditReport,
    Evidence,
    LiRA,
    ShadowAttack,
    audit_removal,
    predict,
    train_shadow_attack,
)
from puma.audit.evidence import (
    predict_without,
    train_pool,
    train_references,
    train_shadows,
)
from puma.data import Dataset, Examples
from puma.data.task import Task
from puma.errors import AuditError
from puma.models import build_model
from puma.references import Pool
from puma.removal import Retrain
from puma.requests.deletion_set import DeletionSet
from puma.settings import (
    AuditSettings,
    ModelSettings,
    PoolSettings,
    Settings,
    ShadowSettings,
    TrainingSettings,
)

N, GONE = 100, 15
SETTINGS = Settings(
    model=ModelSettings(hidden=(32, 16)),
    training=TrainingSettings(epochs=40, learning_rate=0.01),
    shadow=ShadowSettings(models=2, fraction=0.4, epochs=10, attack_hidden=(8,), attack_epochs=5),
    pool=PoolSettings(models=32, everybody=4),
    audit=AuditSettings(models=6, shadow_models=8, jobs=1),
)


def memorised(task: str) -> Dataset:
    """Labels that hang on the features in part: the rest has to be learnt by heart."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2 * N, 6, generator=generator)
    labels = (features[:, 0] + torch.randn(2 * N, generator=generator)) / 2**0.5
    names, kind = (), Task("regression", centre=10.0, scale=4.0)
    if task == "binary":
        labels, names, kind = (labels > 0).long(), ("no", "yes"), Task("binary")  # type: ignore[assignment]
    rows = Examples.of(features, labels, [f"s{row}" for row in range(2 * N)], task=kind)
    return Dataset("toy", rows.subset(torch.arange(N)), rows.subset(torch.arange(N, 2 * N)), names)


class Audited:
    """A dataset, its original, a retrained model, and the evidence by retraining and by a pool."""

    def __init__(self, task: str) -> None:
        self.data = memorised(task)
        self.request = DeletionSet.of([f"s{row}" for row in range(GONE)], self.data)
        remover = Retrain(training=SETTINGS.training)
        model = build_model(SETTINGS.model, self.data, seed=0)
        self.trained = remover.fit(model, self.data, progress=False)
        removal = remover.model_copy(update={"seed": 11}).remove(
            self.trained, self.request, progress=False
        )
        self.retrained = removal.predictor
        self.shadow = train_shadow_attack(
            self.data, SETTINGS.model, SETTINGS.training, SETTINGS.shadow, seed=0, progress=False
        )
        lira = LiRA(train_shadows(self.data, SETTINGS, progress=False))
        pair = train_references(self.data, self.request, "original", SETTINGS, progress=False)
        self.pool = train_pool(self.data, SETTINGS, progress=False)
        without = predict_without(self.pool, self.request, SETTINGS, progress=False)
        self.evidence = {
            "retrain": Evidence(self.shadow, lira, *pair),
            "pool": Evidence(self.shadow, lira, self.pool.everybody, without, "pool"),
        }

    def report(self, model: torch.nn.Module, source: str) -> AuditReport:
        predictions = predict(model, self.data.train, self.data.test, parent=self.trained.predictor)
        evidence = self.evidence[source]
        return audit_removal(predictions, self.data, self.request, evidence, SETTINGS.audit)


@pytest.fixture(scope="module")
def regression() -> Audited:
    return Audited("regression")


@pytest.fixture(scope="module")
def binary() -> Audited:
    return Audited("binary")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "binary"])
@pytest.mark.parametrize("source", ["retrain", "pool"])
def test_retraining_passes_and_an_original_does_not(
    task: str, source: str, request: pytest.FixtureRequest
) -> None:
    audited: Audited = request.getfixturevalue(task)
    original = audited.report(audited.trained.predictor, source)
    assert original.verdict.name == "forgetting_incomplete"
    assert original.metrics["remaining_influence"] > 0.5
    retrained = audited.report(audited.retrained, source)
    assert retrained.verdict.name in ("passed", "indistinguishable")
    assert abs(retrained.metrics["remaining_influence"]) < 0.5
    before, after = (report.metrics["removed_loss"] for report in (original, retrained))
    assert after > 2 * before


@pytest.mark.slow
def test_the_numbers_of_a_regression_are_those_of_scikit_learn(regression: Audited) -> None:
    data = regression.data
    metrics = regression.report(regression.retrained, "retrain").metrics
    unresolved = regression.report(regression.retrained, "retrain").unresolved
    truth = {}
    found = {}
    parts = {
        "removed": data.train.subset(torch.arange(GONE)),
        "retained": data.train.subset(torch.arange(GONE, N)),
        "unseen": data.test,
    }
    parent = {}
    for name, rows in parts.items():
        truth[name] = 10 + 4 * rows.labels.double().numpy()
        with torch.no_grad():
            found[name], parent[name] = (
                10 + 4 * model(rows.features)[:, 0].double().numpy()
                for model in (regression.retrained, regression.trained.predictor)
            )
        loss = np.square(found[name] - truth[name]).mean() / 2 / 16
        assert metrics[f"{name}_loss"] == pytest.approx(loss, rel=1e-5)
    for name in ("removed", "retained"):
        pair = (truth[name], found[name])
        assert metrics[f"{name}_r2"] == pytest.approx(r2_score(*pair), abs=1e-5)
        assert metrics[f"{name}_mae"] == pytest.approx(mean_absolute_error(*pair), rel=1e-5)
    test = [r2_score(truth["unseen"], each["unseen"]) for each in (found, parent)]
    assert metrics["r2_change"] == pytest.approx(test[0] - test[1], abs=1e-5)
    margins = regression.evidence["retrain"].without_rows.margins[:, N:]
    assert margins.shape == (6, N)
    predicted = truth["unseen"] + 0.4 * margins  # tenths of the deviation, which is 4
    expected = np.mean([r2_score(truth["unseen"], each) for each in predicted])
    assert metrics["retrained_r2"] == pytest.approx(expected, abs=1e-5)
    errors = [np.square(found[name] - truth[name]) for name in ("removed", "unseen")]
    members = np.repeat([1, 0], [len(each) for each in errors])
    area = roc_auc_score(members, -np.concatenate(errors))
    # The loss attack is against as many unseen rows as the audit takes.
    assert metrics["attack_auc"] == pytest.approx(area, abs=0.02)
    absent = {"accuracy", "attack_auc_confidence", "attack_auc_entropy", "balanced_accuracy"}
    assert not absent & {*metrics}
    assert {"attack_auc_confidence", "attack_auc_entropy"} <= {*unresolved}
    assert not [name for name in {*metrics, *unresolved} if "class" in name]


@pytest.mark.slow
def test_a_lost_fit_is_lost_utility(regression: Audited) -> None:
    broken = copy.deepcopy(regression.retrained)
    with torch.no_grad():
        list(broken.parameters())[-1].add_(2.0)  # deviations, to every prediction
    report = regression.report(broken, "retrain")
    assert report.verdict.name == "utility_lost"
    assert "R²" in report.verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("features", ["softmax", "softmax_label", "sorted"])
def test_the_attack_on_a_regression_is_stored(regression: Audited, tmp_path, features: str) -> None:
    shadow = SETTINGS.shadow.model_copy(update={"features": features})
    attack = train_shadow_attack(
        regression.data, SETTINGS.model, SETTINGS.training, shadow, seed=0, progress=False
    )
    assert attack.classes == 0
    attack.save(tmp_path / "attack.pt")
    found = predict(regression.trained.predictor, regression.data.train)
    stored = ShadowAttack.load(tmp_path / "attack.pt")
    np.testing.assert_array_equal(stored.scores(found), attack.scores(found))
    with pytest.raises(AuditError, match="predicts 2 classes, the attack was trained for 0"):
        attack.scores(
            predict(
                build_model(SETTINGS.model, memorised("binary"), seed=0), memorised("binary").test
            )
        )


@pytest.mark.slow
def test_the_pool_of_a_regression_is_stored_and_predicts(regression: Audited, tmp_path) -> None:
    regression.pool.save(tmp_path / "pool.npz")
    stored = Pool.load(tmp_path / "pool.npz")
    with_labels = stored.ridge
    assert with_labels is not None
    margins = -10 * regression.data.rows.labels.double().numpy()
    np.testing.assert_allclose(with_labels.labels, -margins, rtol=1e-6)
    predicted, measured = stored.held_out()
    error = np.sqrt(np.mean((predicted - measured) ** 2))
    assert error < 0.6 * np.std(measured)
    assert np.corrcoef(predicted, measured)[0, 1] > 0.8


def test_the_attack_knows_members_and_not_the_weights_of_classes() -> None:
    data, settings = memorised("binary"), SETTINGS.shadow
    attacks = []
    for weights in (None, {"yes": 1.0}, {"yes": 9.0}):
        training = SETTINGS.training.model_copy(update={"class_weights": weights})
        attacks.append(
            train_shadow_attack(data, SETTINGS.model, training, settings, seed=0, progress=False)
        )
    found = predict(build_model(SETTINGS.model, data, seed=0), data.test)
    plain, same, other = (attack.scores(found) for attack in attacks)
    np.testing.assert_allclose(same, plain, rtol=1e-5)
    assert not np.allclose(other, plain)  # the shadows do


def test_balanced_weights_reach_the_models_that_audits_compare_with() -> None:
    data = memorised("binary")
    rare = torch.cat(
        [torch.arange(N)[data.train.labels == 0], torch.arange(N)[data.train.labels == 1][:12]]
    )
    data = Dataset("rare", data.train.subset(rare), data.test, data.classes)
    request = DeletionSet.of([data.train.subject_ids[0]], data)
    shares = {}
    for weights in (None, "balanced"):
        training = SETTINGS.training.model_copy(update={"class_weights": weights, "epochs": 10})
        settings = SETTINGS.model_copy(update={"training": training})
        everybody, without = train_references(data, request, "original", settings, progress=False)
        margins = np.concatenate([everybody.margins, without.margins])[:, len(rare) :]
        yes = data.test.labels.numpy() == 1
        shares[weights] = ((margins > 0) == yes).mean()  # how often the rare class is predicted
    assert shares["balanced"] > shares[None] + 0.1
