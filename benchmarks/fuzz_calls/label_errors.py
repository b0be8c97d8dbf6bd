"""Calls of puma.label_errors: rankings and flipped labels."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from benchmarks.fuzz_calls.bad_models import bad_models
from benchmarks.fuzz_calls.calls import NEGATIVE, SMALL, Calls
from benchmarks.fuzz_requests import tiny_dataset
from puma.label_errors import RANKERS, flip_labels, resolve_ranker
from puma.label_errors.suspects import rank
from puma.models import build_model


def _cannot_be_ranked_by(method: str, model: Any) -> bool:
    """A loss needs no weights, and a representer's own need not be trainable."""
    if not isinstance(model, nn.Module):
        return False
    trainable = any(each.requires_grad for each in model.parameters())
    return trainable or method not in ("loss", "representer")


def add_label_errors(calls: Calls) -> None:
    data = tiny_dataset()
    model = build_model(SMALL, data, seed=0)
    for name in sorted(RANKERS):
        if name != "g_shapley":
            calls.bad_each(
                f"rank({name}, model",
                [each for each in bad_models() if _cannot_be_ranked_by(name, each)],
                lambda value, name=name: rank(value, data, method=name, progress=False),
            )
    calls.bad_each("rank(method", ("", "magic"), lambda value: rank(model, data, method=value))
    calls.bad_each(
        "rank(criterion",
        ("", "magic"),
        lambda value: rank(model, data, method="psi", criterion=value),
    )
    calls.bad_each("resolve_ranker(", ("", "magic"), resolve_ranker)
    calls.bad_each(
        "flip_labels(fraction",
        (-1, 1.5, math.nan, math.inf),
        lambda value: flip_labels(data.train, value, n_classes=2, seed=0),
    )
    calls.bad_each(
        "flip_labels(seed",
        NEGATIVE,
        lambda value: flip_labels(data.train, 0.5, n_classes=2, seed=value),
    )
