"""The file of a deletion request: a CSV with a subject_id in every line."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path

from puma.data.subject_ids import read_id
from puma.errors import DeletionError

SUBJECT = "subject_id"
COLUMNS = (SUBJECT, "request_id", "requested_at", "reason")
SALT = "salt"  # a column of the requests that PUMA writes


def read_subject_ids(path: Path) -> list[str]:
    """Read the subject_id of every line, in order, repeats included.

    Messages never quote a cell.

    Raises:
        DeletionError: The file cannot be read, has no, unknown or repeated columns, a blank id or
            a malformed time.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            lines = [(reader.line_num, cells) for cells in reader if cells]
    except FileNotFoundError as error:
        raise DeletionError(f"{path}: no such deletion request") from error
    except OSError as error:
        raise DeletionError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DeletionError(f"{path}: not UTF-8 text; save the request as UTF-8 CSV") from error
    except ValueError as error:  # of a path that no file can have
        raise DeletionError(f"{str(path)!r}: cannot be read ({error}); correct the path") from error
    except csv.Error as error:
        raise DeletionError(f"{path}: not a CSV file ({error})") from error
    if not lines:
        raise DeletionError(f"{path}: the file is empty; its first line names the columns")
    header = _check_header(path, [name.strip() for name in lines[0][1]])
    ids = []
    for number, cells in lines[1:]:
        if len(cells) != len(header):
            raise DeletionError(
                f"{path}, line {number}: {len(cells)} values for {len(header)} columns; "
                "quote values that hold commas"
            )
        record = {name: read_id(cell) for name, cell in zip(header, cells, strict=True)}
        if not record[SUBJECT]:
            raise DeletionError(f"{path}, line {number}: {SUBJECT} is blank")
        _check_time(path, number, record.get("requested_at", ""))
        ids.append(record[SUBJECT])
    return ids


def _check_header(path: Path, header: list[str]) -> list[str]:
    if SUBJECT not in header:
        raise DeletionError(
            f"{path}: no {SUBJECT} column; the first line must name the columns, "
            f"of {', '.join(COLUMNS)}"
        )
    unknown = [name for name in header if name not in (*COLUMNS, SALT)]
    if unknown:
        raise DeletionError(
            f"{path}: {len(unknown)} unknown columns; a request may hold only {', '.join(COLUMNS)}"
        )
    repeated = sorted({name for name in header if header.count(name) > 1})  # known names by now
    if repeated:
        raise DeletionError(f"{path}: columns {', '.join(repeated)} appear twice; keep one of each")
    return header


def _check_time(path: Path, number: int, value: str) -> None:
    try:
        if value:
            datetime.fromisoformat(value)
    except ValueError:
        raise DeletionError(
            f"{path}, line {number}: requested_at is not an ISO 8601 time such as 2026-01-31"
        ) from None
