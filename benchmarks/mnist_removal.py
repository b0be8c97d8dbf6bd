"""DenseNet on MNIST: removing clusters of digits, each against its own retraining.

    PUMA_DATA_DIR=<folder that holds MNIST/raw> python -m benchmarks mnist-removal

Two training epochs, four removals and two retrainings: twenty minutes on two idle cores. Writes
docs/results/mnist.csv and prints it. A removal's seconds run from the loaded model and data to the
new weights; run it on an otherwise idle machine, or the ratio means nothing.

No target margin is estimated here: a model for it would cost more than the removal. The
step is the textbook's (dose 1), and twice that for comparison.

``sample_drift`` is the drift that the line search measured, on 256 retained rows; ``drift`` is that
of all; ``sample_error`` is the standard error of the first, from how much the change of the loss
differs between retained rows.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn

from puma.audit import loss_attack, predict
from puma.data import Dataset, Examples, load_dataset
from puma.influence import sampled
from puma.metrics import auc
from puma.models import build_model
from puma.models.predictions import accuracy
from puma.project.files import write_text
from puma.removal import PUMA, RemovalMethod, Retrain
from puma.requests.deletion_set import DeletionSet
from puma.requests.demonstration import smallest_clusters
from puma.settings import ModelSettings, TrainingSettings

TRAINING = TrainingSettings(
    epochs=2, batch_size=64, learning_rate=0.01, learning_rate_schedule="one_cycle"
)
CRITERION_SAMPLE = 256
ERROR_SAMPLE = 4096  # rows that tell how far the loss of so few is from that of all
ONE_FAST_STEP: dict[str, Any] = {
    "steps": 1,
    "reference_models": 0,
    "reweighting": "never",  # λ had next to no nonzero entries here and costs a pass over the data
    "solver": "woodbury",
    "rows": 512,
    "curvature_sample": 1024,  # twice as many change the step less than another seed does
    "criterion_sample": CRITERION_SAMPLE,
    "negligible": 0.05,
    "damping": 0.01,
    "budget": 0.01,
}
DOSES = {"puma": 1.0, "puma_dose_2": 2.0}
RESULTS = Path(__file__).parents[1] / "docs" / "results"


def cluster_of_fours(data: Dataset) -> Tensor:
    """(m,) training rows: the smallest of eight k-means clusters of digit 4."""
    rows = (data.train.labels == 4).nonzero().flatten()
    found = KMeans(8, random_state=0, n_init=1).fit(data.train.features[rows].flatten(1)).labels_
    return rows[torch.from_numpy(found) == torch.bincount(torch.from_numpy(found).long()).argmin()]


def main() -> None:
    """Remove clusters of digits from a DenseNet on MNIST, each against its own retraining."""
    data = load_dataset("mnist")
    start = time.perf_counter()
    model = build_model(ModelSettings(name="densenet"), data, seed=0)
    retrain = Retrain(training=TRAINING)
    trained = retrain.fit(model, data)
    print(f"trained to {accuracy(trained.predictor, data.test):.4f} in {trained.seconds:.1f} s")
    methods: dict[str, RemovalMethod] = {
        name: PUMA(training=TRAINING, max_dose=dose, **ONE_FAST_STEP)
        for name, dose in DOSES.items()
    }
    rows = []
    cases = {"cluster_digit_4": cluster_of_fours(data), "cluster": smallest_clusters(data)}
    for scenario, marked in cases.items():
        request = DeletionSet.of(data.train.subject_ids[marked.numpy()].tolist(), data)
        removals = {
            name: method.remove(trained, request)
            for name, method in {**methods, "retrain": retrain}.items()
        }
        retained = sampled(data.train.without(request.rows), ERROR_SAMPLE, seed=0)
        versions = {
            "original": (trained.predictor, trained.seconds, 0.0, math.nan),
            **{
                name: (
                    removal.predictor,
                    removal.seconds,
                    removal.criterion_drift,
                    removal.steps[0]["drift"] if removal.steps else math.nan,
                )
                for name, removal in removals.items()
            },
        }
        before = loss_attack(predict(trained.predictor, retained))
        for name, (predictor, seconds, drift, sample_drift) in versions.items():
            change = before - loss_attack(predict(predictor, retained))
            rows.append(
                {
                    "dataset": "mnist",
                    "scenario": scenario,
                    "method": name,
                    "seed": 0,
                    "removed_rows": len(request),
                    "original_accuracy": accuracy(trained.predictor, data.test),
                    "accuracy": accuracy(predictor, data.test),
                    **attacked(predictor, data.train.subset(request.rows), data.test),
                    "drift": drift,
                    "sample_drift": sample_drift,
                    "sample_error": float(change.std()) / CRITERION_SAMPLE**0.5,
                    "seconds": seconds,
                    "retrain_seconds": removals["retrain"].seconds,
                    "speedup": removals["retrain"].seconds / seconds,
                }
            )
    frame = pd.DataFrame(rows)
    levels = frame[frame["method"] == "retrain"].set_index("scenario")["loss_auc"]
    frame["loss_auc_gap_to_retrain"] = (frame["loss_auc"] - frame["scenario"].map(levels)).abs()
    write_text(RESULTS / "mnist.csv", frame.to_csv(index=False))
    print(frame.drop(columns=["dataset", "seed"]).round(4).to_string())
    print(f"{time.perf_counter() - start:.0f} s in all")


def attacked(predictor: nn.Module, removed: Examples, unseen: Examples) -> dict[str, float]:
    """Where the removed rows stand by their loss."""
    predictions = predict(predictor, removed)
    return {
        "removed_loss": float(-loss_attack(predictions).mean()),
        "removed_accuracy": accuracy(predictor, removed),
        "loss_auc": auc(loss_attack(predictions), loss_attack(predict(predictor, unseen))),
    }
