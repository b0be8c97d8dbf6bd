"""Deletion requests: from the ids of people to the rows that must go, checked before any use."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from puma.data.base import Dataset
from puma.data.subject_ids import appearance
from puma.errors import DeletionError, require_path, require_type
from puma.html_table import counted, html_table
from puma.project.files import PRIVATE, write_text
from puma.requests.digest import keyed_digest
from puma.requests.request_file import SALT, SUBJECT, read_subject_ids

_NO_ROWS = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True, repr=False, eq=False)
class DeletionSet:
    """Who is to be removed from ``dataset``, and which training rows that is.

    Attributes:
        dataset: The data whose rows are meant.
        subject_ids: Sorted ids that own at least one training row.
        rows: (m,) ascending long indices into ``dataset.train``: every row of every subject.
        test_rows: (t,) the same people's rows in ``dataset.test``. No weight came from them.
        n_duplicates: How many lines of the request named a subject again.
        test_only_ids: Requested ids that own held-out rows, for testing or validation, and no
            training row: nothing to remove.
        validation_rows: (v,) all requested people's rows in ``dataset.validation``. No weight came
            from them, and they steer no removal.
    """

    dataset: Dataset
    subject_ids: tuple[str, ...]
    rows: Tensor
    test_rows: Tensor
    n_duplicates: int = 0
    test_only_ids: tuple[str, ...] = ()
    validation_rows: Tensor = _NO_ROWS

    def __repr__(self) -> str:
        return f"DeletionSet({self.dataset.name!r}, {self.summary})"

    def _repr_html_(self) -> str:
        """Counts alone: a digest without the project's key would tell who was removed."""
        lines = {
            "people": len(self.subject_ids),
            "training rows": f"{len(self.rows)} of {len(self.dataset.train)}",
            "their test rows, left as they are": len(self.test_rows),
            "their validation rows, left out": len(self.validation_rows),
            "lines of the request that named somebody again": self.n_duplicates,
            "people without a training row, nothing to remove": len(self.test_only_ids),
        }
        shown = {name: count for name, count in lines.items() if count}
        return html_table(f"Deletion set of {self.dataset.name}", shown.items())

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def summary(self) -> str:
        """The size of the set, in counts alone."""
        people = counted(len(self.subject_ids), "subject")
        text = f"{people}, {counted(len(self.rows), 'training row')}"
        if self.n_duplicates:
            text += f"; {counted(self.n_duplicates, 'duplicated line')} merged"
        if len(self.test_rows):
            text += f"; {counted(len(self.test_rows), 'test row')} of theirs, left as they are"
        if len(self.validation_rows):
            text += f"; {counted(len(self.validation_rows), 'validation row')} of theirs, left out"
        if self.test_only_ids:
            where = "test" if self.dataset.validation is None else "test or validation"
            ids = counted(len(self.test_only_ids), "id")
            text += f"; {ids} only in the {where} split, nothing to remove"
        return text

    @property
    def remaining(self) -> Dataset:
        """The dataset without these people's training and validation rows."""
        validation = self.dataset.validation
        if validation is not None and len(self.validation_rows):
            validation = validation.without(self.validation_rows)
        return replace(
            self.dataset,
            train=self.dataset.train.without(self.rows),
            validation=validation if validation is not None and len(validation) else None,
        )

    def digest(self, key: bytes) -> str:
        """The keyed digest of the dataset's name and the sorted ids."""
        return keyed_digest(key, self.dataset.name, *self.subject_ids)

    @classmethod
    def read(
        cls, path: Path | str, dataset: Dataset, *, allow_class_removal: bool = False
    ) -> DeletionSet:
        """Read the CSV at ``path``: subject_id[, request_id, requested_at, reason].

        Ids that are named twice are merged and counted.

        Raises:
            DeletionError: The file is no such CSV (see :func:`read_subject_ids`), or the ids are
                not to be removed (see :meth:`of`). ``unknown_ids`` has those that the dataset
                does not hold.
        """
        require_path(path, DeletionError)
        return cls.of(
            read_subject_ids(Path(path)), dataset, allow_class_removal=allow_class_removal
        )

    @classmethod
    def of(
        cls, subject_ids: Iterable[str], dataset: Dataset, *, allow_class_removal: bool = False
    ) -> DeletionSet:
        """The deletion set of ``subject_ids``.

        Args:
            subject_ids: Ids as the dataset spells them.
            dataset: The data that they are looked up in.
            allow_class_removal: Whether every training row of a class may go.

        Raises:
            DeletionError: There are no ids, one is no string or unknown, none owns a training
                row, or they own the whole training set, or a whole class.
        """
        require_type(
            dataset, Dataset, "the dataset", DeletionError, "pass what load_dataset returns"
        )
        lines = _strings(subject_ids)
        if not lines:
            raise DeletionError(
                f"the deletion set for {dataset.name!r} is empty; name at least one {SUBJECT}"
            )
        ids = frozenset(lines)
        in_train = ids.intersection(dataset.train.subject_ids.tolist())
        in_test = ids.intersection(dataset.test.subject_ids.tolist())
        validation = dataset.validation or dataset.test.subset(_NO_ROWS)
        in_validation = ids.intersection(validation.subject_ids.tolist())
        _refuse_unknown(ids - in_train - in_test - in_validation, ids, dataset)
        if not in_train:
            where = "test or validation split" if in_validation else "test split"
            raise DeletionError(
                f"all {len(ids)} ids of the deletion set lie only in the {where} of "
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
            test_only_ids=tuple(sorted((in_test | in_validation) - in_train)),
            validation_rows=validation.owned_by(in_validation),
        )

    def write(self, path: Path, *, reason: str = "", key: bytes | None = None) -> None:
        """Write the validated request, one line per subject, whole or not at all.

        Args:
            path: Of the CSV file.
            reason: Free text, the same in every line.
            key: The project's key. It adds a column ``salt`` that nobody without the key can
                compute. DVC notes a plain MD5 of this file in dvc.lock; without the salt, anybody
                could hash every candidate request and compare. The same request gives the same
                file.
        """
        constant = {"reason": reason}
        if key is not None:
            # Not the digest: that one is published in the registry.
            purpose = "salt of the written request"
            constant[SALT] = keyed_digest(key, purpose, self.dataset.name, *self.subject_ids)
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow((SUBJECT, *constant))
        ids = (*self.subject_ids, *self.test_only_ids)
        writer.writerows((name, *constant.values()) for name in ids)
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


