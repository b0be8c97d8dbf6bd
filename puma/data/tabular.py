"""From a table with a class column and an owner per row to standardised, split examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch

from puma.data.base import Dataset, Examples
from puma.data.groups import cells_of, group_masks
from puma.data.splitting import NOTHING, Extras, hold_out, split_rows
from puma.data.subject_ids import subject_array
from puma.data.task import CLASSIFICATION, Task
from puma.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

NO_GROUPS: Mapping[str, np.ndarray] = MappingProxyType({})
BLOCK = 50_000  # rows that are encoded at a time

# pandas and scikit-learn take over a second to import, and every stage imports this package
# while only the one that prepares the data calls these functions: they import what they use.


def read_table(name: str) -> pd.DataFrame:
    """Read the packaged table puma/data/files/``name``; empty cells are missing values."""
    import pandas as pd

    with files("puma.data").joinpath("files", name).open(encoding="utf-8") as stream:
        return pd.read_csv(stream, keep_default_na=False, na_values=[""])


def split_and_scale(
    name: str,
    table: pd.DataFrame,
    *,
    label: str,
    subject_ids: Sequence[str] | np.ndarray,
    numeric: Sequence[str],
    categorical: Sequence[str] = (),
    seed: int,
    test_fraction: float,
    extras: Extras = NOTHING,
) -> Dataset:
    """Split a table, and scale it by the means, deviations and categories of the TRAINING rows.

    Missing numbers become the training median. A category that only test rows have becomes a
    row of zeros: the model could not have learnt it.

    Args:
        name: Of the dataset.
        table: One row per example.
        label: The column with the class.
        subject_ids: (n,) who owns each row.
        numeric: Columns to impute and standardise.
        categorical: Columns to encode, one feature per category.
        seed: Of the split, stratified by class.
        test_fraction: Share of the rows to hold out.
        extras: What is wanted beside.

    Raises:
        DataError: A column is absent, or one of ``numeric`` holds text or an infinity. The message
            names columns, never a cell.
    """
    _check_columns(name, table, [label, *numeric, *categorical], numeric)
    classes, labels = np.unique(table[label].to_numpy(dtype=np.str_), return_inverse=True)
    ids = subject_array(subject_ids)
    split = split_rows(name, labels, seed=seed, test_fraction=test_fraction)
    train, test, *validation = encode(
        table,
        labels,
        ids,
        hold_out(name, labels, ids, split, extras, seed=seed),
        numeric=numeric,
        categorical=categorical,
        groups=group_masks(name, extras.groups, cells_of(table[[label, *numeric, *categorical]])),
    )
    return Dataset(
        name, train, test, tuple(classes.tolist()), validation=next(iter(validation), None)
    )


def encode(
    table: pd.DataFrame,
    labels: np.ndarray,
    subject_ids: np.ndarray,
    sides: tuple[np.ndarray, ...],
    *,
    numeric: Sequence[str],
    categorical: Sequence[str],
    say_missing: bool = False,
    most_categories: int | None = None,
    task: Task = CLASSIFICATION,
    groups: Mapping[str, np.ndarray] = NO_GROUPS,
) -> list[Examples]:
    """Make the examples of each of ``sides``, encoded as the first of them says.

    Args:
        table: (n rows) numbers or NaN in numeric columns, anything in categorical ones.
        labels: (n,) class numbers; of a regression, numbers.
        subject_ids: (n,) who owns each row.
        sides: The numbers of the training rows, of the test rows, and of others.
        numeric: Columns to impute by the training median and to standardise.
        categorical: Columns to encode, one feature per category. What only test rows have
            becomes a row of zeros, or counts as rare.
        say_missing: Whether a numeric column with missing training cells gets a second feature
            that says where.
        most_categories: Features of one categorical column, the last of which is for all rarer
            categories; None: all.
        task: What the labels are.
        groups: (n,) which rows belong to each group.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    impute = SimpleImputer(
        strategy="median", add_indicator=say_missing, keep_empty_features=True
    )  # a column may be empty in the training rows alone
    encoder = OneHotEncoder(
        sparse_output=False,
        handle_unknown="ignore" if most_categories is None else "infrequent_if_exist",
        max_categories=most_categories,
        dtype=np.float32,
    )
    transform = ColumnTransformer(
        [
            ("numeric", make_pipeline(impute, StandardScaler()), list(numeric)),
            ("categorical", encoder, list(categorical)),
        ]
    ).fit(table.iloc[sides[0]])

    width = transform.transform(table.iloc[sides[0][:1]]).shape[1]

    def side(rows: np.ndarray) -> Examples:
        # Block by block: the transformers make several copies in double precision.
        blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
        features = torch.empty(len(rows), width, dtype=torch.float32)
        for block, part in zip(blocks, features.split(BLOCK), strict=True):
            part.copy_(torch.as_tensor(np.asarray(transform.transform(table.iloc[block]))))
        return Examples(
            features,
            torch.from_numpy(labels[rows]),
            subject_ids[rows],
            task,
            {name: torch.from_numpy(mask[rows]) for name, mask in groups.items()},
        )

    return [side(rows) for rows in sides]


def _check_columns(
    name: str, table: pd.DataFrame, columns: Sequence[str], numeric: Sequence[str]
) -> None:
    import pandas as pd

    absent = [column for column in columns if column not in table.columns]
    if absent:
        raise DataError(
            f"dataset {name!r}: the table has no column {', '.join(map(repr, absent))}; "
            f"its columns are {list(table.columns)}"
        )
    for column in numeric:
        if not pd.api.types.is_numeric_dtype(table[column]):
            raise DataError(
                f"dataset {name!r}: column {column!r} is to be numeric and is of type "
                f"{table[column].dtype}; convert it with pandas.to_numeric, or name it among the "
                "categorical columns"
            )
        infinite = int(np.isinf(table[column].to_numpy(dtype=float, na_value=np.nan)).sum())
        if infinite:
            raise DataError(
                f"dataset {name!r}: column {column!r} holds {infinite} infinite values; correct "
                "them, or leave the cells empty"
            )
