"""The audit of one version, by attacks, retrained models and accuracies."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from puma.audit.attacks import OF_CLASSES, loss_attack, two_model_attack
from puma.audit.evidence import Evidence
from puma.audit.metrics import auc_interval, rate, tpr_at_fpr, worst
from puma.audit.plot_data import PlotData, plot_data_of
from puma.audit.predictions import Array, Predictions, scores_of
from puma.audit.retraining import (
    gap_to_retraining,
    prediction_band,
    relative_confidence,
    remaining_influence,
)
from puma.audit.verdict import Utility, Verdict, judge
from puma.data.base import Dataset
from puma.errors import AuditError
from puma.html_table import html_table, in_words, short_number
from puma.metrics import auc
from puma.models.tasks import hits, likelihood_of
from puma.models.tasks.gaussian import MARGIN_UNIT
from puma.references import Population
from puma.requests.deletion_set import DeletionSet
from puma.settings import AuditSettings, EvidenceSource

# What a notebook shows of a report; the others are in its ``metrics``.
SHOWN = {
    "accuracy_change": "change of the test accuracy",
    "retrained_accuracy": "test accuracy of retrained models",
    "r2_change": "change of R²",
    "retrained_r2": "R² of retrained models",
    "attack_rate": "removed rows taken for members",
    "attack_rate_unseen": "unseen rows taken for members",
    "attack_auc": "attack by the loss: AUC",
    "attack_auc_retrained": "the same on retrained models",
    "remaining_influence": "remaining influence (0: as retrained, 1: never removed)",
    "gap_to_retrain": "distance from retrained models",
    "gap_to_retrain_expected": "their distance from each other",
}
LEVELS = {"10pct": 0.1, "1pct": 0.01, "0_1pct": 0.001}  # of false positives
Numbers = dict[str, float]


@dataclass(frozen=True, eq=False)
class AuditReport:
    """The result of an audit.

    Attributes:
        verdict: The conclusion.
        metrics: Finite numbers by name; docs/evidence.md explains each.
        unresolved: The metrics that the data cannot resolve, and why.
        evidence: What the retrained models were: see :class:`Evidence`.
        plot_data: What the plots show.
    """

    verdict: Verdict
    metrics: Numbers
    unresolved: dict[str, str]
    evidence: EvidenceSource
    plot_data: PlotData = field(repr=False)

    def _repr_html_(self) -> str:
        lines = [
            (title, short_number(self.metrics[name]))
            for name, title in SHOWN.items()
            if name in self.metrics
        ]
        more = [("numbers that the data cannot resolve", len(self.unresolved))]
        title = f"{in_words(self.verdict.name)}: {self.verdict.reason}"
        return html_table(title, [*lines, *more])


def audit_removal(
    predictions: Predictions,
    dataset: Dataset,
    deletion_set: DeletionSet,
    evidence: Evidence,
    settings: AuditSettings,
) -> AuditReport:
    """Audit a version by its and its parent's predictions for all rows of ``dataset``.

    There are three groups: the training rows of the deletion set ("removed"), the other training
    rows ("retained"), and the test rows of other people ("unseen").

    Args:
        predictions: Of the training rows and then the test rows; see :func:`predict`.
        dataset: The data that the version's original was trained on.
        deletion_set: The request.
        evidence: Of this dataset, original and request.
        settings: The limits of the verdict.

    Raises:
        AuditError: A group is empty, the predictions are of other rows, or the evidence is of
            another request.
    """
    rows = groups_of(dataset, deletion_set)
    _check(predictions, rows, evidence)
    if not torch.equal(predictions.labels, torch.cat([dataset.train.labels, dataset.test.labels])):
        raise AuditError(
            "the labels are not those of this dataset's training and test rows in order; make the "
            "predictions with puma.audit.predict(model, dataset.train, dataset.test)"
        )
    groups = {name: predictions.at(chosen) for name, chosen in rows.items()}
    before = {name: group.of_parent() for name, group in groups.items()}
    metrics, unresolved = _attack_numbers(groups, rows, evidence, settings.confidence)
    metrics |= _by_class(groups, unresolved)
    metrics |= _group_numbers(groups, unresolved)
    metrics |= _exposure(groups, before, evidence)

    verdict, compared = judge_rows(
        predictions, rows["removed"], evidence.with_rows, evidence.without_rows, settings
    )
    metrics |= compared
    plot_data = plot_data_of(groups, before, rows, evidence)
    numbers = dict(sorted(metrics.items()))
    return AuditReport(verdict, numbers, unresolved, evidence.source, plot_data)


def judge_rows(
    predictions: Predictions,
    rows: NDArray[np.int64],
    trained: Population,
    retrained: Population,
    settings: AuditSettings,
) -> tuple[Verdict, Numbers]:
    """Compare the predictions for some removed rows with those of models with and without them.

    Args:
        predictions: Of the training rows and then the test rows.
        rows: Ascending places of training rows that the retrained models are without: all of
            them, or those of one request of several.
        trained: Models of everybody.
        retrained: Models without these rows, and maybe without more.
        settings: The limits of the verdict.
    """
    audited = predictions.at(rows).margins
    with_rows, without_rows = trained.margins[:, rows], retrained.margins[:, rows]
    level = settings.confidence
    task = predictions.task
    sure = partial(scores_of, task=task)
    influence = remaining_influence(audited, with_rows, without_rows, confidence=level)
    confidence = relative_confidence(sure(audited), sure(without_rows), confidence=level)
    gap = gap_to_retraining(audited, without_rows, confidence=level, scores=sure)
    n_train = int(trained.member[0].sum())
    kept = _r2 if task.is_regression else _accuracies
    utilities, lost = kept(predictions, n_train, retrained, settings)
    headline = likelihood_of(task).metrics[0]
    verdict = judge(influence, confidence, gap, utilities, lost, len(rows), settings)
    return verdict, {
        "audit_passed": float(verdict.passed),
        "remaining_influence": influence.value,
        "remaining_influence_low": influence.value - influence.chance,
        "remaining_influence_high": influence.value + influence.chance,
        "influence_told_apart": float(influence.distinguishable),
        "surer_than_retrained": confidence.value,
        "surer_than_retrained_low": max(0.0, confidence.value - confidence.chance),
        "surer_than_retrained_high": min(1.0, confidence.value + confidence.chance),
        "gap_to_retrain": gap.mean,
        "gap_to_retrain_expected": gap.expected,
        "gap_to_retrain_ratio": gap.ratio,
        "gap_to_retrain_worst": gap.worst,
        f"{headline}_change": utilities[0].audited - utilities[0].parent,
        f"retrained_{headline}": utilities[0].retrained,
        f"retrained_{headline}_low": utilities[0].retrained - utilities[0].chance,
        f"retrained_{headline}_high": utilities[0].retrained + utilities[0].chance,
        **{each.name.replace(" ", "_"): each.audited for each in utilities[1:]},
    }


def groups_of(dataset: Dataset, deletion_set: DeletionSet) -> dict[str, NDArray[np.int64]]:
    """Ascending places of each group's rows, counted over training rows, then test rows."""
    trained = np.arange(len(dataset.train))
    tested = np.arange(len(dataset.test))
    removed = deletion_set.rows.numpy()
    return {
        "removed": removed,
        "unseen": len(trained) + np.setdiff1d(tested, deletion_set.test_rows.numpy()),
        "retained": np.setdiff1d(trained, removed),
    }