def _refuse_unknown(unknown: frozenset[str], asked: frozenset[str], dataset: Dataset) -> None:
    if not unknown:
        return
    parts = [dataset.train, dataset.test, *([dataset.validation] if dataset.validation else [])]
    known = {name for part in parts for name in part.subject_ids.tolist()}
    looks = {appearance(name) for name in known}
    alike = sum(appearance(name) in looks for name in unknown)
    hint = (
        ""
        if not alike
        else (
            f". {alike} of them look like ids of the dataset, but are written with other Unicode "
            "characters (such as é as one character or as two): copy these from the data"
        )
    )
    error = DeletionError(
        f"{len(unknown)} of {len(asked)} subject ids are not in dataset {dataset.name!r}; "
        f"correct or drop them{hint}",
        unknown_ids=tuple(sorted(unknown)),
    )
    error.add_note("This error's unknown_ids has them.")  # for callers: a traceback shows it
    raise error


def _refuse_too_much(rows: Tensor, dataset: Dataset, allow_class_removal: bool) -> None:
    kept = dataset.train.without(rows).labels
    if len(kept) == 0:
        raise DeletionError(
            f"the deletion set covers all {len(dataset.train)} training rows of "
            f"{dataset.name!r}; no model can stand on nothing: retire the model instead"
        )
    if dataset.task.is_regression:
        return
    emptied = sorted(set(dataset.train.labels.tolist()) - set(kept.tolist()))
    if emptied and not allow_class_removal:
        names = ", ".join(dataset.classes[label] for label in emptied)
        raise DeletionError(
            f"the deletion set takes every training row of class {names} of {dataset.name!r}; "
            "set allow_class_removal if the model should forget the whole class"
        )
