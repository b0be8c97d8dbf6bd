"""DenseNet on MNIST: target margins and verdicts from a pool, against true retrainings.

    PUMA_DATA_DIR=<folder that holds MNIST/raw> python -m benchmarks mnist-pool

The pool is trained once: 16 models without a quarter of the people each, 4 of everybody, 17 short
trainings; hours on two cores. It is kept in the folder, and so is what each retraining predicts:
an interrupted run goes on where it was. With ``--rows 12000`` it takes a fifth of the time. Run the
requests on an otherwise idle machine, or their seconds mean nothing.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from torch import Tensor

from benchmarks.mnist_removal import ONE_FAST_STEP, RESULTS, TRAINING, cluster_of_fours
from puma.audit import judge_rows, predict, train_pool
from puma.audit.evidence import predict_without, train_without
from puma.data import Dataset, load_dataset
from puma.models import build_model
from puma.models.predictions import accuracy
from puma.project.files import write_text
from puma.references import Pool
from puma.removal import PUMA, Retrain
from puma.requests.deletion_set import DeletionSet
from puma.requests.demonstration import smallest_clusters
from puma.settings import AuditSettings, ModelSettings, PoolSettings, Settings

SETTINGS = Settings(
    datasets=("mnist",),
    model=ModelSettings(name="densenet"),
    training=TRAINING,
    pool=PoolSettings(models=16, everybody=4),
    audit=AuditSettings(models=3),
)
# A step takes seconds: near enough is where they end.
STEPS: dict[str, Any] = ONE_FAST_STEP | {"steps": 3, "reference_models": "pool", "level_aim": 0.5}


def run_pool(
    data: Dataset,
    requests: dict[str, Tensor],
    settings: Settings,
    folder: Path,
    *,
    steps: dict[str, Any],
    progress: bool = True,
) -> pd.DataFrame:
    """One row for each request and each of the versions original, retrain and puma.

    ``verdict`` is by ``settings.audit.models`` true retrainings, ``verdict_pool`` by the pool.

    Args:
        data: The data.
        requests: The (m,) training rows of each by its name.
        settings: Model, training, pool and audit.
        folder: Where the pool and the retrained models' predictions are kept.
        steps: PUMA's settings.
        progress: Whether to show bars.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = folder / "models"
    if not (folder / "pool.npz").exists():
        train_pool(data, settings, progress=progress, resume=models).save(folder / "pool.npz")
    pool = Pool.load(folder / "pool.npz")
    pool.require(data)
    retrain = Retrain(training=settings.training)
    initial = build_model(settings.model, data, seed=settings.seed)
    trained = replace(retrain.fit(initial, data, progress=progress), pool=pool)
    rows = []
    for name, marked in requests.items():
        request = DeletionSet.of(data.train.subject_ids[marked.numpy()].tolist(), data)
        without = train_without(
            data, request, "original", settings, progress=progress, resume=models
        )
        removal = PUMA(training=settings.training, **steps).remove(
            trained, request, progress=progress
        )
        retrained = retrain.remove(trained, request, progress=progress)
        start = time.perf_counter()
        predicted = predict_without(pool, request, settings, progress=progress)
        predicting = time.perf_counter() - start
        versions = {
            "original": (trained.predictor, np.nan, {}),
            "retrain": (retrained.predictor, retrained.seconds, {}),
            "puma": (removal.predictor, removal.seconds, removal.diagnostics),
        }
        for method, (predictor, seconds, diagnostics) in versions.items():
            predictions = predict(predictor, data.train, data.test, parent=trained.predictor)
            places = request.rows.numpy()
            start = time.perf_counter()
            by_pool, _ = judge_rows(predictions, places, pool.everybody, predicted, settings.audit)
            judging = time.perf_counter() - start
            verdict, numbers = judge_rows(
                predictions, places, pool.everybody, without, settings.audit
            )
            rows.append(
                {
                    "request": name,
                    "method": method,
                    "removed_rows": len(request),
                    "verdict": verdict.name,
                    "verdict_pool": by_pool.name,
                    "seconds": seconds,
                    "audit_seconds": predicting + judging,
                    "retrain_seconds": retrained.seconds,
                    "pool_trainings": settings.pool.models + settings.pool.everybody,
                    "accuracy": accuracy(predictor, data.test),
                    "remaining_influence": numbers["remaining_influence"],
                    "gap_to_retrain_ratio": numbers["gap_to_retrain_ratio"],
                    "level_error": diagnostics.get("level_error", np.nan),
                    "level_distance": diagnostics.get("level_distance", np.nan),
                }
            )
    return pd.DataFrame(rows)


def main(
    folder: Annotated[
        Path, typer.Option(help="Where the pool and the retrained models' predictions are kept.")
    ] = Path("artifacts/mnist-pool"),
    rows: Annotated[
        int | None, typer.Option(min=2000, help="So many training rows, drawn; all if absent.")
    ] = None,
) -> None:
    """Remove digits from a DenseNet on MNIST to target margins that a pool predicts."""
    data = load_dataset("mnist")
    if rows is not None:
        drawn = np.random.default_rng(1).permutation(len(data.train))[:rows]
        data = replace(data, train=data.train.subset(torch.from_numpy(np.sort(drawn))))
    people = np.random.default_rng(0).permutation(len(data.train))[:50]
    requests = {
        "cluster_digit_4": cluster_of_fours(data),
        "cluster": smallest_clusters(data),
        "50_people": Tensor(np.sort(people)).long(),
    }
    frame = run_pool(data, requests, SETTINGS, folder, steps=STEPS)
    write_text(RESULTS / "mnist_pool.csv", frame.to_csv(index=False))
    typer.echo(frame.round(4).to_string())
