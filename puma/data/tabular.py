"""From a table with a class column and an owner per row to standardised, split examples."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
import torch

from puma.data.base import Dataset, Examples, subject_array
from puma.data.splitting import split_rows
from puma.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

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

    Raises:
        DataError: A column is absent, or one of ``numeric`` holds text or an infinity. The message
            names columns, never a cell.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    _check_columns(name, table, [label, *numeric, *categorical], numeric)
    classes, labels = np.unique(table[label].to_numpy(dtype=np.str_), return_inverse=True)
    train_rows, test_rows = split_rows(name, labels, seed=seed, test_fraction=test_fraction)
    transform = ColumnTransformer(
        [
            (
                "numeric",
                make_pipeline(SimpleImputer(strategy="median"), StandardScaler()),
                list(numeric),
            ),
            (
                "categorical",
                OneHotEncoder(sparse_output=False, handle_unknown="ignore"),
                list(categorical),
            ),
        ]
    ).fit(table.iloc[train_rows])
    ids = subject_array(subject_ids)

    def part(rows: np.ndarray) -> Examples:
        features = np.asarray(transform.transform(table.iloc[rows]), dtype=np.float32)
        return Examples(torch.from_numpy(features), torch.from_numpy(labels[rows]), ids[rows])

    return Dataset(name, part(train_rows), part(test_rows), tuple(classes.tolist()))


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
