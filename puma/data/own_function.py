"""Rows that a function of the user's returns: whatever is no table.

The function is named in params.yaml as ``source: "package.module:function"``. It is called with
the ``path`` that stands beside it, as a pathlib.Path, or without an argument where there is none.
It returns three things, or four:

- features: (n, ...) numbers, an array or a tensor, ready for the model: nothing scales them;
- labels: n classes, whole numbers or texts; of a regression n numbers, which are standardised by
  the training rows;
- subject ids: n texts, who owns each row;
- split: n times "train" or "test". Without it, a seeded split by person is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puma.data.base import Dataset, Examples
from puma.data.groups import group_masks
from puma.data.labelled_split import split_labelled
from puma.data.splitting import Extras, hold_out, split_dataset
from puma.data.subject_ids import refuse_lookalikes, subject_array
from puma.errors import DataError
from puma.project.user_code import importable_from, imported
from puma.settings import TaskName

EXACT = 2**24  # float32 holds every whole number up to here


def own_function(
    name: str,
    function: str,
    path: Path | None,
    *,
    folder: Path,
    digest: str,
    task: TaskName,
    seed: int,
    test_fraction: float,
    extras: Extras,
) -> Dataset:
    """Call the user's ``function``, and split its rows.

    THIS RUNS THE USER'S CODE; see :func:`puma.project.user_code.imported`.

    Args:
        name: Of the dataset.
        function: "package.module:function".
        path: What it is called with, if anything.
        folder: Where its module is looked for first.
        digest: Of the source.
        task: What is learnt.
        seed: Of the split, where the function returns none.
        test_fraction: Share of the people to hold out.
        extras: What is wanted beside.

    Raises:
        DataError: It cannot be imported, or what it returns is no such rows. What the call itself
            raises is passed on.
    """
    group_masks(name, extras.groups, {})  # refuses any
    with importable_from(folder):
        load = imported(function, "source", "package.module:function", DataError, folder=folder)
        if not callable(load):
            raise DataError(
                f"source {function!r} is of type {type(load).__name__}; name a function that "
                "returns features, labels and subject ids"
            )
        returned = load() if path is None else load(path)
    if not isinstance(returned, tuple) or len(returned) not in (3, 4):
        got = f"{len(returned)} things" if isinstance(returned, tuple) else type(returned).__name__
        raise DataError(
            f"source {function!r} returned {got}; return features, labels, subject ids and, if "
            "you split the rows yourself, train or test for each, as one tuple"
        )
    features = _features(function, returned[0])
    sizes = tuple(len(part) if hasattr(part, "__len__") else 0 for part in returned)
    if len({*sizes}) != 1:
        raise DataError(
            f"source {function!r} returned parts of lengths {', '.join(map(str, sizes))}; return "
            "one row, one label and one id per example"
        )
    if not sizes[0]:
        raise DataError(f"source {function!r} returned no rows")
    ids = subject_array(returned[2])
    refuse_lookalikes(ids.tolist())
    labels = (_numbers if task == "regression" else _labels)(function, returned[1])
    split = [str(side) for side in returned[3]] if len(returned) == 4 else None
    found = split_labelled(
        name, labels, ids, split, task=task, seed=seed, test_fraction=test_fraction
    )
    whole = Examples(features, torch.from_numpy(found.labels), ids, found.task)
    sides = hold_out(name, found.labels, ids, (found.train, found.test), extras, seed=seed)
    return split_dataset(name, whole, sides, found.task.classes, digest)


def _features(function: str, given: Any) -> torch.Tensor:
    """(n, ...) float32 or float64; whole numbers, and truth values, as float32."""
    try:
        features = given if isinstance(given, torch.Tensor) else torch.as_tensor(np.asarray(given))
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"source {function!r} returned features that are no array of numbers but of type "
            f"{type(given).__name__}; return an array or a tensor with one row per example"
        ) from None
    if features.ndim < 2:
        raise DataError(
            f"source {function!r} returned features of shape {tuple(features.shape)}; return "
            "(n, ...): one row per example"
        )
    if features.dtype in (torch.float32, torch.float64):
        return features
    if features.dtype == torch.bool:
        return features.to(torch.float32)
    if features.is_complex() or (features.numel() and int(features.abs().max()) > EXACT):
        raise DataError(
            f"source {function!r} returned {features.dtype} features that 32-bit floating point "
            "does not hold; return smaller whole numbers, or floats"
        )
    return features.to(torch.float32)


def _labels(function: str, given: Sequence[Any] | np.ndarray | torch.Tensor) -> list[str]:
    """The names of the rows' classes."""
    labels = given.tolist() if isinstance(given, torch.Tensor | np.ndarray) else list(given)
    others = sorted(
        {type(each).__name__ for each in labels if not isinstance(each, int | str | np.integer)}
    )
    if others:
        raise DataError(
            f"source {function!r} returned labels of type {', '.join(others)}; return whole "
            "numbers or texts, one per row"
        )
    return [str(each) for each in labels]


def _numbers(function: str, given: Sequence[Any] | np.ndarray | torch.Tensor) -> np.ndarray:
    """(n,) float64 labels of a regression."""
    labels = given.detach().cpu().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)
    if labels.ndim != 1 or labels.dtype.kind not in "iuf":
        raise DataError(
            f"source {function!r} returned labels of shape {labels.shape} of {labels.dtype}; a "
            "regression needs one number per row"
        )
    return labels.astype(np.float64)
