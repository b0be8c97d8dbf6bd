"""Every number of a report, again from raw logits; the verdicts are in test_audit_removal.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, logit, softmax
from scipy.stats import entropy
from sklearn.metrics import balanced_accuracy_score
from torch.nn.functional import one_hot

from puma.audit import AuditReport, Population, audit_removal, judge_rows
from puma.audit.report import SHOWN
from puma.audit.verdict import Verdict
from puma.errors import AuditError
from puma.requests.deletion_set import DeletionSet
from puma.settings import AuditSettings
from tests.audit.conftest import CLASSES, Planted
from tests.audit.oracles import (
    Floats,
    auc_of,
    best_rate,
    delong,
    left_out,
    likelihood_ratios,
    mean_distance,
    mean_wins,
    position,
    reach,
    wilson,
    wins,
    without_one,
)
from tests.test_html_table import cells

SETTINGS = AuditSettings(confidence=0.9)
REMOVED = np.arange(0, 60, 2)
UNSEEN = 160 + np.setdiff1d(np.arange(120), [0, 2, 4])  # without the removed people's test rows
RETAINED = np.setdiff1d(np.arange(160), REMOVED)


def report_of(planted: Planted, after: torch.Tensor) -> AuditReport:
    return audit_removal(
        planted.predictions(after),
        planted.dataset,
        planted.deletion_set,
        planted.evidence,
        SETTINGS,
    )


def classifier_of(planted: Planted, probabilities: Floats, labels: NDArray[np.int64]) -> Floats:
    """The shadow attack's network on softmax and label, layer by layer."""
    hidden = np.hstack([probabilities, np.eye(CLASSES)[labels]])
    states = planted.evidence.shadow.network.state_dict().values()
    weights = [value.double().numpy() for value in states]
    for layer in range(0, len(weights), 2):
        hidden = np.maximum(hidden, 0) if layer else hidden
        hidden = hidden @ weights[layer].T + weights[layer + 1]
    members: Floats = softmax(hidden, 1)[:, 1]
    return members


def expected_of(planted: Planted, version: torch.Tensor) -> dict[str, float]:
    rows, labels = np.arange(280), planted.labels.numpy()
    after, before = version.numpy(), planted.original.numpy()
    shares, shares_before = softmax(after, 1), softmax(before, 1)
    margin, margin_before = (logit(each[rows, labels]) for each in (shares, shares_before))
    loss, hit = -log_softmax(after, 1)[rows, labels], after.argmax(1) == labels
    lira, lira_before = (
        likelihood_ratios(planted.evidence.lira.shadows, each, rows)
        for each in (margin, margin_before)
    )
    scores = {
        "attack_auc": -loss,
        "attack_auc_confidence": shares.max(1),
        "attack_auc_entropy": -entropy(shares, axis=1),
        "attack_auc_two_models": margin_before - margin,
        "attack_auc_shadow": classifier_of(planted, shares, labels),
        "attack_auc_lira": lira,
    }
    found = {name: auc_of(each[REMOVED], each[UNSEEN]) for name, each in scores.items()}
    for name in ("attack_auc", "attack_auc_lira"):
        table = wins(scores[name][REMOVED], scores[name][UNSEEN])
        value = table.mean()
        ends = wilson(value, value * (1 - value) / delong(table), 0.9)
        found[f"{name}_low"], found[f"{name}_high"] = ends
    for label in range(CLASSES):
        pair = [-loss[rows[labels[rows] == label]] for rows in (REMOVED, UNSEEN)]
        found[f"attack_auc_class_{label}"] = auc_of(pair[0], pair[1])

    member = scores["attack_auc_shadow"]
    retrained, trained = planted.evidence.without_rows, planted.evidence.with_rows
    without_rows, with_rows = retrained.margins[:, REMOVED], trained.margins[:, REMOVED]
    low, _ = left_out(with_rows, without_rows)
    influence, chance = (
        position(margin[REMOVED], with_rows, without_rows),
        abs(low.mean()) + reach(low, 0.9),
    )
    among = np.array(
        [mean_wins(r, without_one(without_rows, j)) for j, r in enumerate(without_rows)]
    )
    surer, surer_chance = mean_wins(margin[REMOVED], without_rows), reach(among, 0.9)
    gap = mean_distance(margin[REMOVED], without_rows)
    usual = float(
        np.mean(
            [mean_distance(r, without_one(without_rows, j)) for j, r in enumerate(without_rows)]
        )
    )
    hits = retrained.correct[:, 160:].mean(1)
    areas = np.array([auc_of(line[REMOVED], line[UNSEEN]) for line in retrained.margins])
    found |= {
        "attack_quality": planted.evidence.shadow.quality,
        "attack_rate": (member[REMOVED] > 0.5).mean(),
        "attack_rate_unseen": (member[UNSEEN] > 0.5).mean(),
        "attack_tpr_at_10pct_fpr": best_rate(lira[REMOVED], lira[UNSEEN], 0.1),
        "attack_tpr_at_1pct_fpr": best_rate(lira[REMOVED], lira[UNSEEN], 0.01),
        "attack_auc_retrained": areas.mean(),
        "attack_auc_retrained_low": max(0, areas.mean() - reach(areas, 0.9)),
        "attack_auc_retrained_high": min(1, areas.mean() + reach(areas, 0.9)),
        "attack_auc_two_models_retrained": np.mean(
            [
                auc_of((margin_before - line)[REMOVED], (margin_before - line)[UNSEEN])
                for line in retrained.margins
            ]
        ),
        "attack_auc_two_models_vs_retained": auc_of(
            (margin_before - margin)[REMOVED], (margin_before - margin)[RETAINED]
        ),
        "removed_loss": loss[REMOVED].mean(),
        "unseen_loss": loss[UNSEEN].mean(),
        "retained_loss": loss[RETAINED].mean(),
        "removed_accuracy": hit[REMOVED].mean(),
        "retained_accuracy": hit[RETAINED].mean(),
        "retained_exposure": auc_of(lira[RETAINED], lira[UNSEEN]),
        "retained_exposure_before": auc_of(lira_before[RETAINED], lira_before[UNSEEN]),
        "retained_exposure_change": auc_of(lira[RETAINED], lira[UNSEEN])
        - auc_of(lira_before[RETAINED], lira_before[UNSEEN]),
        "retained_worst_rise": (margin - margin_before)[RETAINED].max(),  # 1 % of 130 rows
        "remaining_influence": influence,
        "remaining_influence_low": influence - chance,
        "remaining_influence_high": influence + chance,
        "influence_told_apart": 1.0,
        "surer_than_retrained": surer,
        "surer_than_retrained_low": max(0, surer - surer_chance),
        "surer_than_retrained_high": min(1, surer + surer_chance),
        "gap_to_retrain": gap,
        "gap_to_retrain_expected": usual,
        "gap_to_retrain_ratio": gap / usual,
        "gap_to_retrain_worst": np.abs(without_rows - margin[REMOVED]).mean(0).max(),
        "balanced_accuracy": balanced_accuracy_score(labels[160:], after[160:].argmax(1)),
        "accuracy_change": hit[160:].mean() - (before[160:].argmax(1) == labels[160:]).mean(),
        "retrained_accuracy": hits.mean(),
        "retrained_accuracy_low": hits.mean() - reach(hits, 0.9),
        "retrained_accuracy_high": hits.mean() + reach(hits, 0.9),
    }
    return found


