"""DenseNet on MNIST: removing clusters of digits, each against its own retraining.

    PUMA_DATA_DIR=<folder that holds MNIST/raw> python benchmarks/mnist_removal.py

Two training epochs, two removals and two retrainings: a quarter of an hour on two idle cores.
Writes docs/results/mnist.csv and prints it. The removal's seconds run from the loaded model and
data to the new weights; run it on an otherwise idle machine, or the ratio means nothing.
"""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from puma.audit import auc, loss_attack_scores
from puma.data import Dataset, load_dataset
from puma.deletion import DeletionSet
from puma.files import write_text
from puma.marking import smallest_clusters
from puma.models import build_model
from puma.predictions import accuracy, losses
from puma.removal import PUMA, Retrain
from puma.settings import ModelSettings, TrainingSettings

TRAINING = TrainingSettings(epochs=2, batch_size=64, learning_rate=1e-3)
ONE_FAST_STEP = {
    "steps": 1,
    "reference_models": 0,
    "reweighting": "never",  # λ had next to no nonzero entries here and costs a pass over the data
    "solver": "woodbury",
    "rows": 1024,
    "curvature_sample": 2048,
    "criterion_sample": 1024,
    "dose_precision": 0.1,
    "damping": 0.01,
    "budget": 0.01,
}
OUTPUT = Path(__file__).parents[1] / "docs" / "results" / "mnist.csv"


def cluster_of_fours(data: Dataset) -> Tensor:
    """(m,) training rows: the smallest of eight k-means clusters of digit 4."""
    rows = (data.train.labels == 4).nonzero().flatten()
    found = KMeans(8, random_state=0, n_init=1).fit(data.train.features[rows].flatten(1)).labels_
    return rows[torch.from_numpy(found) == torch.bincount(torch.from_numpy(found).long()).argmin()]


def main() -> None:
    data = load_dataset("mnist")
    start = time.perf_counter()
    model = build_model(ModelSettings(name="densenet"), data, seed=0)
    retrain = Retrain(training=TRAINING)
    trained = retrain.fit(model, data)
    print(f"trained to {accuracy(trained.predictor, data.test):.4f} in {trained.seconds:.1f} s")
    puma = PUMA(training=TRAINING, **ONE_FAST_STEP)
    rows = []
    cases = {"cluster_digit_4": cluster_of_fours(data), "cluster": smallest_clusters(data)}
    for scenario, marked in cases.items():
        request = DeletionSet.of(data.train.subject_ids[marked.numpy()].tolist(), data)
        removed = data.train.subset(request.rows)
        versions = {
            "original": (trained.predictor, trained.seconds, 0.0),
            **{
                method.method: (result.predictor, result.seconds, result.criterion_drift)
                for method in (puma, retrain)
                for result in [method.remove(trained, request)]
            },
        }
        for name, (predictor, seconds, drift) in versions.items():
            rows.append(
                {
                    "dataset": "mnist",
                    "scenario": scenario,
                    "method": name,
                    "seed": 0,
                    "removed_rows": len(request),
                    "accuracy": accuracy(predictor, data.test),
                    "removed_loss": losses(predictor, removed).double().mean().item(),
                    "removed_accuracy": accuracy(predictor, removed),
                    "loss_auc": auc(
                        loss_attack_scores(predictor, removed),
                        loss_attack_scores(predictor, data.test),
                    ),
                    "drift": drift,
                    "seconds": seconds,
                    "speedup_vs_retrain": versions["retrain"][1] / seconds,
                }
            )
        frame = pd.DataFrame(rows)
        write_text(OUTPUT, frame.to_csv(index=False))
        print(frame.round(4).to_string(index=False))
    print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
