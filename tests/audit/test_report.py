from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from puma.audit import AuditReport, ShadowAttack, audit_removal
from puma.data.base import Dataset, Examples
from puma.errors import AuditError
from puma.models import mlp
from tests.audit.conftest import CLASSES

NAMES = {
    "attack_rate",
    "attack_rate_unseen",
    "attack_auc",
    "attack_auc_shadow",
    "attack_quality",
    "removed_loss",
    "unseen_loss",
    "retained_loss",
    "removed_accuracy",
    "retained_accuracy",
}


@dataclass
class Case:
    model: nn.Module
    groups: dict[str, Examples]
    attack: ShadowAttack

    def report(self, **changed: Examples) -> AuditReport:
        return audit_removal(self.model, **{**self.groups, **changed}, attack=self.attack)


@pytest.fixture
def case(memory: Dataset, overfitted: nn.Module, attack: ShadowAttack) -> Case:
    rows = torch.arange(30)
    groups = {
        "removed": memory.train.subset(rows),
        "retained": memory.train.without(rows),
        "unseen": memory.test,
    }
    return Case(overfitted, groups, attack)


def softmax(outputs: np.ndarray) -> np.ndarray:
    powers = np.exp(outputs - outputs.max(1, keepdims=True))
    normalised: np.ndarray = powers / powers.sum(1, keepdims=True)
    return normalised


def test_metrics_equal_a_recomputation_from_raw_logits(case: Case) -> None:
    metrics = case.report().metrics()
    loss, hits, member = {}, {}, {}
    weights = [value.double().numpy() for value in case.attack.network.state_dict().values()]
    for name, examples in case.groups.items():
        with torch.no_grad():
            outputs = case.model(examples.features).double().numpy()
        labels = examples.labels.numpy()
        probabilities = softmax(outputs)
        loss[name] = -np.log(probabilities[np.arange(len(labels)), labels])
        hits[name] = outputs.argmax(1) == labels
        hidden = np.hstack([probabilities, np.eye(CLASSES)[labels]])
        for layer in range(0, len(weights), 2):
            hidden = np.maximum(hidden, 0) if layer else hidden
            hidden = hidden @ weights[layer].T + weights[layer + 1]
        member[name] = softmax(hidden)[:, 1]
    truth = np.repeat([1, 0], [30, 200])
    expected = {
        "attack_rate": (member["removed"] > 0.5).mean(),
        "attack_rate_unseen": (member["unseen"] > 0.5).mean(),
        "attack_auc": roc_auc_score(truth, -np.hstack([loss["removed"], loss["unseen"]])),
        "attack_auc_shadow": roc_auc_score(truth, np.hstack([member["removed"], member["unseen"]])),
        "attack_quality": case.attack.quality,
        "removed_loss": loss["removed"].mean(),
        "unseen_loss": loss["unseen"].mean(),
        "retained_loss": loss["retained"].mean(),
        "removed_accuracy": hits["removed"].mean(),
        "retained_accuracy": hits["retained"].mean(),
    }
    assert set(metrics) == NAMES
    # The model and the attack run in float32. One swapped pair would move an AUC by 1.7e-4.
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert all(type(value) is float for value in metrics.values())


def test_memorised_examples_stand_out(case: Case) -> None:
    report = case.report()
    assert report.attack_auc > 0.9
    assert report.attack_rate > report.attack_rate_unseen + 0.4
    assert report.removed_loss < report.unseen_loss


def test_scores_are_losses_in_an_order_that_names_nobody(case: Case) -> None:
    report = case.report()
    assert {name: len(values) for name, values in report.scores.items()} == {
        "removed": 30,
        "unseen": 200,
        "retained": 170,
    }
    for values in report.scores.values():
        assert (values >= 0).all()
        assert (np.diff(values) >= 0).all()
    assert report.scores["removed"].mean() == pytest.approx(report.removed_loss)
    reversed_rows = case.groups["removed"].subset(torch.arange(29, -1, -1))
    shuffled = case.report(removed=reversed_rows)
    # Not bit-equal: a row's place in its batch may change the last bit of its logits.
    np.testing.assert_allclose(shuffled.scores["removed"], report.scores["removed"], atol=1e-6)


def test_repr_holds_no_value_of_a_single_example(case: Case) -> None:
    report = case.report()
    assert "attack_rate=" in repr(report)
    assert "scores" not in repr(report)
    assert "array" not in repr(report)


@pytest.mark.parametrize("name", ["removed", "unseen", "retained"])
def test_an_empty_group_is_refused(case: Case, name: str) -> None:
    empty = case.groups[name].subset(torch.arange(0))
    with pytest.raises(AuditError, match=f"the {name} group holds 0 examples"):
        case.report(**{name: empty})


def test_a_broken_model_is_refused(case: Case) -> None:
    model = mlp(10, CLASSES)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(AuditError, match="NaN or infinite on the removed and unseen and retained"):
        replace(case, model=model).report()


def test_the_model_is_left_in_its_mode_with_its_weights(case: Case) -> None:
    before = {name: value.clone() for name, value in case.model.state_dict().items()}
    case.model.train()
    try:
        case.report()
        assert all(module.training for module in case.model.modules())
    finally:
        case.model.eval()
    assert all(torch.equal(before[name], value) for name, value in case.model.state_dict().items())
