"""Breast Cancer Wisconsin (Original): 699 samples of nine ordinal measurements."""

from __future__ import annotations

from puma.data.base import Dataset
from puma.data.splitting import NOTHING, Extras
from puma.data.tabular import read_table, split_and_scale

SUBJECT = "sample_code_number"
LABEL = "class"


def breast_cancer(*, seed: int, test_fraction: float, extras: Extras = NOTHING) -> Dataset:
    """Load the table; sample_code_number is the subject and repeats.

    16 missing measurements are imputed.
    """
    table = read_table("breast_cancer_wisconsin_original.csv")
    return split_and_scale(
        "breast_cancer",
        table,
        label=LABEL,
        subject_ids=table[SUBJECT].astype(str).to_numpy(),
        numeric=[name for name in table.columns if name not in (SUBJECT, LABEL)],
        seed=seed,
        test_fraction=test_fraction,
        extras=extras,
    )
