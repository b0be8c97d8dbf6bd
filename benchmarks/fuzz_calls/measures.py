"""Calls that measure: areas, rates, calibration errors and temperatures."""

from __future__ import annotations

import math
from typing import Any

import torch

from benchmarks.fuzz_calls.calls import Calls
from puma.audit import roc, tpr_at_fpr
from puma.audit.metrics import auc_interval
from puma.calibration import fit_temperature, hard_ece, reliability
from puma.metrics import auc


def add_measures(calls: Calls) -> None:
    calls.good("auc", lambda: auc([1, 2], [0, 1]), 0.875)
    bad: tuple[Any, ...] = ([], [[1.0]], [math.nan], [math.inf], 3.0)
    calls.bad_each("auc(positives", bad, lambda value: auc(value, [1.0]))
    calls.bad_each("auc(negatives", bad, lambda value: auc([1.0], value))
    calls.bad_each("roc(positives", bad, lambda value: roc(value, [1.0]))
    calls.bad_each("tpr_at_fpr(positives", bad, lambda value: tpr_at_fpr(value, [1.0], 0.1))
    calls.bad_each("auc_interval(positives", bad, lambda value: auc_interval(value, [1.0, 2.0]))
    probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
    truth = torch.tensor([0, 1, 0])
    calls.good("hard_ece", lambda: hard_ece(probabilities, truth) > 0, True)
    wrong = (
        *(probabilities.numpy(), probabilities[:2], probabilities[:, 0], probabilities * 2),
        *(probabilities - 1, probabilities * math.nan, probabilities[:0], probabilities.long()),
    )
    calls.bad_each("hard_ece(probabilities", wrong, lambda value: hard_ece(value, truth))
    bad_labels = (
        truth.numpy(),
        truth[:2],
        truth.float(),
        truth + 1,
        truth - 1,
        truth[:, None],
    )
    calls.bad_each("hard_ece(labels", bad_labels, lambda value: hard_ece(probabilities, value))
    calls.bad_each(
        "reliability(bins", (0, -1), lambda value: reliability(probabilities, truth, bins=value)
    )
    logits = probabilities.log()
    calls.bad_each(
        "fit_temperature(logits",
        (
            logits.numpy(),
            logits[:2],
            logits[:, 0],
            logits * math.nan,
            logits[:0],
            logits.long(),
        ),
        lambda value: fit_temperature(value, truth),
    )
    calls.bad_each(
        "fit_temperature(labels", bad_labels, lambda value: fit_temperature(logits, value)
    )
