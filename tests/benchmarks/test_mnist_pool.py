"""The benchmark on scikit-learn's digits, with a pool that takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.mnist_pool import STEPS, run_pool
from puma.data import load_dataset
from puma.settings import AuditSettings, ModelSettings, PoolSettings, Settings, TrainingSettings


@pytest.mark.slow
def test_every_version_of_every_request_has_two_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puma.audit.evidence.MOST_ROWS", 100)  # as of MNIST, no kernel
    data = load_dataset("digits", seed=0)
    settings = Settings(
        datasets=("digits",),
        model=ModelSettings(hidden=(16,)),
        training=TrainingSettings(epochs=5, learning_rate=0.01),
        pool=PoolSettings(models=16, everybody=4),
        audit=AuditSettings(models=3, jobs=1),
    )
    requests = {"first": torch.arange(40), "fours": (data.train.labels == 4).nonzero()[:30, 0]}
    found = run_pool(data, requests, settings, tmp_path, steps=STEPS, progress=False)
    assert found["request"].tolist() == ["first"] * 3 + ["fours"] * 3
    assert found["method"].tolist() == ["original", "retrain", "puma"] * 2
    assert found["removed_rows"].tolist() == [40] * 3 + [30] * 3
    assert found.loc[found["method"] == "puma", "level_error"].gt(0).all()
    assert found["accuracy"].gt(0.8).all()
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert kept.keys() == {"pool.npz"}  # a network whose copies are trained together
    again = run_pool(data, requests, settings, tmp_path, steps=STEPS, progress=False)
    assert kept == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    same = ["verdict", "verdict_pool", "accuracy", "remaining_influence"]
    assert again[same].equals(found[same])
