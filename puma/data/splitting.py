"""The seeded splits: a share of every class is held out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from puma.data.base import Dataset, Examples
from puma.data.groups import group_masks
from puma.data.task import REGRESSION
from puma.errors import DataError, require_seed
from puma.where import Cells


@dataclass(frozen=True)
class Extras:
    """What a dataset has beside training and test rows, if anything.

    Attributes:
        validation_fraction: Share of the people of the training rows who are held out as
            :attr:`puma.data.Dataset.validation`; 0: nobody.
        groups: Expressions that pick groups of rows: see :class:`puma.where.Where`.
    """

    validation_fraction: float = 0.0
    groups: tuple[str, ...] = ()


NOTHING = Extras()


def quarters(values: np.ndarray, people: np.ndarray, *, fraction: float) -> np.ndarray:
    """Number the quarters of a regression's target, within which rows are drawn.

    Args:
        values: (n,) the target.
        people: Owners of the rows that are split, each at least once.
        fraction: Share of the people to hold out.

    Returns:
        (n,) numbers from 0 of the quarters that have rows; 0 for all where so few people are held
        out, or kept, that not every quarter can have one of them.
    """
    _, found = np.unique(REGRESSION.strata(torch.from_numpy(values)), return_inverse=True)
    total = len(np.unique(people))
    held_out = math.ceil(fraction * total)
    if min(held_out, total - held_out) <= found.max():
        return np.zeros_like(found)
    return found


def split_rows(
    name: str,
    labels: np.ndarray,
    *,
    seed: int,
    test_fraction: float,
    setting: str = "data.test_fraction",
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the row numbers of the training and of the test split, stratified by class.

    ``setting`` is what the message calls the fraction.

    Raises:
        DataError: A class of the dataset ``name`` is too small for the fraction, or the seed is
            no seed.
    """
    from sklearn.model_selection import train_test_split

    require_seed(seed, DataError)
    try:
        train, test = train_test_split(
            np.arange(len(labels)), test_size=test_fraction, stratify=labels, random_state=seed
        )
    except ValueError as error:
        raise DataError(
            f"dataset {name!r} has no split with {setting} {test_fraction}: {error}; "
            "choose a fraction that leaves every class a row on both sides"
        ) from error
    return train, test


def kept_people(
    name: str,
    labels: np.ndarray,
    people: np.ndarray,
    *,
    seed: int,
    fraction: float,
    setting: str = "data.test_fraction",
) -> np.ndarray:
    """Draw a share of the people to hold out, stratified by the rarest class of each.

    Args:
        name: Of the dataset, for the message.
        labels: (n,) class numbers.
        people: (n,) numbers from 0 of the rows' owners.
        seed: Of the draw.
        fraction: Share of the people to hold out.
        setting: What the message calls it.

    Returns:
        (n,) whether each row's owner is kept.

    Raises:
        DataError: As :func:`split_rows`, or all rows are one person's.
    """
    if people.max() == 0:
        raise DataError(
            f"dataset {name!r}: all {len(people)} rows that {setting} splits are one person's, who "
            "cannot be on both sides; add rows of other people, or name another column as the "
            "subject"
        )
    sizes = np.bincount(labels)
    by_size = np.argsort(sizes, kind="stable")  # the rarest class first
    rank = np.empty_like(by_size)
    rank[by_size] = np.arange(len(by_size))
    strata = np.full(people.max() + 1, len(sizes))
    np.minimum.at(strata, people, rank[labels])
    counts = np.bincount(strata, minlength=len(sizes))
    # A person whose class is everybody else's second rarest is no stratum to draw from.
    strata[counts[strata] == 1] = int(counts.argmax())
    drawn, _ = split_rows(name, strata, seed=seed, test_fraction=fraction, setting=setting)
    kept = np.zeros(len(strata), dtype=bool)
    kept[drawn] = True
    rows: np.ndarray = kept[people]
    return rows


def hold_out(
    name: str,
    labels: np.ndarray,
    subject_ids: np.ndarray,
    split: tuple[np.ndarray, np.ndarray],
    extras: Extras,
    *,
    seed: int,
) -> tuple[np.ndarray, ...]:
    """Hold out a share of the people of the training rows, as ``extras`` says.

    Args:
        name: Of the dataset.
        labels: (n,) class numbers; of a regression, numbers.
        subject_ids: (n,) who owns each row.
        split: The numbers of the training rows and of the test rows.
        extras: Says how many.
        seed: Of the draw.

    Returns:
        The numbers of the training and of the test rows and, if anybody is held out, of the
        validation rows.

    Raises:
        DataError: The fraction is impossible, or a class would lose its last training row.
    """
    fraction, setting = extras.validation_fraction, "data.validation_fraction"
    if not fraction:
        return split
    train, test = split
    if labels.dtype.kind == "f":
        labels = quarters(labels, subject_ids[train], fraction=fraction)
    _, people = np.unique(subject_ids[train], return_inverse=True)
    kept = kept_people(name, labels[train], people, seed=seed, fraction=fraction, setting=setting)
    lost = len(np.unique(labels[train])) - len(np.unique(labels[train[kept]]))
    if lost:
        raise DataError(
            f"dataset {name!r}: {setting} {fraction} leaves {lost} classes without a training "
            "row; choose another fraction or seed"
        )
    return train[kept], test, train[~kept]


def split_examples(
    name: str,
    features: np.ndarray,
    labels: np.ndarray,
    classes: tuple[str, ...],
    *,
    owner: str,
    seed: int,
    test_fraction: float,
    extras: Extras = NOTHING,
    columns: Mapping[str, Cells] | None = None,
) -> Dataset:
    """Split rows that need no scaling by the training split.

    Args:
        name: Of the dataset.
        features: (n, ...), kept as float32.
        labels: (n,) class numbers.
        classes: Their names.
        owner: Every row is its own subject; ``owner``-0001 is the first.
        seed: Of the split.
        test_fraction: Share of the rows to hold out.
        extras: What is wanted beside.
        columns: By which its groups are picked; None: there are none.
    """
    ids = np.asarray([f"{owner}-{row:04d}" for row in range(1, len(labels) + 1)], dtype=np.str_)
    rows = torch.from_numpy(np.asarray(features, dtype=np.float32))
    masks = group_masks(name, extras.groups, columns or {})
    groups = {each: torch.from_numpy(mask) for each, mask in masks.items()}
    whole = Examples(rows, torch.from_numpy(labels), ids, groups=groups)
    split = split_rows(name, labels, seed=seed, test_fraction=test_fraction)
    return split_dataset(
        name, whole, hold_out(name, labels, ids, split, extras, seed=seed), classes
    )


def split_dataset(
    name: str,
    whole: Examples,
    sides: tuple[np.ndarray, ...],
    classes: tuple[str, ...],
    source: str = "",
) -> Dataset:
    """Make the dataset of the ``whole`` rows, whose ``sides`` are as :func:`hold_out` returns."""
    train, test, *validation = (whole.subset(torch.from_numpy(rows)) for rows in sides)
    return Dataset(name, train, test, classes, source, validation=next(iter(validation), None))
