"""The user's own rows: labels as numbers, and a training and a test split by person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from puma.data.splitting import kept_people, quarters
from puma.data.task import Task
from puma.errors import DataError
from puma.settings import TaskName

TRAIN, TEST = "train", "test"
# Of a regression's target: a deviation beyond these, or so small beside the mean, is no unit.
SMALLEST, LARGEST, ROUND_OFF = 1e-100, 1e100, 1e-12
MANY, FEW_ROWS = 50, 10  # more whole numbers than that, in so few rows each, are measurements


@dataclass(frozen=True)
class LabelledSplit:
    """Which label each row has, and on which side it is.

    Attributes:
        task: What the labels are. Classes that are numbers are in order of size, others by the
            alphabet.
        labels: (n,) int64 numbers of classes; of a regression float64, standardised by the mean
            and the deviation of the training rows.
        train: (t,) ascending numbers of the rows to train on.
        test: (n - t,) ascending numbers of the others.
    """

    task: Task
    labels: np.ndarray
    train: np.ndarray
    test: np.ndarray


def split_labelled(
    name: str,
    labels: Sequence[str] | np.ndarray,
    subject_ids: Sequence[str] | np.ndarray,
    split: Sequence[str] | np.ndarray | None,
    *,
    seed: int,
    test_fraction: float,
    task: TaskName = "classification",
) -> LabelledSplit:
    """Number the classes, and split the rows so that each person's are on one side.

    A given ``split`` stands as it is. Otherwise a share of the people is drawn, stratified by
    the rarest class of each; for a regression, by the quarters of the target.

    Args:
        name: Of the dataset.
        labels: (n,) names of classes; of a regression, numbers.
        subject_ids: (n,) who owns each row.
        split: (n,) train or test; None: to be drawn.
        seed: Of the split that is drawn.
        test_fraction: Share of the people to hold out.
        task: What is learnt.

    Raises:
        DataError: The labels do not suit the task, a class is too small, or there is no such
            split. The message has counts alone: the target may be a column of ids by mistake.
    """
    import pandas as pd

    people, _ = pd.factorize(np.asarray(subject_ids, dtype=object))
    if task == "regression":
        return _split_numbers(
            name, np.asarray(labels), people, split, seed=seed, test_fraction=test_fraction
        )
    classes, numbers = _numbered(name, labels)
    if task == "binary" and len(classes) != 2:
        raise DataError(
            f"dataset {name!r}: task: binary needs a target of two values, and this one has "
            f"{len(classes)}; set task: classification, or name another target"
        )
    owners = pd.DataFrame({"label": numbers, "person": people}).drop_duplicates()
    alone = int((np.bincount(owners["label"], minlength=len(classes)) < 2).sum())
    if alone:
        raise DataError(
            f"dataset {name!r}: {alone} of {len(classes)} classes have rows of one person alone, "
            "without whom the class would be gone; add rows of other people, or join such "
            "classes with others"
        )
    if split is None:
        train = kept_people(name, numbers, people, seed=seed, fraction=test_fraction)
    else:
        train = _as_stated(name, split)
    # A stated split may test on some of the classes alone.
    for side, rows in ((TRAIN, train), *([(TEST, ~train)] if split is None else [])):
        absent = len(classes) - len(np.unique(numbers[rows]))
        if absent:
            remedy = (
                "choose another data.test_fraction or seed, or add rows of such classes"
                if split is None
                else "correct the split"
            )
            raise DataError(
                f"dataset {name!r}: {absent} of {len(classes)} classes have no row in the {side} "
                f"split; {remedy}"
            )
    return LabelledSplit(
        Task(task, classes), numbers, np.flatnonzero(train), np.flatnonzero(~train)
    )


def _split_numbers(
    name: str,
    values: np.ndarray,
    people: np.ndarray,
    split: Sequence[str] | np.ndarray | None,
    *,
    seed: int,
    test_fraction: float,
) -> LabelledSplit:
    """Split the rows of a regression, whose labels are standardised by the training rows."""
    broken = int((~np.isfinite(values)).sum())
    if broken:
        raise DataError(
            f"dataset {name!r}: the target is missing or infinite in {broken} of {len(values)} "
            "rows; correct it, or delete these rows"
        )
    values = values.astype(np.float64)
    if split is None:
        strata = quarters(values, people, fraction=test_fraction)
        train = kept_people(name, strata, people, seed=seed, fraction=test_fraction)
    else:
        train = _as_stated(name, split)
    known = values[train]
    if (known == known[0]).all():
        raise DataError(
            f"dataset {name!r}: the target has one value in all {len(known)} training rows; a "
            "regression needs different ones: name another target"
        )
    with np.errstate(over="ignore", under="ignore"):
        centre, scale = float(known.mean()), float(known.std())
        labels = (values - centre) / scale if scale else values
    if not (SMALLEST < scale < LARGEST and scale > abs(centre) * ROUND_OFF):
        raise DataError(
            f"dataset {name!r}: the target's mean is {centre:.3g} and its deviation {scale:.3g} in "
            f"the {len(known)} training rows, too large, too small or too near each other for "
            "double precision; write the target in another unit, or subtract a constant"
        )
    return LabelledSplit(
        Task("regression", centre=centre, scale=scale),
        labels,
        np.flatnonzero(train),
        np.flatnonzero(~train),
    )


def _numbered(name: str, labels: Sequence[str] | np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    import pandas as pd

    codes, found = pd.factorize(np.asarray(labels, dtype=object))
    names = [str(name) for name in found]
    values = pd.to_numeric(pd.Series(names, dtype=object), errors="coerce").to_numpy(dtype=float)
    numeric = bool(np.isfinite(values).all())
    if len(names) == 1:
        raise DataError(
            f"dataset {name!r}: the target has one value in all {len(codes)} rows; a classifier "
            "needs two classes or more: name another target"
        )
    fractions = int((values != np.round(values)).sum()) if numeric else 0
    if fractions or (numeric and len(names) > MANY and len(codes) < FEW_ROWS * len(names)):
        raise DataError(
            f"dataset {name!r}: the target looks continuous: {len(names)} different numbers in "
            f"{len(codes)} rows, {fractions} of them with fractions; set task: regression, name a "
            "column of classes, or make classes of the numbers, such as low and high"
        )
    if len(names) > len(codes) / 2:
        raise DataError(
            f"dataset {name!r}: the target has {len(names)} values in {len(codes)} rows, too many "
            "for classes; name a column of classes as the target"
        )
    order = np.argsort(values, kind="stable") if numeric else np.argsort(np.asarray(names))
    number = np.empty(len(names), dtype=np.int64)
    number[order] = np.arange(len(names))
    return tuple(names[each] for each in order), number[codes]


def _as_stated(name: str, split: Sequence[str] | np.ndarray) -> np.ndarray:
    import pandas as pd

    codes, found = pd.factorize(np.asarray(split, dtype=object))
    sides = np.asarray([str(each).strip().lower() for each in found])
    unknown = ~np.isin(sides, [TRAIN, TEST])
    if unknown.any():
        raise DataError(
            f"dataset {name!r}: the split says something else than train or test in "
            f"{int(unknown[codes].sum())} of {len(codes)} rows; correct them"
        )
    in_train: np.ndarray = (sides == TRAIN)[codes]
    if in_train.all() or not in_train.any():
        raise DataError(
            f"dataset {name!r}: the split says {sides[0]} in all {len(codes)} rows; both sides "
            "need some"
        )
    return in_train