@pytest.mark.parametrize("version", ["original", "retrained"])
def test_metrics_equal_a_recomputation_from_raw_logits(planted: Planted, version: str) -> None:
    after = planted.original if version == "original" else planted.retrained[0]
    report = report_of(planted, after)
    expected = expected_of(planted, after) | {"audit_passed": float(version == "retrained")}
    assert set(report.metrics) == set(expected)
    # The shadow attack's network is single precision: rounding may swap a few pairs of 30 * 117.
    shadow = expected.pop("attack_auc_shadow")
    assert report.metrics.pop("attack_auc_shadow") == pytest.approx(shadow, abs=3 / (30 * 117))
    # p near 1 costs logit(p) its digits.
    assert report.metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_report_shows_its_verdict_and_the_numbers_behind_it(planted: Planted) -> None:
    report = replace(
        report_of(planted, planted.original), verdict=Verdict("over_forgotten", "past <them> & all")
    )
    html = report._repr_html_()
    assert "over forgotten: past &lt;them&gt; &amp; all" in html
    lines = dict(cells(html))
    assert float(lines["attack by the loss: AUC"]) == pytest.approx(
        report.metrics["attack_auc"], abs=5e-4
    )
    assert lines["numbers that the data cannot resolve"] == str(len(report.unresolved))
    assert len(lines) < 12
    assert {*SHOWN} - {"r2_change", "retrained_r2"} <= {*report.metrics}


def test_some_of_the_removed_rows_are_judged_alone(planted: Planted) -> None:
    rows = REMOVED[:8]
    shares = softmax(planted.original.numpy(), 1)
    margins = logit(shares[np.arange(280), planted.labels.numpy()])[rows]
    pair = planted.evidence.with_rows, planted.evidence.without_rows
    trained, retrained = (population.margins[:, rows] for population in pair)
    verdict, numbers = judge_rows(planted.predictions(planted.original), rows, *pair, SETTINGS)
    assert numbers["remaining_influence"] == pytest.approx(position(margins, trained, retrained))
    assert numbers["surer_than_retrained"] == pytest.approx(mean_wins(margins, retrained))
    assert numbers["gap_to_retrain"] == pytest.approx(mean_distance(margins, retrained))
    assert verdict.name == "forgetting_incomplete"


def test_metrics_are_finite_floats_in_order(planted: Planted) -> None:
    metrics = report_of(planted, planted.retrained[1]).metrics
    assert list(metrics) == sorted(metrics)
    assert {type(value) for value in metrics.values()} == {float}
    assert np.isfinite(list(metrics.values())).all()


def test_what_the_data_cannot_tell_is_named_with_its_reason(planted: Planted) -> None:
    found = report_of(planted, planted.original).unresolved
    assert found == {
        "attack_tpr_at_0_1pct_fpr": "a false-positive rate of 0.1% needs at least 1000 unseen "
        "rows, there are 117"
    }


