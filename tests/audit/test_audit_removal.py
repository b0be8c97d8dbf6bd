"""Verdicts on planted versions, and what their plots show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logit, softmax
from torch import Tensor
from torch.nn.functional import one_hot

from puma.audit import AuditReport, Evidence, LiRA, Population, audit_removal
from puma.models.tasks import TASKS
from puma.requests.deletion_set import DeletionSet
from puma.settings import AuditSettings
from tests.audit.conftest import CLASSES, Planted
from tests.audit.oracles import likelihood_ratios

MARGINS = TASKS["classification"].margins

REMOVED = np.arange(0, 60, 2)
UNSEEN = 160 + np.setdiff1d(np.arange(120), [0, 2, 4])
RETAINED = np.setdiff1d(np.arange(160), REMOVED)


def audited(
    planted: Planted, after: Tensor, *, evidence: Evidence | None = None, **settings: float
) -> AuditReport:
    return audit_removal(
        planted.predictions(after),
        planted.dataset,
        planted.deletion_set,
        evidence or planted.evidence,
        AuditSettings(**settings),
    )


def with_label_raised(planted: Planted, logits: Tensor, rows: np.ndarray, by: float) -> Tensor:
    edited = logits.clone()
    edited[rows, planted.labels[rows]] += by
    return edited


def test_a_version_that_removed_nothing_is_found_out(planted: Planted) -> None:
    report = audited(planted, planted.original)
    assert report.verdict.name == "forgetting_incomplete"
    assert report.metrics["audit_passed"] == 0
    assert report.metrics["remaining_influence"] == pytest.approx(1, abs=0.3)
    assert report.metrics["surer_than_retrained"] > 0.75
    assert report.metrics["gap_to_retrain_ratio"] > 1.5


@pytest.mark.parametrize("number", range(3))
def test_a_retrained_version_passes(planted: Planted, number: int) -> None:
    report = audited(planted, planted.retrained[number])
    metrics = report.metrics
    assert report.verdict.passed
    assert metrics["audit_passed"] == metrics["influence_told_apart"] == 1
    assert metrics["remaining_influence_low"] < 0 < metrics["remaining_influence_high"] < 0.5
    assert metrics["surer_than_retrained_low"] < 0.5 < metrics["surer_than_retrained_high"]
    assert metrics["gap_to_retrain_ratio"] == pytest.approx(1, abs=0.4)
    # Removed rows give themselves away beside the parent, as they do of any retrained model.
    beside = metrics["attack_auc_two_models"]
    assert beside > 0.75
    assert beside == pytest.approx(metrics["attack_auc_two_models_retrained"], abs=0.07)


def test_a_version_that_forgot_half_is_in_the_middle(planted: Planted) -> None:
    # Moving the label's logit moves the margin by as much: half the way back to the parent.
    after = planted.retrained[0].clone()
    rows = torch.from_numpy(REMOVED)
    labels = planted.labels[rows]
    there, here = (MARGINS(each[rows], labels) for each in (planted.original, after))
    after[rows, labels] += (there - here) / 2
    ends = [
        audited(planted, version).metrics["remaining_influence"]
        for version in (planted.retrained[0], planted.original)
    ]
    report = audited(planted, after)
    assert report.metrics["remaining_influence"] == pytest.approx(np.mean(ends))
    assert report.verdict.name == "forgetting_incomplete"


@pytest.mark.parametrize("fall", [6.0, 30.0])
def test_rows_that_were_pushed_away_are_over_forgotten(planted: Planted, fall: float) -> None:
    after = with_label_raised(planted, planted.retrained[0], REMOVED, -fall)
    report = audited(planted, after)
    assert report.verdict.name == "over_forgotten"
    assert "loss is too high" in report.verdict.reason
    assert report.metrics["accuracy_change"] == pytest.approx(
        audited(planted, planted.retrained[0]).metrics["accuracy_change"]
    )


def test_rows_pushed_far_in_both_directions_do_not_cancel(planted: Planted) -> None:
    after = with_label_raised(planted, planted.retrained[0], REMOVED[::2], 40)
    after = with_label_raised(planted, after, REMOVED[1::2], -40)
    report = audited(planted, after, max_influence=1e6)
    assert report.metrics["surer_than_retrained"] == pytest.approx(0.5, abs=0.15)
    assert report.verdict.name in ("forgetting_incomplete", "over_forgotten")
    assert "times as far from retrained models'" in report.verdict.reason


def test_a_version_that_always_says_one_class_lost_its_utility(planted: Planted) -> None:
    after = torch.zeros_like(planted.original)
    after[:, 1] = 4
    report = audited(planted, after)
    share = float((planted.labels[160:] == 1).double().mean())
    assert report.verdict.name == "utility_lost"
    assert f"accuracy on the test rows is {share:.3f}" in report.verdict.reason
    assert report.metrics["balanced_accuracy"] == 1 / CLASSES


def test_a_class_that_only_this_version_never_recognises_is_lost_utility(
    planted: Planted,
) -> None:
    after = planted.retrained[0].clone()
    after[160:, 3] = -50
    lenient = {"max_accuracy_loss": 0.9, "max_balanced_accuracy_loss": 0.9}
    report = audited(planted, after, **lenient)
    assert report.verdict.name == "utility_lost"
    assert "no test row of class 3 is recognised" in report.verdict.reason
    models = planted.evidence.without_rows
    correct = models.correct.copy()
    correct[2, 160:] &= planted.labels[160:].numpy() != 3  # nor does one retrained model
    evidence = replace(planted.evidence, without_rows=replace(models, correct=correct))
    assert audited(planted, after, evidence=evidence, **lenient).verdict.passed


def test_the_retrained_models_lower_accuracy_is_no_fault_of_the_version(
    planted: Planted,
) -> None:
    after = planted.retrained[0].clone()
    hit = torch.nonzero(after[160:].argmax(1) == planted.labels[160:])[:20, 0] + 160
    after[hit] = 9 * one_hot((planted.labels[hit] + 1) % CLASSES, CLASSES).double()
    assert audited(planted, after).verdict.name == "utility_lost"
    models = planted.evidence.without_rows
    correct = np.tile((after.argmax(1) == planted.labels).numpy(), (6, 1))
    evidence = replace(planted.evidence, without_rows=replace(models, correct=correct))
    assert audited(planted, after, evidence=evidence).verdict.passed


def test_where_the_rows_left_no_trace_nothing_can_be_concluded(planted: Planted) -> None:
    # Both groups in truth without the rows, so that these have no influence to be found.
    models, names = planted.evidence.without_rows, planted.evidence.with_rows
    random = np.random.default_rng(0)
    noise = [random.normal(0, 2, models.margins.shape) for _ in range(2)]
    level = models.margins.mean(0)
    evidence = replace(
        planted.evidence,
        with_rows=replace(names, margins=level + noise[0]),
        without_rows=replace(models, margins=level + noise[1]),
    )
    after = planted.retrained[0].clone()
    rows = torch.from_numpy(REMOVED)
    wanted = level[REMOVED] + random.normal(0, 2, 30)
    found = MARGINS(after[rows], planted.labels[rows])
    after[rows, planted.labels[rows]] += torch.from_numpy(wanted) - found
    report = audited(planted, after, evidence=evidence)
    assert report.verdict.name == "indistinguishable"
    assert report.metrics["influence_told_apart"] == report.metrics["audit_passed"] == 0
    assert "30 rows cannot be told apart" in report.verdict.reason


def test_plot_data_hold_the_sorted_numbers_of_every_group(planted: Planted) -> None:
    version, rows, labels = planted.retrained[0], np.arange(280), planted.labels.numpy()
    found = audited(planted, version).plot_data
    groups = {"removed": REMOVED, "unseen": UNSEEN, "retained": RETAINED}
    for pictured, logits in (
        (found.losses_before, planted.original),
        (found.losses_after, version),
    ):
        losses = -log_softmax(logits.numpy(), 1)[rows, labels]
        assert set(pictured) == set(groups)
        for name, chosen in groups.items():
            np.testing.assert_allclose(pictured[name], np.sort(losses[chosen]), rtol=1e-9)
    shadows, models = planted.evidence.lira.shadows, planted.evidence.without_rows.margins
    own = [logit(softmax(each.numpy(), 1)[rows, labels]) for each in (planted.original, version)]
    all_scores = [found.scores["before"], found.scores["after"], *found.retrained_scores]
    for scores, values in zip(all_scores, [*own, *models], strict=True):
        assert set(scores) == {"removed", "unseen"}
        for name in scores:
            chosen = groups[name]
            expected = np.sort(likelihood_ratios(shadows, values[chosen], chosen))
            np.testing.assert_allclose(scores[name], expected, rtol=1e-5, atol=1e-5)
    lines = np.column_stack([*own, models.mean(0), *models])[REMOVED]
    expected = np.array(sorted(lines.tolist(), key=lambda line: line[2]))
    np.testing.assert_allclose(found.margins, expected, rtol=1e-5, atol=1e-5)


def test_plot_data_do_not_say_whose_row_a_value_is(planted: Planted) -> None:
    random, order = np.random.default_rng(3), np.arange(280)
    for group in (REMOVED, RETAINED, UNSEEN):
        order[group] = random.permutation(group)
    data = planted.dataset
    moved = replace(
        data,
        train=data.train.subset(torch.from_numpy(order[:160])),
        test=data.test.subset(torch.from_numpy(order[160:] - 160)),
    )
    known = planted.evidence
    evidence = Evidence(
        known.shadow,
        LiRA(in_order(known.lira.shadows, order)),
        in_order(known.with_rows, order),
        in_order(known.without_rows, order),
    )
    predictions = replace(planted.predictions(planted.retrained[0]).at(order), rows=np.arange(280))
    request = DeletionSet.of(planted.deletion_set.subject_ids, moved)
    report = audit_removal(predictions, moved, request, evidence, AuditSettings())
    before = audited(planted, planted.retrained[0])
    assert report.metrics == pytest.approx(before.metrics, abs=1e-9)
    here, there = report.plot_data, before.plot_data
    np.testing.assert_allclose(here.margins, there.margins, atol=1e-12)
    for first, second in (
        (here.losses_before, there.losses_before),
        (here.losses_after, there.losses_after),
        *((here.scores[name], there.scores[name]) for name in ("before", "after")),
        *zip(here.retrained_scores, there.retrained_scores, strict=True),
    ):
        for name in first:
            np.testing.assert_allclose(first[name], second[name], atol=1e-9)
    assert repr(here).startswith("<puma.audit.plot_data.PlotData")  # no values


def in_order(models: Population, order: np.ndarray) -> Population:
    return Population(models.margins[:, order], models.correct[:, order], models.member[:, order])
