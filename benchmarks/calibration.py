"""Repairing calibration: the paper's patch and its rivals, judged by rows that none of them saw."""

from __future__ import annotations

import math
import time
from dataclasses import asdict

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from benchmarks.calibration_models import VARIANTS, Problem, Trained, make
from benchmarks.removals import Row
from puma.calibration import (
    Repair,
    calibrate_directly,
    hard_ece,
    measure,
    patch,
    reliability_of,
    temperature_scaled,
)
from puma.data import Examples
from puma.errors import PumaError, SettingsError
from puma.influence import SoftECE, influence_scores
from puma.label_errors import groups, own_label_confidence
from puma.models import predictions
from puma.models.parallel import run_all
from puma.settings import Settings

REPAIRS = (
    "none",
    "printed_eta",
    "patch_train",
    "patch_held_out",
    "direct_train",
    "direct_held_out",
    "temperature_held_out",
)
ETA = 1e-4  # the largest that the paper advises (Appendix E)
SUSPECTS = 200  # k of Algorithm 2, a quarter of the training rows at most
FLOOR_DRAWS = 20
GROUPS = ("over_confident", "over_uncertain", "other_noise")
MEASURES = ("soft_ece", "hard_ece", "accuracy", "loss")
NUMBERS = tuple(
    f"{split}_{name}_{when}"
    for split in ("test", "train")
    for name in MEASURES
    for when in ("before", "after")
)
CALIBRATION_COLUMNS = (
    "dataset",
    "variant",
    "repair",
    "seed",
    *NUMBERS,
    "dose",
    "seconds",
    "test_hard_ece_floor",
    "predicted_change",
    "measured_change",
    "steps",
    "temperature",
    *GROUPS,
    "train_rows",
    "held_out_rows",
    "test_rows",
    "flipped_rows",
    "note",
)
RELIABILITY_COLUMNS = (
    "dataset",
    "variant",
    "repair",
    "seed",
    "low",
    "high",
    "count",
    "confidence",
    "accuracy",
)