def _check(
    predictions: Predictions, rows: dict[str, NDArray[np.int64]], evidence: Evidence
) -> None:
    empty = [name for name, chosen in rows.items() if len(chosen) == 0]
    if empty:
        raise AuditError(
            f"the {' and '.join(empty)} group holds 0 rows; an audit compares removed, unseen "
            "and retained rows and needs all three"
        )
    sizes = {
        "predictions": len(predictions),
        "LiRA's shadows": evidence.lira.shadows.margins.shape[1],
        "models with the rows": evidence.with_rows.margins.shape[1],
        "models without them": evidence.without_rows.margins.shape[1],
    }
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise AuditError(
            f"the numbers of rows differ: {listed}; run `dvc repro` to train the audit's models on "
            "this dataset"
        )
    member = evidence.without_rows.member
    if not evidence.with_rows.member[:, rows["removed"]].all() or not (
        member[:, rows["retained"]].all()
        and not member[:, rows["removed"]].any()
        and not member[:, rows["unseen"]].any()
    ):
        raise AuditError(
            "the retrained models of this audit are of another deletion request; run `dvc repro` "
            "to train those of this one"
        )


def _attack_numbers(
    groups: dict[str, Predictions],
    rows: dict[str, NDArray[np.int64]],
    evidence: Evidence,
    confidence: float,
) -> tuple[Numbers, dict[str, str]]:
    """The attacks on the removed rows against the unseen ones."""
    removed, unseen = groups["removed"], groups["unseen"]
    scores = {name: (run(removed), run(unseen)) for name, run in evidence.attacks.items()}
    found: Numbers = {
        "attack_quality": evidence.shadow.quality,
        "attack_rate": rate(scores["shadow"][0]),
        "attack_rate_unseen": rate(scores["shadow"][1]),
    }
    unresolved = {
        f"attack_auc_{name}": "the predictions of a regression are no probabilities of classes"
        for name in OF_CLASSES
        if name not in scores
    }
    for name, pair in scores.items():
        # The loss attack is the plain `attack_auc`.
        key = "attack_auc" if name == "loss" else f"attack_auc_{name}"
        interval = auc_interval(*pair, confidence=confidence)
        found[key] = interval.value
        if name in ("loss", "lira"):
            found |= {f"{key}_low": interval.low, f"{key}_high": interval.high}
    for label, level in LEVELS.items():
        resolved = tpr_at_fpr(*scores["lira"], level)
        key = f"attack_tpr_at_{label}_fpr"
        if resolved.value is None:
            unresolved[key] = resolved.reason
        else:
            found[key] = resolved.value
    retrained = scores_of(evidence.without_rows.margins, removed.task)
    before = [group.of_parent().scores for group in (removed, unseen)]
    found |= {
        # The order of the scores is the order of minus the losses.
        **_auc_of_retrained(
            retrained[:, rows["removed"]], retrained[:, rows["unseen"]], confidence
        ),
        "attack_auc_two_models_retrained": float(
            np.mean(
                _aucs(
                    before[0] - retrained[:, rows["removed"]],
                    before[1] - retrained[:, rows["unseen"]],
                )
            )
        ),
        "attack_auc_two_models_vs_retained": auc(
            scores["two_models"][0], two_model_attack(groups["retained"])
        ),
    }
    return found, unresolved


