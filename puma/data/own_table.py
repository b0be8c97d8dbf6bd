"""The user's own table as a dataset, by the settings ``sources`` alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from puma.data.base import Column, Dataset
from puma.data.groups import columns_named, group_masks
from puma.data.labelled_split import split_labelled
from puma.data.splitting import Extras, hold_out
from puma.data.subject_ids import read_id, refuse_lookalikes, subject_array
from puma.data.table_file import read_table_file
from puma.data.tabular import encode
from puma.errors import ColumnError, DataError
from puma.settings import ColumnType, SourceSettings
from puma.where import Cells, Kind

if TYPE_CHECKING:
    import pyarrow as pa

MOST_CATEGORIES = 50  # features of one column; rarer categories share one
_DAY = 86_400_000  # milliseconds
_TRUTH = {"true": 1.0, "yes": 1.0, "1": 1.0, "false": 0.0, "no": 0.0, "0": 0.0}
_ROLES = {"target": "the class", "subject": "the row's owner", "split": "train or test"}
_POLICIES = {
    "numeric": "standardised",
    "boolean": "1 or 0, standardised",
    "date": "days since 1970, standardised",
    "categorical": "a feature for each category",
}
_SEEN_AS: dict[ColumnType, Kind] = {
    "numeric": "numbers",
    "boolean": "truth values",
    "date": "dates",
    "categorical": "texts",
}
NAMED_ALONE = Cells("texts", np.zeros(0, dtype=object))  # a column that no group is picked by
_FILLED = {
    "numeric": "training median, and a feature that says where",
    "categorical": "a category",
}


def own_table(
    name: str,
    path: Path,
    source: SourceSettings,
    *,
    digest: str,
    seed: int,
    test_fraction: float,
    extras: Extras,
) -> Dataset:
    """Read, split and encode the table at ``path``.

    Args:
        name: Of the dataset.
        path: Of the CSV or Parquet file.
        source: What its columns are.
        digest: Of the source.
        seed: Of the split, where no column says it.
        test_fraction: Share of the people to hold out.
        extras: What is wanted beside.

    Raises:
        DataError: The file or a column cannot be used; a ColumnError where ``source`` may say
            more about columns, with a line for each. The messages name columns and counts, never a
            cell.
    """
    import pandas as pd

    grouped_by = columns_named(name, extras.groups)
    if source.subject in grouped_by:
        raise DataError(
            f"dataset {name!r}: a group is picked by {source.subject!r}, the ids of people; "
            "pick it by what the rows say of them"
        )
    read = source.model_copy(update={"drop": tuple({*source.drop} - grouped_by)})
    table = read_table_file(path, read)
    columns = []
    seen: dict[str, Cells] = {}  # by expressions
    texts: dict[str, np.ndarray] = {}
    for role, policy in _ROLES.items():
        column = getattr(source, role)
        if column is not None:
            texts[role] = _texts(path, column, table[column], source)
            _refuse_missing(path, role, column, texts[role])
            distinct = len({*texts[role].tolist()})
            if role == "target" and source.task == "regression":
                texts[role] = _cells(path, column, "numeric", table[column], source)
                policy = "the number, standardised"
                seen[column] = Cells("numbers", texts[role])
            elif role == "target":
                seen[column] = Cells("texts", texts[role])
            columns.append(Column(column, role, 0, distinct, policy))
    named = {each.column for each in columns}
    features: dict[str, Any] = {}
    kinds: dict[str, ColumnType] = {}
    faults: list[str] = []
    for column in table.column_names:
        if column in named:
            continue
        try:
            kind = _kind(path, column, table[column], source)
            cells = _cells(path, column, kind, table[column], source)
            if column not in source.drop:
                columns.append(_described(path, column, kind, cells, source))
                kinds[column], features[column] = kind, cells
        except ColumnError as fault:
            faults.append(str(fault))
            continue
        seen[column] = NAMED_ALONE
        if column in grouped_by:
            texts_of = (
                _texts(path, column, table[column], source) if kind == "categorical" else cells
            )
            seen[column] = Cells(_SEEN_AS[kind], texts_of)
        table = table.drop_columns(column)  # a column is in memory once
    if faults:
        raise ColumnError("\n".join(faults))  # all of them, to be corrected at once
    if not features:
        raise DataError(f"{path}: there is no column to learn from beside those that are named")
    frame = pd.DataFrame(features, copy=False)
    features.clear()
    ids = texts.get("subject")
    if ids is None:
        ids = np.asarray([f"row-{number}" for number in range(1, len(frame) + 1)], dtype=object)
    refuse_lookalikes(ids.tolist())
    labels, split = texts["target"], texts.get("split")
    groups = group_masks(name, extras.groups, seen)
    seen.clear()
    if source.missing == "drop_rows":
        whole = frame.notna().all(axis=1).to_numpy()
        if not whole.any():
            raise DataError(
                f"{path}: missing: drop_rows leaves no row, for each has a missing cell; drop the "
                "emptiest columns, or set missing: impute"
            )
        frame, labels, ids = frame[whole], labels[whole], ids[whole]
        split = None if split is None else split[whole]
        groups = {each: mask[whole] for each, mask in groups.items()}
    found = split_labelled(
        name, labels, ids, split, task=source.task, seed=seed, test_fraction=test_fraction
    )
    owners = subject_array(ids.tolist())
    train, test, *validation = encode(
        frame,
        found.labels,
        owners,
        hold_out(name, found.labels, owners, (found.train, found.test), extras, seed=seed),
        numeric=[column for column, kind in kinds.items() if kind != "categorical"],
        categorical=[column for column, kind in kinds.items() if kind == "categorical"],
        say_missing=True,
        most_categories=MOST_CATEGORIES,
        task=found.task,
        groups=groups,
    )
    return Dataset(
        name,
        train,
        test,
        found.task.classes,
        source=digest,
        columns=tuple(columns),
        validation=next(iter(validation), None),
    )


def _texts(path: Path, column: str, cells: pa.ChunkedArray, source: SourceSettings) -> np.ndarray:
    """(n,) stripped texts; None where a cell is missing."""
    import pyarrow as pa

    kind = cells.type
    if pa.types.is_floating(kind) and column == source.subject:
        raise DataError(
            f"{path}: the ids in {column!r} are numbers with fractions ({kind}); write them as "
            "whole numbers or text"
        )
    if not pa.types.is_dictionary(kind):
        try:
            cells = cells.cast(pa.string()).dictionary_encode()
        except pa.ArrowException:
            cells = None  # the error may quote a cell: it is not chained
    if cells is None:
        raise ColumnError(f"{path}: column {column!r} is of type {kind}, which is no text")
    encoded = cells.unify_dictionaries().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # of no chunks, or of more than fit one
        encoded = pa.concat_arrays(encoded.chunks)
    missing = {"", *(source.missing_values if column != source.subject else ())}
    values = [read_id(str(value)) for value in encoded.dictionary.to_pylist()]
    known = np.asarray(
        [None if each in missing else each for each in values] + [None], dtype=object
    )
    texts: np.ndarray = known[encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]
    return texts


def _refuse_missing(path: Path, role: str, column: str, texts: np.ndarray) -> None:
    missing = texts.tolist().count(None)
    if missing:
        raise DataError(
            f"{path}: the {role} {column!r} is missing in {missing} of {len(texts)} rows; fill it "
            "in, or delete these rows"
        )


def _kind(path: Path, column: str, cells: pa.ChunkedArray, source: SourceSettings) -> ColumnType:
    """The stated type of a column, or the inferred one."""
    import pyarrow as pa

    if column in source.types:
        return source.types[column]
    kind = cells.type
    if pa.types.is_null(kind):
        raise ColumnError(f"{path}: column {column!r} has no value at all; put it into drop")
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    if _is_number(kind):
        return "numeric"
    if _is_text(kind) or pa.types.is_dictionary(kind):
        return "categorical"
    raise ColumnError(
        f"{path}: column {column!r} is of type {kind}, which is no table cell; put it into drop, "
        "or make columns of numbers or texts of it"
    )


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    times = (pa.types.is_time, pa.types.is_duration)
    return any(each(kind) for each in (*numbers, *times))


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _cells(
    path: Path, column: str, kind: ColumnType, cells: pa.ChunkedArray, source: SourceSettings
) -> np.ndarray:
    """(n,) numbers; of categories their places in the alphabet; NaN where a cell is missing."""
    import pandas as pd
    import pyarrow as pa

    if kind == "categorical":
        places, _ = pd.factorize(_texts(path, column, cells, source), sort=True)
        return np.where(places < 0, np.nan, places)
    if _is_text(cells.type) or pa.types.is_dictionary(cells.type):
        return _parsed(path, column, kind, _texts(path, column, cells, source))
    given = cells.type
    fits = {
        "numeric": _is_number(given) or pa.types.is_boolean(given),
        "boolean": pa.types.is_boolean(given) or _is_number(given),
        "date": pa.types.is_date(given) or pa.types.is_timestamp(given),
    }
    if not fits[kind] and not pa.types.is_null(given):
        raise ColumnError(
            f"{path}: column {column!r} is to be {kind}, but holds {given}; correct its type in "
            "params.yaml"
        )
    if kind == "date":
        zone = given.tz if pa.types.is_timestamp(given) else None
        moments = cells.cast(pa.timestamp("ms", tz=zone), safe=False).cast(pa.int64())
        return _floats(moments) / _DAY
    numbers = _floats(cells)
    infinite = int(np.isinf(numbers).sum())
    if infinite:
        raise ColumnError(
            f"{path}: column {column!r} holds {infinite} infinite values; correct them, or leave "
            "the cells empty"
        )
    others = int((~np.isin(numbers, [0, 1]) & ~np.isnan(numbers)).sum())
    if kind == "boolean" and others:
        _refuse_cells(path, column, kind, others, len(numbers))
    return numbers


def _floats(cells: pa.ChunkedArray) -> np.ndarray:
    """(n,) float64, NaN where a cell is missing."""
    import pyarrow as pa

    kind = cells.type
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        cells = cells.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_boolean(kind):
        cells = cells.cast(pa.uint8())
    numbers = cells.cast(pa.float64(), safe=False)
    return np.asarray(numbers.to_numpy(), dtype=np.float64)


def _parsed(path: Path, column: str, kind: ColumnType, texts: np.ndarray) -> np.ndarray:
    """(n,) float64 of the texts of a column that was stated to be of ``kind``."""
    import pandas as pd

    values = pd.Series(texts, dtype=object)
    if kind == "numeric":
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64)
        numbers = np.where(np.isinf(numbers), np.nan, numbers)  # which is then a wrong cell
    elif kind == "boolean":
        numbers = values.str.lower().map(_TRUTH).to_numpy(dtype=np.float64)
    else:
        moments = pd.to_datetime(values, errors="coerce", format="ISO8601", utc=True)
        since = moments - pd.Timestamp(0, tz="UTC")
        numbers = (since / pd.Timedelta(days=1)).to_numpy(dtype=np.float64)
    wrong = int((np.isnan(numbers) & values.notna().to_numpy()).sum())
    if wrong:
        _refuse_cells(path, column, kind, wrong, len(numbers))
    return numbers


def _refuse_cells(path: Path, column: str, kind: ColumnType, wrong: int, rows: int) -> None:
    forms = {
        "numeric": "finite numbers",
        "boolean": "true, false, yes, no, 1 or 0",
        "date": "ISO 8601 dates such as 2026-01-31",
    }
    raise ColumnError(
        f"{path}: column {column!r} is to be {kind}, but {wrong} of {rows} cells are not "
        f"{forms[kind]}; correct them, leave them empty, name what they say in missing_values, or "
        "state another type"
    )


def _described(
    path: Path, column: str, kind: ColumnType, cells: np.ndarray, source: SourceSettings
) -> Column:
    """The column in words, once it is fit to be encoded."""
    import pandas as pd

    values = pd.Series(cells)
    missing, distinct = int(values.isna().sum()), int(values.nunique())
    if missing == len(values):
        raise ColumnError(f"{path}: column {column!r} has no value at all; put it into drop")
    if missing and source.missing == "refuse":
        raise ColumnError(
            f"{path}: column {column!r} is missing in {missing} of {len(values)} rows, and "
            "missing: refuse is set; fill the cells, or set missing: impute or drop_rows"
        )
    if kind == "categorical" and column not in source.types and distinct > MOST_CATEGORIES:
        known = len(values) - missing
        if distinct > known / 2:
            raise ColumnError(
                f"{path}: column {column!r} has {distinct} different texts in {known} rows, as "
                "names, ids and free text have, and dates that are not written as 2026-01-31; put "
                "it into drop, or state its type in types"
            )
    policy = _POLICIES[kind]
    if kind == "categorical" and distinct > MOST_CATEGORIES:
        policy += f", the rarest share one ({MOST_CATEGORIES} in all)"
    if missing:
        filled = _FILLED["categorical" if kind == "categorical" else "numeric"]
        policy += f"; missing: {filled if source.missing == 'impute' else 'the row is left out'}"
    return Column(column, kind, missing, distinct, policy)
