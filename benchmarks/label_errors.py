"""Finding flipped labels: every ranker on the same models, seed by seed."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.removals import Row, check, load
from puma.data import Dataset
from puma.errors import PumaError, SettingsError
from puma.label_errors import (
    NTK,
    GShapley,
    Loss,
    NotSettledWarning,
    Psi,
    Ranker,
    Representer,
    SelfInfluence,
    WeakSignalWarning,
    flip_labels,
    found_at,
    found_curve,
)
from puma.metrics import auc
from puma.models import build_model, predictions
from puma.models.parallel import run_all
from puma.models.training import train
from puma.settings import Settings, TrainingSettings

RANKED_DATASETS = (
    "two_moons",
    "radial",
    "rectangular",
    "spiral",
    "german_credit",
    "breast_cancer",
)
FLIPPED = 0.1  # of the training labels, as in the paper
INSPECTED = 0.1  # of the training rows, for the column found_at_10pct
REGULARISED = 0.01  # weight decay of the second model: without any, unregularised_loss is J itself
GRID = np.round(np.linspace(0, 1, 51), 2)
# training's batches and G-Shapley's orders are permutations of the same rows by the same
# generator: with their seed the flipped rows would be the first that these learn from.
FLIP_SEED = 1_000_000
LABEL_ERROR_COLUMNS = (
    "dataset",
    "method",
    "criterion",
    "seed",
    "found_at_10pct",
    "auc",
    "seconds",
    "weight_decay",
    "warned",
    "seconds_checked",
    "permutations",
    "train_rows",
    "flipped_rows",
    "test_accuracy",
    "note",
)
CURVE_COLUMNS = (
    "dataset",
    "method",
    "criterion",
    "share_inspected",
    "share_found_mean",
    "share_found_std",
    "weight_decay",
    "seeds",
)
CURVE = "curve"  # of a row, before the two tables part


@dataclass(frozen=True)
class CountedShapley(GShapley):
    """G-Shapley that tells how many permutations it made before it settled."""

    made: list[int] = field(default_factory=list, compare=False)

    def credits(self, model: nn.Module, dataset: Dataset, starts: Tensor, orders: Tensor) -> Tensor:
        self.made.append(len(orders))
        return super().credits(model, dataset, starts, orders)


def rankers(weight_decay: float, *, permutations: int, tolerance: float, seed: int) -> list[Ranker]:
    """What is compared on a model that was trained with ``weight_decay``, in the table's order."""
    return [
        Loss(),
        *(
            Psi(criterion, weight_decay=weight_decay)
            for criterion in ("training_loss", "validation_loss", "soft_ece")
        ),
        SelfInfluence(),
        NTK(),
        Representer(),
        CountedShapley(permutations=permutations, tolerance=tolerance, seed=1000 * seed),
    ]


def regularised_rankers() -> list[Ranker]:
    """What is compared on the model with weight decay REGULARISED: the loss is the yardstick."""
    return [Loss(), Psi("unregularised_loss", weight_decay=REGULARISED)]


