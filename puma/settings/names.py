"""Names that settings, stored models and records share. They need no other module."""

from __future__ import annotations

from typing import Literal

ORIGINAL = "original"  # trained plainly; what most methods remove from, and what serves
RECORDING = ("amnesiac", "sisa")  # these act during training: each needs a model of its own
OWN_ORIGINALS = {method: f"{method}_original" for method in RECORDING}

# Those of puma.data.DATASETS, for what should not wait until PyTorch is imported.
BUILT_IN_DATASETS = (
    "breast_cancer",
    "diabetes",
    "digits",
    "german_credit",
    "mnist",
    "radial",
    "rectangular",
    "spiral",
    "two_moons",
)
TaskName = Literal["classification", "binary", "regression"]
ColumnType = Literal["numeric", "categorical", "boolean", "date"]

VerdictName = Literal[
    "passed",
    "indistinguishable",
    "forgetting_incomplete",
    "over_forgotten",
    "utility_lost",
    "inconclusive",
]
EvidenceSource = Literal["pool", "retrain"]

RETAINED_LOSS = "retained_loss"
OWN_CODE = ":"  # "package.module:name" has it, and no name of ours


def is_original(version: str) -> bool:
    """Whether ``version`` names a model that has seen everybody, not a removal."""
    return version in {ORIGINAL, *OWN_ORIGINALS.values()}


def original_of(version: str) -> str:
    """The name of the version that the method ``version`` removes from; an original's own name."""
    return version if is_original(version) else OWN_ORIGINALS.get(version, ORIGINAL)
