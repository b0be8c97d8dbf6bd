"""CSV and Parquet files as Arrow tables, cells as they are written.

Messages name columns and rows by number, never a cell.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from puma.errors import DataError
from puma.settings import SourceSettings

if TYPE_CHECKING:
    import pyarrow as pa

# pyarrow takes a while to import, and only the stage that prepares the data reads tables.

PARQUET = (".parquet", ".pq")
CSV = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
SEPARATORS = (",", ";", "\t", "|")
LONGEST_HEADER = 1_000_000  # characters
_NO_ROWS = "{}: the table has no rows below its header"
_NO_PARQUET = "{}: not a Parquet file; write it again"
BLOCK = 16_000_000  # bytes that are parsed at a time; no row may be longer


def read_table_file(path: Path, source: SourceSettings) -> pa.Table:
    """Read the table at ``path``; the name's ending says what it is.

    Of a CSV file, the separator is the one by which the header has the columns that ``source``
    names. Classes, ids, splits and categories keep the text of their cells. The types of other
    columns are inferred: of numbers, truth values and dates, the usual spellings of a missing
    value (such as NA) are missing; of texts only the empty cell is.

    Args:
        path: Of the file.
        source: Which columns there are, which are left out, and how numbers are written.

    Raises:
        DataError: The file is absent, empty or no such table, or lacks a column.
    """
    roles = [name for name in (source.target, source.subject, source.split) if name is not None]
    needed = [*roles, *source.drop, *source.types]
    with _file_faults(path):
        if _ending(path) in PARQUET:
            table = _read_parquet(path, needed, source.drop)
        else:
            names, separator = _read_header(path, needed)
            require_columns(path, names, needed)
            columns = [name for name in names if name not in source.drop]
            categorical = [name for name, kind in source.types.items() if kind == "categorical"]
            table = _read_csv(path, separator, columns, [*roles, *categorical], source)
    if table.num_rows == 0:
        raise DataError(_NO_ROWS.format(path))
    return table


def column_names(path: Path, needed: Sequence[str]) -> list[str]:
    """The columns of the table at ``path``, of which some may be in ``needed``; reads no row.

    Of a CSV file without a header, they are the cells of a row: they are not to be stored.

    Raises:
        DataError: The file is absent, empty or no such table.
    """
    with _file_faults(path):
        if _ending(path) not in PARQUET:
            return _read_header(path, needed)[0]
        import pyarrow as pa
        from pyarrow import parquet

        with contextlib.suppress(pa.ArrowException):
            names: list[str] = parquet.read_schema(path).names
            return names
    raise DataError(_NO_PARQUET.format(path))


@contextlib.contextmanager
def _file_faults(path: Path) -> Iterator[None]:
    """Raise DataError where the file at ``path`` cannot be read."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; correct the path in params.yaml") from error
    except IsADirectoryError as error:
        raise DataError(f"{path}: is a folder; name the table's file") from error
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text; save the table as CSV in UTF-8") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a whole gzip file; write it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or 'damaged'})") from error


def _ending(path: Path) -> str:
    name = path.name.lower()
    found = [each for each in (*PARQUET, *CSV) if name.endswith(each)]
    if not found:
        raise DataError(
            f"{path}: the name must end in one of {', '.join((*CSV, *PARQUET))}, which says what "
            "the file is; save other tables, such as spreadsheets, as CSV"
        )
    return found[0]


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def require_columns(path: Path, names: Sequence[str], needed: Sequence[str]) -> None:
    """Raise DataError unless ``names`` are unique and hold all of ``needed``, of the table there.

    The message does not quote names of which none is ``needed``, or some are numbers: they may be
    somebody's row.
    """
    numbers = sum(map(_is_number, names))
    absent = [name for name in needed if name not in names]
    if not {*needed} & {*names} or (absent and numbers):
        listed = ", ".join(map(repr, absent))
        found = "none of the columns" if len(absent) == len({*needed}) else "no column"
        cells = f"{len(names)} cells" + (f", {numbers} of them numbers" if numbers else "")
        raise DataError(
            f"{path}: {found} {listed} is in the first line, which has {cells}; it must name the "
            "columns, spelt in the same way"
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(
            f"{path}: the columns {', '.join(map(repr, repeated))} are there more than once; "
            "rename or delete one of each"
        )
    if not absent:
        return
    near = {name: difflib.get_close_matches(name, names, n=1) for name in absent}
    listed = ", ".join(
        f"{name!r} (nearest: {near[name][0]!r})" if near[name] else repr(name) for name in absent
    )
    shown = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
    raise DataError(
        f"{path}: no column {listed}; the table has {len(names)}: {shown}. Spell "
        "them as the table does"
    )


def _open(path: Path) -> BinaryIO:
    zipped = path.name.lower().endswith(".gz")
    return cast(BinaryIO, gzip.open(path)) if zipped else path.open("rb")


def _read_header(path: Path, needed: Sequence[str]) -> tuple[list[str], str]:
    """The names of the columns, and the separator by which they are most like ``needed``."""
    import io

    with io.TextIOWrapper(_open(path), encoding="utf-8-sig", newline="") as stream:
        text = stream.read(LONGEST_HEADER)
    if not text.strip():
        raise DataError(f"{path}: the file is empty; its first line names the columns")

    def header(separator: str) -> list[str]:
        try:
            return next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])
        except csv.Error:
            return []

    found = {separator: header(separator) for separator in SEPARATORS}
    best = max(SEPARATORS, key=lambda each: (len({*needed} & {*found[each]}), len(found[each])))
    return found[best], best


_FIELDS = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


def _read_csv(
    path: Path,
    separator: str,
    columns: Sequence[str],
    as_text: Sequence[str],
    source: SourceSettings,
) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    usual = arrow_csv.ConvertOptions().null_values
    try:
        table = arrow_csv.read_csv(
            path,
            # With threads, no message knows the number of a row.
            read_options=arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK),
            parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=columns,
                column_types=dict.fromkeys(as_text, pa.string()),
                null_values=[*usual, *source.missing_values],
                decimal_point=source.decimal,
            ),
        )
        if not any(pa.types.is_binary(kind) for kind in table.schema.types):
            return table
        problem = "UTF8"  # a column that is no text is inferred to be bytes
    except pa.ArrowInvalid as error:
        problem = str(error)  # which quotes rows: the error is neither shown nor chained
    if "Empty CSV" in problem:  # a header without a line end
        raise DataError(_NO_ROWS.format(path))
    if "UTF8" in problem:
        raise DataError(f"{path}: not UTF-8 text; save the table as CSV in UTF-8")
    fields = _FIELDS.search(problem)
    if fields is None:
        raise DataError(f"{path}: not a CSV table; write it with one row a line, quoted")
    row, expected, got = fields.groups()
    raise DataError(
        f"{path}: row {row} has {got} cells, but the header (row 1) names {expected} columns; "
        "correct the row, and quote cells that hold the separator or a quote"
    )


def _read_parquet(path: Path, needed: Sequence[str], drop: Sequence[str]) -> pa.Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        # The file alone: from a path, parts of a folder's name would become columns.
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        require_columns(path, names, needed)
        # pandas numbers the rows of a table that it has filtered.
        numbers = {name for name in names if re.fullmatch(r"__index_level_\d+__", name)}
        return file.read(columns=[name for name in names if name not in {*drop, *numbers}])
    except pa.ArrowException:
        pass  # the error may quote cells: it is neither shown nor chained
    raise DataError(_NO_PARQUET.format(path))
