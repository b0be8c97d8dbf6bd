"""Imported by the process that :mod:`tests.registry.forked` forks: all that takes its time once.

No connection stays open and no thread is left, so that a fork of it is as good as a new process.
"""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from pathlib import Path

for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
    os.environ.pop(name, None)
os.environ["OMP_NUM_THREADS"] = "1"  # a pool of threads does not survive a fork

import torch

from puma.registry import load_predictor, missing, register_all
from puma.registry.certificate.verify import verify_version
from puma.registry.promotion import promote
from puma.workflows import remove as answering
from tests.registry.projects import DATASET, FEATURES, make_project

__all__ = ["answering", "promote"]

torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    made = make_project(Path(folder, "project"))
    register_all(made, progress=False)
    verify_version(made, DATASET, 3)
    load_predictor(made, DATASET, 3)(torch.zeros(1, FEATURES))
    assert missing(made) is None
gc.collect()  # MLflow's pool of threads ends with the repository that it belongs to
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(10)
assert threading.active_count() == 1
gc.freeze()  # no fork is to look through all of this for garbage
