"""Deletion requests: from the ids of people to the rows that must go, checked before any use."""

from __future__ import annotations

import contextlib
import csv
import hmac
import io
import os
import secrets
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from torch import Tensor

from puma.data.base import Dataset
from puma.errors import DeletionError
from puma.project.files import PRIVATE, framed, write_text

SUBJECT = "subject_id"
COLUMNS = (SUBJECT, "request_id", "requested_at", "reason")
KEY_BYTES = 32


@dataclass(frozen=True, repr=False, eq=False)
class DeletionSet:
    """Who is to be removed from ``dataset``, and which training rows that is.

    subject_ids: sorted ids that own at least one training row.
    rows: (m,) ascending long indices into ``dataset.train``; every row of every subject.
    test_rows: (t,) the same people's rows in ``dataset.test``; no weight came from them.
    n_duplicates: lines of the request that named a subject again.
    test_only_ids: requested ids that own test rows and no training row: nothing to remove.
    """

    dataset: Dataset
    subject_ids: tuple[str, ...]
    rows: Tensor
    test_rows: Tensor
    n_duplicates: int = 0
    test_only_ids: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"DeletionSet({self.dataset.name!r}, {self.summary})"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def summary(self) -> str:
        """What the set amounts to, in counts alone."""
        text = f"{len(self.subject_ids)} subjects, {len(self.rows)} training rows"
        if self.n_duplicates:
            text += f"; {self.n_duplicates} duplicated lines merged"
        if len(self.test_rows):
            text += f"; {len(self.test_rows)} test rows of theirs, left as they are"
        if self.test_only_ids:
            text += f"; {len(self.test_only_ids)} ids only in the test split, nothing to remove"
        return text

    def digest(self, key: bytes) -> str:
        """HMAC-SHA256 of the dataset's name and the sorted ids, each after its length.

        Keyed, because ids are guessable: anybody could hash every candidate and compare.
        """
        parts = (part.encode() for part in (self.dataset.name, *self.subject_ids))
        return hmac.new(key, b"".join(framed(*parts)), "sha256").hexdigest()

    @classmethod
    def read(
        cls, path: Path | str, dataset: Dataset, *, allow_class_removal: bool = False
    ) -> DeletionSet:
        """The request in the CSV at ``path``: subject_id[, request_id, requested_at, reason].

        Duplicated ids are merged and counted. Raises DeletionError, with nothing written, for
        a file that cannot be read or has other or repeated columns; for an empty set, a blank
        id or a malformed time; for ids that the dataset does not hold; and as :meth:`of` does.
        """
        return cls.of(_read_ids(Path(path)), dataset, allow_class_removal=allow_class_removal)

    @classmethod
    def of(
        cls, subject_ids: Iterable[str], dataset: Dataset, *, allow_class_removal: bool = False
    ) -> DeletionSet:
        """The request for ``subject_ids``.

        Raises DeletionError for no ids, for what is no string, for unknown ids, for ids that
        own no training row, for the whole training set, and, unless allowed, for every
        training row of a class.
        """
        lines = _strings(subject_ids)
        if not lines:
            raise DeletionError(
                f"the deletion set for {dataset.name!r} is empty; name at least one {SUBJECT}"
            )
        ids = frozenset(lines)
        in_train = ids.intersection(dataset.train.subject_ids.tolist())
        in_test = ids.intersection(dataset.test.subject_ids.tolist())
        _refuse_unknown(ids - in_train - in_test, ids, dataset)
        if not in_train:
            raise DeletionError(
                f"all {len(ids)} ids of the deletion set lie only in the test split of "
                f"{dataset.name!r}: the model never saw them; delete their rows from the data"
            )
        rows = dataset.train.owned_by(in_train)
        _refuse_too_much(rows, dataset, allow_class_removal)
        return cls(
            dataset=dataset,
            subject_ids=tuple(sorted(in_train)),
            rows=rows,
            test_rows=dataset.test.owned_by(in_test),
            n_duplicates=len(lines) - len(ids),
            test_only_ids=tuple(sorted(in_test - in_train)),
        )

    def write(self, path: Path, *, reason: str = "") -> None:
        """Write the validated request, one line per subject, whole or not at all."""
        ids = (*self.subject_ids, *self.test_only_ids)
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerows([(SUBJECT, "reason"), *((name, reason) for name in ids)])
        write_text(path, buffer.getvalue(), mode=PRIVATE)


def _strings(subject_ids: Iterable[str]) -> list[str]:
    """The ids as a list; the messages name types, never a value."""
    if isinstance(subject_ids, str | bytes) or not isinstance(subject_ids, Iterable):
        raise DeletionError(
            f"the deletion set must be a collection of {SUBJECT} strings, got one "
            f"{type(subject_ids).__name__}; pass a list, such as ['17']"
        )
    lines = list(subject_ids)
    others = sorted({type(line).__name__ for line in lines if not isinstance(line, str)})
    if others:
        raise DeletionError(
            f"every {SUBJECT} of a deletion set must be a string, got {', '.join(others)}; "
            "convert them with str()"
        )
    return lines


def _read_ids(path: Path) -> list[str]:
    """The subject_id of every line, in order, repeats included; messages never quote a cell."""
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
        record = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
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
    unknown = [name for name in header if name not in COLUMNS]
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


def _refuse_unknown(unknown: frozenset[str], asked: frozenset[str], dataset: Dataset) -> None:
    if not unknown:
        return
    raise DeletionError(
        f"{len(unknown)} of {len(asked)} subject ids are not in dataset {dataset.name!r}; "
        "correct or drop them (the error's unknown_ids has them)",
        unknown_ids=tuple(sorted(unknown)),
    )


def _refuse_too_much(rows: Tensor, dataset: Dataset, allow_class_removal: bool) -> None:
    kept = dataset.train.without(rows).labels
    if len(kept) == 0:
        raise DeletionError(
            f"the deletion set covers all {len(dataset.train)} training rows of "
            f"{dataset.name!r}; no model can stand on nothing: retire the model instead"
        )
    emptied = sorted(set(dataset.train.labels.tolist()) - set(kept.tolist()))
    if emptied and not allow_class_removal:
        names = ", ".join(dataset.classes[label] for label in emptied)
        raise DeletionError(
            f"the deletion set takes every training row of class {names} of {dataset.name!r}; "
            "set allow_class_removal if the model should forget the whole class"
        )


def project_key(path: Path) -> bytes:
    """The 32 secret bytes at ``path``, created for the owner alone (0600) on first use.

    Losing the key makes older digests uncheckable; sharing it makes ids guessable from them.
    Raises DeletionError when the file holds anything else.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(descriptor, "w") as stream:
                    stream.write(secrets.token_hex(KEY_BYTES))
                # A hard link never overwrites: of two that start at once, one key survives.
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                Path(temporary).unlink()
        key = bytes.fromhex(path.read_text().strip())
        if len(key) != KEY_BYTES:
            raise ValueError(f"{len(key)} bytes instead of {KEY_BYTES}")
        return key
    except (OSError, ValueError) as error:
        raise DeletionError(
            f"{path}: not a usable key ({error}); restore it from a backup"
        ) from error
