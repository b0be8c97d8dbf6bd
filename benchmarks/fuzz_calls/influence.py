"""Calls of puma.influence: scores, criteria and solvers."""

from __future__ import annotations

import itertools
import math

import torch

from benchmarks.fuzz_calls.bad_models import bad_models
from benchmarks.fuzz_calls.calls import BAD_SEEDS, NOT_POSITIVE, SMALL, Calls
from benchmarks.fuzz_requests import tiny_dataset
from puma.data import Examples
from puma.influence import (
    CURVATURES,
    SOLVERS,
    ConjugateGradients,
    LiSSA,
    MeanLoss,
    SoftECE,
    TrainingObjective,
    Woodbury,
    influence_scores,
)
from puma.models import build_model


def add_influence(calls: Calls) -> None:
    data = tiny_dataset()
    model = build_model(SMALL, data, seed=0)
    count = len(data.train)
    for solver, curvature in itertools.product(("cg", "dense", "woodbury"), CURVATURES):
        calls.good(
            f"influence_scores({solver}, {curvature})",
            lambda s=solver, c=curvature: (
                influence_scores(model, data, solver=s, curvature=c, damping=5.0).shape
            ),
            torch.Size([count]),
        ) if not (solver == "woodbury" and curvature == "hessian") else None
    calls.bad_each(
        "influence_scores(model",
        bad_models(),
        lambda value: influence_scores(value, data),
    )
    double = Examples.of(data.train.features.double(), data.train.labels)
    high = Examples.of(data.train.features, data.train.labels + 5)
    wide = Examples.of(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    empty = data.train.subset(torch.tensor([], dtype=torch.long))
    others = (None, double, high, wide, empty, data.train.features, data.train.features.numpy())
    calls.bad_each("influence_scores(dataset", others, lambda value: influence_scores(model, value))
    for name, values in {
        "damping": (-1.0, math.nan, math.inf, "0.1", None),
        "solver": ("", "magic", 3, SOLVERS["cg"]),
        "curvature": ("", "magic", None, 3),
        "sample": (0, -1, 1.5, "all", math.nan),
        "criterion": (3, "training_loss", data),
    }.items():
        calls.bad_each(
            f"influence_scores({name}",
            values,
            lambda value, name=name: influence_scores(model, data, **{name: value}),
        )
    calls.bad_each(
        "influence_scores(sample=5, seed",
        BAD_SEEDS,
        lambda value: influence_scores(model, data, sample=5, seed=value),
    )
    for kind in (MeanLoss, SoftECE, TrainingObjective):
        calls.bad(f"{kind.__name__}(no examples)", lambda kind=kind: kind(empty))
    calls.bad_each("SoftECE(bins", (0, -1), lambda value: SoftECE(data.train, bins=value))
    calls.bad_each(
        "SoftECE(temperature", NOT_POSITIVE, lambda value: SoftECE(data.train, temperature=value)
    )
    calls.bad_each(
        "TrainingObjective(weight_decay",
        (-1, math.nan, math.inf),
        lambda value: TrainingObjective(data.train, value),
    )
    calls.bad_each(
        "ConjugateGradients(tolerance",
        (*NOT_POSITIVE, 1),
        lambda value: ConjugateGradients(tolerance=value),
    )
    calls.bad_each(
        "ConjugateGradients(max_iterations",
        (0, -1),
        lambda value: ConjugateGradients(max_iterations=value),
    )
    calls.bad_each("Woodbury(rows", (0, -1), lambda value: Woodbury(rows=value))
    for name, values in {"scale": NOT_POSITIVE, "steps": (0, -1), "tolerance": (0, 1)}.items():
        calls.bad_each(f"LiSSA({name}", values, lambda value, name=name: LiSSA(**{name: value}))
