"""Diabetes: ten measurements of 442 patients, and how the disease went on: a regression."""

from __future__ import annotations

import numpy as np

from puma.data.base import Dataset
from puma.data.groups import cells_of, group_masks
from puma.data.labelled_split import split_labelled
from puma.data.splitting import NOTHING, Extras, hold_out
from puma.data.subject_ids import subject_array
from puma.data.tabular import encode

NAME = "diabetes"


def diabetes(*, seed: int, test_fraction: float, extras: Extras = NOTHING) -> Dataset:
    """Load the table of Efron et al. (2004), which comes with scikit-learn.

    Every patient is a subject; patient-001 is scikit-learn's first. The target is a measure of
    the disease's progression after one year, 25 to 346.
    """
    from sklearn.datasets import load_diabetes

    found = load_diabetes(as_frame=True, scaled=False)
    ids = [f"patient-{row:03d}" for row in range(1, len(found.data) + 1)]
    target = found.target.to_numpy(dtype=np.float64)
    split = split_labelled(
        NAME, target, ids, None, task="regression", seed=seed, test_fraction=test_fraction
    )
    owners = subject_array(ids)
    train, test, *validation = encode(
        found.data,
        split.labels,
        owners,
        hold_out(NAME, split.labels, owners, (split.train, split.test), extras, seed=seed),
        numeric=list(found.data.columns),
        categorical=[],
        task=split.task,
        groups=group_masks(NAME, extras.groups, cells_of(found.frame)),
    )
    return Dataset(NAME, train, test, (), validation=next(iter(validation), None))
