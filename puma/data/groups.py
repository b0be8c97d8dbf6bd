"""Groups of rows by what a table says of them: where a removal is to keep a loss of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from puma.data.base import NOT_AN_ARCHIVE, Dataset, Examples, write_arrays
from puma.errors import DataError
from puma.where import Cells, Where, WhereError

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 10  # people: the mean loss of fewer would tell about each of them


def cells_of(table: pd.DataFrame) -> dict[str, Cells]:
    """See the columns of a pandas table as expressions do: numbers, or texts."""
    import pandas as pd

    found = {}
    for name in table.columns:
        column = table[name]
        if pd.api.types.is_numeric_dtype(column):
            found[str(name)] = Cells("numbers", column.to_numpy(dtype=np.float64))
        else:
            texts = column.astype(object).where(column.notna(), None).to_numpy(dtype=object)
            found[str(name)] = Cells("texts", texts)
    return found


def columns_named(name: str, expressions: Sequence[str]) -> frozenset[str]:
    """Find the columns that the expressions name.

    Raises:
        DataError: One of them cannot be read; ``name`` is the dataset's.
    """
    try:
        return frozenset(column for each in expressions for column in Where(each).columns)
    except WhereError as error:
        raise DataError(f"dataset {name!r}: {error}") from error


def group_masks(
    name: str, expressions: Sequence[str], columns: Mapping[str, Cells]
) -> dict[str, np.ndarray]:
    """Find the rows of each group.

    Args:
        name: Of the dataset, for the message.
        expressions: See :class:`puma.where.Where`.
        columns: Of its table; none where the rows come from no table.

    Returns:
        (n,) which rows, by expression.

    Raises:
        DataError: An expression cannot be read, or does not suit the columns.
    """
    if expressions and not columns:
        raise DataError(
            f"dataset {name!r} comes from no table, so that {expressions[0]!r} picks none of its "
            "rows; leave out the entries of puma.preserve that have `where`"
        )
    try:
        return {each: Where(each).rows(columns) for each in expressions}
    except WhereError as error:
        raise DataError(f"dataset {name!r}: {error}") from error


def group(examples: Examples, where: str) -> Examples:
    """The examples of a group.

    Raises:
        DataError: The dataset was prepared without it, or fewer than ten people are in it or
            outside of it.
    """
    if where not in examples.groups:
        raise DataError(
            f"the data were prepared without the group {where!r}; name it in puma.preserve and run "
            "`dvc repro`, or pass it to load_dataset as one of `groups`"
        )
    inside = examples.groups[where]
    for side, rows in (("in", inside), ("outside of", ~inside)):
        people = len({*examples.subject_ids[rows.numpy()].tolist()})
        if people < FEWEST:
            raise DataError(
                f"only {people} people are {side} the group {where!r}, and its mean loss is "
                f"registered: choose one with {FEWEST} people or more in it and outside of it"
            )
    return examples.subset(inside)


def save_groups(dataset: Dataset, path: Path) -> None:
    """Write which rows of ``dataset`` belong to which group, whole or not at all.

    Beside the dataset and not in it: another group makes no other data, and nothing has to be
    trained again for it.
    """
    names = list(dataset.train.groups)
    arrays = {"data_digest": np.asarray(dataset.digest), "names": np.asarray(names, dtype=np.str_)}
    for part, examples in dataset.parts():
        for number, name in enumerate(names):
            arrays[f"{part}_{number}"] = examples.groups[name].numpy()
    write_arrays(path, arrays)


def with_groups(dataset: Dataset, path: Path) -> Dataset:
    """Return ``dataset`` with the groups that :func:`save_groups` wrote; as it is if it wrote none.

    Raises:
        DataError: The file is no such file, or of other data.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            digest, names = str(stored["data_digest"]), stored["names"].tolist()
            groups = {
                part: {
                    name: torch.from_numpy(stored[f"{part}_{number}"])
                    for number, name in enumerate(names)
                }
                for part, _ in dataset.parts()
            }
    except FileNotFoundError:
        return dataset
    except NOT_AN_ARCHIVE as error:
        raise DataError(f"{path}: no groups written by PUMA ({error}); run `dvc repro`") from error
    if digest != dataset.digest:
        raise DataError(f"{path} holds the groups of other data; run `dvc repro`")
    validation = dataset.validation
    return replace(
        dataset,
        train=dataset.train.with_groups(groups["train"]),
        test=dataset.test.with_groups(groups["test"]),
        validation=None if validation is None else validation.with_groups(groups["validation"]),
    )
