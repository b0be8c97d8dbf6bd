"""PUMA: take marked people's rows out of a trained PyTorch model, and show the evidence.

Every public name is listed here. They are imported on first use, so that a command which only
reads the registry does not wait for PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from puma.data import Dataset, Examples, load_dataset
    from puma.influence import influence_scores, reweight
    from puma.removal import PUMA, SISA, Amnesiac, Removal, Retrain, Trained
    from puma.requests.deletion_set import DeletionSet

_HOME = {
    "Dataset": "puma.data",
    "Examples": "puma.data",
    "load_dataset": "puma.data",
    "DeletionSet": "puma.requests.deletion_set",
    "influence_scores": "puma.influence",
    "reweight": "puma.influence",
    "PUMA": "puma.removal",
    "SISA": "puma.removal",
    "Amnesiac": "puma.removal",
    "Removal": "puma.removal",
    "Retrain": "puma.removal",
    "Trained": "puma.removal",
}

__all__ = [
    "PUMA",
    "SISA",
    "Amnesiac",
    "Dataset",
    "DeletionSet",
    "Examples",
    "Removal",
    "Retrain",
    "Trained",
    "influence_scores",
    "load_dataset",
    "reweight",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'puma' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
