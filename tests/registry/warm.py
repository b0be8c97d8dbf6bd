"""Imported by the process that :mod:`tests.registry.forked` forks: all that takes its time once.

No connection is opened and no thread is left, so that a fork of it is as good as a new process.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["OMP_NUM_THREADS"] = "1"  # a pool of threads does not survive a fork

import mlflow.pytorch
import mlflow.server
import numpy as np
import torch

from puma.registry import promotion, verification
from tests.registry.projects import FEATURES, make_model

__all__ = ["promotion", "verification"]
torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    mlflow.pytorch.save_model(
        make_model(0).eval(),
        Path(folder, "model"),
        serialization_format="pt2",
        input_example=np.zeros((2, FEATURES), dtype=np.float32),
        pip_requirements=["torch"],
    )
    mlflow.pytorch.load_model(str(Path(folder, "model")))