def _aucs(members: Array, nonmembers: Array) -> list[float]:
    return [auc(*pair) for pair in zip(members, nonmembers, strict=True)]


def _auc_of_retrained(members: Array, nonmembers: Array, confidence: float) -> Numbers:
    """The mean of the retrained models, and where one more of them would lie."""
    found = _aucs(members, nonmembers)
    mean, chance = float(np.mean(found)), prediction_band(found, confidence)
    return {
        "attack_auc_retrained": mean,
        "attack_auc_retrained_low": max(0.0, mean - chance),
        "attack_auc_retrained_high": min(1.0, mean + chance),
    }


def _by_class(groups: dict[str, Predictions], unresolved: dict[str, str]) -> Numbers:
    """The loss attack within each class; a class without a row on one side is unresolved."""
    removed, unseen = groups["removed"], groups["unseen"]
    found: Numbers = {}
    if removed.task.is_regression:
        return found
    for label in range(removed.after.shape[1]):
        pair = [group.at(torch.nonzero(group.labels == label)[:, 0]) for group in (removed, unseen)]
        key = f"attack_auc_class_{label}"
        if all(len(part) for part in pair):
            found[key] = auc(*map(loss_attack, pair))
        else:
            sizes = " and ".join(str(len(part)) for part in pair)
            unresolved[key] = f"class {label} has {sizes} removed and unseen rows"
    return found