def run_calibration(
    *,
    settings: Settings,
    seeds: int = 5,
    problem: Problem | None = None,
    jobs: int = 1,
    progress: bool = True,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(one repair a row: :data:`CALIBRATION_COLUMNS`, reliability: :data:`RELIABILITY_COLUMNS`).

    A seed (0, 1, …) decides points, splits, flips, weights and batches. Variants of the model:
    "as_trained" by ``settings``; "logits_x3", the same with its last layer times 3, over-confident
    without being wrong; "overfitted", of few rows, six times the epochs and five times the
    learning rate.

    Repairs: "printed_eta" is Appendix E as it stands, a dose of η·n for η = 1e-4 and C on the
    training rows. "patch_…" searches the dose instead. "direct_…" is ``calibrate_directly``.
    "temperature_held_out" is the baseline, two lines of code. "…_train" and "…_held_out" say on
    which rows C is measured. Neither the repairs nor their searches see a test row, and test and
    held-out rows keep their labels.

    dose, steps: 0 where nothing lowered C. predicted_change, measured_change: of C on the rows
    that it was measured on, the former to first order. over_confident, …: how many rows the
    debugging put into each of the paper's groups. test_hard_ece_floor: what the hard error of
    the model before would be, were it perfectly calibrated; finite samples never show 0.
    seconds: of the repair, with the debugging for a patch. A repair that failed has its row: the
    error in ``note``.

    The reliability is on the test rows, of seed 0; bins without rows have blanks.

    Raises SettingsError for fewer than one seed or job, or more flips or few rows than there are.
    """
    if seeds < 1 or jobs < 1:
        raise SettingsError(f"seeds and jobs must be at least 1, got {seeds} and {jobs}")
    problem = problem or Problem()
    fraction = settings.data.test_fraction
    kept = problem.points - math.ceil(fraction * problem.points)
    available = kept - kept // 5
    if max(problem.few, problem.flipped) > available:
        raise SettingsError(
            f"few ({problem.few}) and flipped ({problem.flipped}) must be at most the "
            f"{available} rows for training; raise points"
        )
    tasks = [(seed, settings, problem) for seed in range(seeds)]
    rows: list[Row] = []
    bins: list[Row] = []
    with tqdm(total=len(tasks), desc="calibration", unit="seed", disable=not progress) as bar:
        for _, (found, diagrams) in run_all(_rows_of, tasks, jobs=jobs):
            rows += found
            bins += diagrams
            bar.update()
    rows.sort(
        key=lambda row: (
            VARIANTS.index(row["variant"]),
            REPAIRS.index(row["repair"]),
            row["seed"],
        )
    )
    return (
        pd.DataFrame(rows, columns=list(CALIBRATION_COLUMNS)),
        pd.DataFrame(bins, columns=list(RELIABILITY_COLUMNS)),
    )


def _rows_of(seed: int, settings: Settings, problem: Problem) -> tuple[list[Row], list[Row]]:
    rows: list[Row] = []
    bins: list[Row] = []
    for variant in VARIANTS:
        trained = make(variant, seed, settings, problem)
        for repair in REPAIRS:
            key = {"dataset": trained.dataset.name, "variant": variant, "repair": repair}
            row, model = _measured(repair, trained)
            rows.append({**key, "seed": seed, **row})
            if seed == 0 and model is not None:
                bins += [{**key, "seed": seed, **each} for each in _bins(model, trained)]
    return rows, bins


def _measured(repair: str, trained: Trained) -> tuple[Row, nn.Module | None]:
    """(the columns of one repair, the model after it; None where it failed)."""
    before, model = trained.model, None
    row: Row = {"note": "", **_sizes(trained), **_numbers(before, trained, "before")}
    try:
        start = time.perf_counter()
        model, told = _repair(repair, trained)
        row["seconds"] = time.perf_counter() - start
        row |= {**told, **_numbers(model, trained, "after")}
    except PumaError as error:
        row["note"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return row, model


def _sizes(trained: Trained) -> Row:
    return {
        "train_rows": len(trained.dataset.train),
        "held_out_rows": len(trained.held_out),
        "test_rows": len(trained.dataset.test),
        "flipped_rows": trained.flipped_rows,
        "test_hard_ece_floor": _floor(trained.model, trained.dataset.test),
    }


def _numbers(model: nn.Module, trained: Trained, when: str) -> Row:
    splits = {"test": trained.dataset.test, "train": trained.dataset.train}
    return {
        f"{split}_{name}_{when}": value
        for split, examples in splits.items()
        for name, value in asdict(measure(model, SoftECE(examples))).items()
    }


def _floor(model: nn.Module, examples: Examples) -> float:
    """The mean hard error on labels drawn from the model's own probabilities."""
    probabilities = predictions.logits(model, examples.features).double().softmax(1)
    generator = torch.Generator().manual_seed(0)
    draws = [
        torch.multinomial(probabilities, 1, generator=generator)[:, 0] for _ in range(FLOOR_DRAWS)
    ]
    return float(np.mean([hard_ece(probabilities, labels) for labels in draws]))


def _repair(repair: str, trained: Trained) -> tuple[nn.Module, Row]:
    """(the repaired model, what the repair tells of itself)."""
    model, dataset = trained.model, trained.dataset
    if repair == "none":
        return model, {}
    if repair == "temperature_held_out":
        scaled = temperature_scaled(model, trained.held_out)
        return scaled, {"temperature": float(scaled.temperature)}
    criterion = SoftECE(trained.held_out if repair.endswith("held_out") else dataset.train)
    if repair.startswith("direct"):
        found = calibrate_directly(model, dataset, criterion=criterion)
        return found.model, _told(found)
    parts = groups(
        influence_scores(model, dataset, criterion=criterion),
        own_label_confidence(model, dataset.train),
        min(SUSPECTS, len(dataset.train) // 4),
    )
    eta = ETA if repair == "printed_eta" else None
    found = patch(model, dataset, parts, criterion=criterion, eta=eta)
    sizes = {name: len(getattr(parts, name)) for name in GROUPS}
    return found.model, {**_told(found), **sizes}


def _told(repair: Repair) -> Row:
    return {
        "dose": repair.dose,
        "steps": sum(step.dose > 0 for step in repair.steps),
        "predicted_change": sum(step.predicted for step in repair.steps),
        "measured_change": sum(step.change for step in repair.steps),
    }


def _bins(model: nn.Module, trained: Trained) -> list[Row]:
    found = reliability_of(model, trained.dataset.test)
    return [
        {"low": low, "high": high, "count": int(count), "confidence": confidence, "accuracy": right}
        for low, high, count, confidence, right in zip(
            found.edges[:-1],
            found.edges[1:],
            found.counts,
            found.confidence,
            found.accuracy,
            strict=True,
        )
    ]