def run_label_errors(
    datasets: Sequence[str] = RANKED_DATASETS,
    *,
    settings: Settings,
    seeds: int = 5,
    permutations: int = 200,
    tolerance: float = 0.25,
    jobs: int = 1,
    progress: bool = True,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(one ranking a row: :data:`LABEL_ERROR_COLUMNS`, its curves: :data:`CURVE_COLUMNS`).

    A tenth of the training labels is flipped (the paper's Corrupted Sample Discovery), the model
    of ``settings`` trained on them, and every training row ranked. ``dataset.test`` keeps its
    labels and is the validation set of the rankers that want one. A seed (0, 1, …) decides the
    split, the flips, the weights, the batches and G-Shapley's orders.

    found_at_10pct: share of the flipped rows among the tenth that is most suspect; a random order
    has 0.1, the best 1. auc: chance that a flipped row is more suspect than another. seconds: of
    the ranking without its check for noise; seconds_checked: with it. A first call of its kind
    is slower than a later one: compare runtimes by :func:`benchmarks.run_runtime`.
    warned: the ranking said that it may be noise, or has not settled. criterion: blank for what
    has none. weight_decay: what the model was trained with; ``unregularised_loss`` has a model of
    its own, and so has the loss beside it. permutations: made by G-Shapley, ``permutations`` at
    most, fewer where the values' standard error came below ``tolerance`` of their spread.

    A ranking that failed has its row: the error in ``note``, numbers blank; it is in no curve.
    The curves are means over seeds on the grid 0, 0.02, …, 1; std with n − 1, blank for one seed.

    Raises SettingsError for an unknown dataset, no dataset, fewer than one seed or job, or
    settings that G-Shapley refuses.
    """
    names = check(datasets, seeds, jobs)
    rankers(0.0, permutations=permutations, tolerance=tolerance, seed=0)  # refuses before it starts
    tasks = [
        (name, seed, settings, permutations, tolerance)
        for name, seed in product(names, range(seeds))
    ]
    rows: list[Row] = []
    with tqdm(total=len(tasks), desc="label errors", unit="dataset", disable=not progress) as bar:
        for _, found in run_all(_rows_of, tasks, jobs=jobs):
            rows += found
            bar.update()
    # Stable: a seed's rows come in the order of the rankers.
    places = {key: place for place, key in enumerate(dict.fromkeys(map(_kind, rows)))}
    rows.sort(key=lambda row: (names.index(row["dataset"]), places[_kind(row)], row["seed"]))
    return pd.DataFrame(rows, columns=list(LABEL_ERROR_COLUMNS)), _curves(rows)


def _kind(row: Row) -> tuple[str, str, float]:
    return row["method"], row["criterion"], row["weight_decay"]


def _rows_of(
    name: str, seed: int, settings: Settings, permutations: int, tolerance: float
) -> list[Row]:
    dataset, flipped = flipped_dataset(load(name, settings.model_copy(update={"seed": seed})), seed)
    plain = settings.training
    compared = [
        (
            plain,
            rankers(plain.weight_decay, permutations=permutations, tolerance=tolerance, seed=seed),
        ),
        (plain.model_copy(update={"weight_decay": REGULARISED}), regularised_rankers()),
    ]
    rows = []
    for training, chosen in compared:
        model = fitted(dataset, settings, training, seed)
        shared = {
            "dataset": name,
            "seed": seed,
            "weight_decay": training.weight_decay,
            "train_rows": len(dataset.train),
            "flipped_rows": int(flipped.sum()),
            "test_accuracy": predictions.accuracy(model, dataset.test),
        }
        for ranker in chosen:
            rows.append({**shared, **ranked(ranker, model, dataset, flipped)})
    return rows


def flipped_dataset(dataset: Dataset, seed: int) -> tuple[Dataset, Tensor]:
    """(the dataset with a tenth of its training labels flipped, (n,) mask of these rows)."""
    wrong, flipped = flip_labels(
        dataset.train, FLIPPED, n_classes=len(dataset.classes), seed=FLIP_SEED + seed
    )
    return Dataset(dataset.name, wrong, dataset.test, dataset.classes), flipped


def fitted(
    dataset: Dataset, settings: Settings, training: TrainingSettings, seed: int
) -> nn.Module:
    """The model of ``settings`` trained on ``dataset.train``."""
    model = build_model(settings.model, dataset, seed=seed)
    train(model, dataset.train, training, seed=seed, progress=False)
    return model


def ranked(ranker: Ranker, model: nn.Module, dataset: Dataset, flipped: Tensor) -> Row:
    """The columns of one ranking: what it found, how long it took, what it warned of."""
    row: Row = {
        "method": ranker.name,
        "criterion": getattr(ranker, "criterion", ""),
        "note": "",
        **dict.fromkeys(("found_at_10pct", "auc", "seconds", "seconds_checked"), math.nan),
        "permutations": math.nan,
    }
    try:
        scores, seconds, warned = _timed(ranker, model, dataset)
        row["seconds"], row["warned"] = seconds, warned
        if isinstance(ranker, Psi | NTK):
            row["seconds_checked"] = seconds
            _, row["seconds"], _ = _timed(replace(ranker, check=False), model, dataset)
        if isinstance(ranker, CountedShapley):
            row["permutations"] = sum(ranker.made)
        row["found_at_10pct"] = found_at(scores, flipped, INSPECTED)
        row["auc"] = auc(scores[flipped], scores[~flipped])
        row[CURVE] = np.interp(GRID, *found_curve(scores, flipped))
    except PumaError as error:
        row["note"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return row


def _timed(ranker: Ranker, model: nn.Module, dataset: Dataset) -> tuple[Tensor, float, bool]:
    """(scores, seconds, whether it warned that they may be noise); other warnings are passed on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # PyTorch's own, of what its forward-mode derivatives import.
        warnings.filterwarnings("ignore", ".*torch.jit.script", FutureWarning)
        start = time.perf_counter()
        scores = ranker.suspicion(model, dataset)
        seconds = time.perf_counter() - start
    warned = False
    for warning in caught:
        if issubclass(warning.category, (WeakSignalWarning, NotSettledWarning)):
            warned = True
        else:
            warnings.warn(warning.message, stacklevel=2)
    return scores, seconds, warned


def _curves(rows: Sequence[Row]) -> pd.DataFrame:
    groups: dict[Any, list[np.ndarray]] = {}
    for row in rows:
        if CURVE in row:
            groups.setdefault((row["dataset"], *_kind(row)), []).append(row[CURVE])
    lines = []
    for (dataset, method, criterion, weight_decay), curves in groups.items():
        stacked = np.stack(curves)
        means = stacked.mean(0)
        many = len(curves) > 1
        spreads = stacked.std(0, ddof=1) if many else np.full(len(GRID), math.nan)
        for share, mean, spread in zip(GRID, means, spreads, strict=True):
            lines.append(
                (
                    dataset,
                    method,
                    criterion,
                    share,
                    round(mean, 5),
                    round(spread, 5),
                    weight_decay,
                    len(curves),
                )
            )
    return pd.DataFrame(lines, columns=list(CURVE_COLUMNS))


def known(datasets: Sequence[str]) -> list[str]:
    """``datasets``, each once. Raises SettingsError for one not in RANKED_DATASETS."""
    names = list(dict.fromkeys(datasets))
    unknown = sorted(set(names) - set(RANKED_DATASETS))
    if unknown or not names:
        raise SettingsError(
            f"unknown datasets {unknown}; name at least one of {', '.join(sorted(RANKED_DATASETS))}"
        )
    return names