def _group_numbers(groups: dict[str, Predictions], unresolved: dict[str, str]) -> Numbers:
    found: Numbers = {}
    for name, group in groups.items():
        found[f"{name}_loss"] = float(group.losses.mean())
        if name == "unseen":
            continue
        likelihood = likelihood_of(group.task)
        measured = likelihood.measured(group.after, group.labels, group.task)
        for metric in likelihood.metrics:
            if metric in measured:
                found[f"{name}_{metric}"] = measured[metric]
            else:
                unresolved[f"{name}_{metric}"] = f"the {name} rows all have the same label"
    return found


def _exposure(
    groups: dict[str, Predictions], before: dict[str, Predictions], evidence: Evidence
) -> Numbers:
    """What the removal did to the people who stay: how well LiRA recognises their rows."""
    attack = evidence.lira.scores
    now = auc(attack(groups["retained"]), attack(groups["unseen"]))
    then = auc(attack(before["retained"]), attack(before["unseen"]))
    rises = -two_model_attack(groups["retained"])
    return {
        "retained_exposure": now,
        "retained_exposure_before": then,
        "retained_exposure_change": now - then,
        "retained_worst_rise": worst(rises),
    }


def _r2(
    predictions: Predictions, n_train: int, retrained: Population, settings: AuditSettings
) -> tuple[tuple[Utility, ...], tuple[int, ...]]:
    """R² of the test rows."""
    labels = predictions.labels[n_train:].double().numpy()
    spread = np.square(labels - labels.mean()).sum()
    if spread == 0:
        raise AuditError(
            f"the {len(labels)} test rows all have the same label, so that R² is not defined; test "
            "on other rows (data.test_fraction)"
        )

    def of(margins: Array) -> Array:
        errors = MARGIN_UNIT * margins[..., n_train:]
        return np.asarray(1 - np.square(errors).sum(-1) / spread)

    others = of(retrained.margins)
    utility = Utility(
        "R²",
        float(of(predictions.margins)),
        float(of(predictions.of_parent().margins)),
        float(others.mean()),
        prediction_band(others, settings.confidence),
    )
    return (utility,), ()


def _accuracies(
    predictions: Predictions, n_train: int, retrained: Population, settings: AuditSettings
) -> tuple[tuple[Utility, ...], tuple[int, ...]]:
    """Plain and balanced test accuracy, and the classes that only this version never predicts."""
    labels = predictions.labels[n_train:]
    parts = [
        hits(logits[n_train:], labels).double()[None]
        for logits in (predictions.after, predictions.before)
    ]
    audited, parent = (_recalls(part, labels) for part in parts)
    others = _recalls(torch.from_numpy(retrained.correct[:, n_train:]).double(), labels)
    weights = torch.bincount(labels).double()
    present = weights > 0
    share = weights[present] / weights.sum()
    utilities = tuple(
        Utility(
            name,
            float(audited @ weight),
            float(parent @ weight),
            float((others @ weight).mean()),
            prediction_band(others @ weight, settings.confidence),
        )
        for name, weight in (
            ("accuracy", share),
            ("balanced accuracy", torch.full_like(share, 1 / len(share))),
        )
    )
    gone = (audited[0] == 0) & (others > 0).all(0)
    return utilities, tuple(torch.nonzero(present)[:, 0][gone].tolist())


def _recalls(hits: Tensor, labels: Tensor) -> Tensor:
    """(models, classes present) share of each class's rows that each model gets right."""
    classes = torch.unique(labels)
    return torch.stack([hits[:, labels == label].mean(1) for label in classes], 1)