def test_a_class_without_a_removed_row_has_no_attack_of_its_own(planted: Planted) -> None:
    labels = planted.labels.clone()
    labels[REMOVED] = labels[REMOVED] % (CLASSES - 1)
    predictions = replace(planted.predictions(planted.original), labels=labels)
    train = replace(planted.dataset.train, labels=labels[:160])
    dataset = replace(planted.dataset, train=train)
    report = audit_removal(predictions, dataset, planted.deletion_set, planted.evidence, SETTINGS)
    unseen = int((labels[UNSEEN] == 3).sum())
    assert "attack_auc_class_3" not in report.metrics
    assert report.unresolved["attack_auc_class_3"] == (
        f"class 3 has 0 and {unseen} removed and unseen rows"
    )


def test_repr_holds_no_value_of_a_single_row(planted: Planted) -> None:
    report = report_of(planted, planted.original)
    assert "remaining_influence" in repr(report)
    assert "plot_data" not in repr(report)
    assert "array" not in repr(report)


def test_the_unseen_rows_are_none_of_the_removed_people(planted: Planted) -> None:
    after = planted.original.clone()
    labels = planted.labels
    for row in 160 + np.array([0, 2, 4]):  # theirs; only the accuracies see them
        after[row] = 50 * one_hot((labels[row] + 1) % CLASSES, CLASSES).double()
    changed, before = (
        report_of(planted, after).metrics,
        report_of(planted, planted.original).metrics,
    )
    differ = {name for name in before if changed[name] != pytest.approx(before[name], abs=1e-12)}
    assert differ == {"accuracy_change", "balanced_accuracy"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_logits_are_refused(planted: Planted, value: float) -> None:
    after = planted.original.clone()
    after[7, 1] = value
    with pytest.raises(
        AuditError, match="the audited version predicts NaN or infinity for 1 of 280"
    ):
        report_of(planted, after)


@pytest.mark.parametrize("empty", ["removed", "unseen", "retained"])
def test_an_empty_group_is_refused(planted: Planted, empty: str) -> None:
    data, nobody = planted.dataset, torch.arange(0)
    chosen = {
        "removed": (nobody, nobody),
        "unseen": (planted.deletion_set.rows, torch.arange(120)),
        "retained": (torch.arange(160), nobody),
    }[empty]
    request = DeletionSet(data, ("x",), *chosen)
    with pytest.raises(AuditError, match=f"the {empty} group holds 0 rows; an audit compares"):
        audit_removal(
            planted.predictions(planted.original), data, request, planted.evidence, SETTINGS
        )


@pytest.mark.parametrize("part", ["predictions", "lira", "with_rows", "without_rows"])
def test_predictions_or_evidence_of_another_size_are_refused(planted: Planted, part: str) -> None:
    predictions, evidence = planted.predictions(planted.original), planted.evidence
    if part == "predictions":
        predictions = predictions.at(np.arange(279))
    elif part == "lira":
        cut = shortened(evidence.lira.shadows)
        evidence = replace(evidence, lira=replace(evidence.lira, shadows=cut))
    else:
        evidence = replace(evidence, **{part: shortened(getattr(evidence, part))})
    with pytest.raises(
        AuditError, match=r"the numbers of rows differ: predictions .* run `dvc repro`"
    ):
        audit_removal(predictions, planted.dataset, planted.deletion_set, evidence, SETTINGS)


def shortened(models: Population) -> Population:
    return Population(models.margins[:, :-1], models.correct[:, :-1], models.member[:, :-1])


def test_predictions_in_another_order_are_refused(planted: Planted) -> None:
    predictions = planted.predictions(planted.original)
    turned = predictions.at(np.arange(len(predictions))[::-1].copy())
    with pytest.raises(AuditError, match="not those of this dataset's training and test rows"):
        audit_removal(turned, planted.dataset, planted.deletion_set, planted.evidence, SETTINGS)


@pytest.mark.parametrize(
    "people", [range(1, 61, 2), range(0, 58, 2), range(0, 62, 2)], ids=["other", "fewer", "more"]
)
def test_evidence_of_another_request_is_refused(planted: Planted, people: range) -> None:
    request = DeletionSet.of([f"train{row}" for row in people], planted.dataset)
    with pytest.raises(AuditError, match="are of another deletion request; run `dvc repro`"):
        audit_removal(
            planted.predictions(planted.original),
            planted.dataset,
            request,
            planted.evidence,
            SETTINGS,
        )


@pytest.mark.parametrize("places", [("without_rows", "with_rows"), ("without_rows",) * 2])
def test_groups_of_models_in_each_others_place_are_refused(
    planted: Planted, places: tuple[str, str]
) -> None:
    first, second = (getattr(planted.evidence, place) for place in places)
    swapped = replace(planted.evidence, with_rows=first, without_rows=second)
    with pytest.raises(AuditError, match="are of another deletion request"):
        audit_removal(
            planted.predictions(planted.original),
            planted.dataset,
            planted.deletion_set,
            swapped,
            SETTINGS,
        )
