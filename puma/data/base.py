"""Examples that never lose their owner: features, labels and subject ids move together."""

from __future__ import annotations

import copy
import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from puma.data.subject_ids import subject_array
from puma.data.task import CLASSIFICATION, Task
from puma.errors import DataError, require_path, require_type
from puma.project.files import PRIVATE, framed, written


@dataclass(frozen=True, repr=False, eq=False)
class Examples:
    """n labelled rows and who owns each.

    Attributes:
        features: (n, ...) float32 or float64, cut off from any graph.
        labels: (n,) int64 classes; of a regression, numbers of the features' dtype.
        subject_ids: (n,) strings; one subject may own several rows.
        task: What the labels are.
        groups: (n,) bool, whether each row belongs to a group, by the expression that picks it.

    Raises:
        DataError: Lengths differ, features or labels are not such numbers, or an id is not to be
            used (see :func:`puma.data.subject_ids.subject_array`).
    """

    features: Tensor
    labels: Tensor
    subject_ids: np.ndarray
    task: Task = CLASSIFICATION
    groups: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_other_tensors(self.features, self.labels)
        labels = self.task.checked(self.labels, self.features.dtype)
        if self.features.ndim == 0:
            raise DataError("features must have a row per example, got a single number")
        if self.features.layout != torch.strided or self.features.is_meta:
            raise DataError(
                f"features must be a dense tensor of numbers, got {self.features.layout} on "
                f"{self.features.device}; convert them with .to_dense()"
            )
        if self.features.device != self.labels.device:
            raise DataError(
                f"features are on {self.features.device} and labels on {self.labels.device}; move "
                "one of them"
            )
        sizes = (len(self.features), len(self.labels), len(self.subject_ids))
        if len(set(sizes)) != 1:
            raise DataError(
                f"features, labels and subject ids must have one length, got {sizes}; "
                "pass one row, one label and one id per example"
            )
        if self.features.dtype not in (torch.float32, torch.float64):
            raise DataError(
                "features must be 32- or 64-bit floating point, "
                f"got {self.features.dtype}; convert them with .float()"
            )
        if not torch.isfinite(self.features).all():
            raise DataError("features hold NaN or infinity; impute them before building Examples")
        for name, rows in self.groups.items():
            if rows.dtype != torch.bool or rows.shape != (len(self.labels),):
                raise DataError(
                    f"the group {name!r} must be one truth value for each of the "
                    f"{len(self.labels)} examples, got shape {tuple(rows.shape)} of {rows.dtype}"
                )
        object.__setattr__(self, "features", self.features.detach())
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "subject_ids", subject_array(self.subject_ids))

    @classmethod
    def of(
        cls,
        features: Tensor,
        labels: Tensor,
        subject_ids: Sequence[str] | np.ndarray | None = None,
        *,
        task: Task = CLASSIFICATION,
    ) -> Examples:
        """Make examples from tensors; without ids, row i is its own subject, str(i)."""
        if subject_ids is None:
            _refuse_other_tensors(features, labels)
            subject_ids = np.arange(labels.numel()).astype(np.str_)
        return cls(features, labels, subject_array(subject_ids), task)

    def of_task(self, task: Task) -> Examples:
        """Return the same rows, whose labels ``task`` describes: one of the same name."""
        other = copy.copy(self)
        object.__setattr__(other, "task", task)
        return other

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        # Rows and ids are personal data and a repr ends up in logs and tracebacks.
        return f"Examples(n={len(self)}, features={tuple(self.features.shape[1:])})"

    def subset(self, rows: Tensor) -> Examples:
        """Return the examples at ``rows`` (long indices, or a boolean mask of length n).

        Raises:
            DataError: ``rows`` are no such tensor, or there is no such row.
        """
        chosen = self._indices(rows)
        return Examples(
            self.features[chosen],
            self.labels[chosen],
            self.subject_ids[chosen.cpu().numpy()],
            self.task,
            {name: rows[chosen.cpu()] for name, rows in self.groups.items()},
        )

    def to(self, device: torch.device | str) -> Examples:
        """Return the same rows with features and labels on ``device``."""
        if self.features.device == self.labels.device == torch.device(device):
            return self
        other = copy.copy(self)
        object.__setattr__(other, "features", self.features.to(device))
        object.__setattr__(other, "labels", self.labels.to(device))
        return other

    def with_groups(self, groups: Mapping[str, Tensor]) -> Examples:
        """Return the same rows with other groups."""
        return Examples(self.features, self.labels, self.subject_ids, self.task, groups)

    def without(self, rows: Tensor) -> Examples:
        """Return all examples but those at ``rows``, in their order; see :meth:`subset`."""
        keep = torch.ones(len(self), dtype=torch.bool)
        keep[self._indices(rows)] = False
        return self.subset(keep)

    def _indices(self, rows: Tensor) -> Tensor:
        """Long indices of ``rows``, checked."""
        _refuse_other_rows(rows)
        if rows.dtype == torch.bool:
            if rows.shape != (len(self),):
                raise DataError(f"a mask of shape {tuple(rows.shape)} for {len(self)} examples")
            return rows.nonzero().flatten()
        if rows.ndim != 1 or rows.dtype not in (torch.int64, torch.int32):
            raise DataError(
                "rows must be integer indices in one dimension, or a mask, got shape "
                f"{tuple(rows.shape)} of {rows.dtype}"
            )
        n = len(self)
        if len(rows) and not (-n <= int(rows.min()) and int(rows.max()) < n):
            raise DataError(
                f"rows run from {int(rows.min())} to {int(rows.max())}, but there are {n} examples"
            )
        return rows

    def owned_by(self, subject_ids: Sequence[str] | np.ndarray | frozenset[str]) -> Tensor:
        """(m,) ascending row indices of every example that one of ``subject_ids`` owns."""
        owned = np.isin(self.subject_ids, np.asarray(sorted(subject_ids), dtype=np.str_))
        return torch.from_numpy(np.flatnonzero(owned))


def _refuse_other_tensors(features: object, labels: object) -> None:
    for part, given in (("features", features), ("labels", labels)):
        if not isinstance(given, Tensor):
            raise DataError(
                f"{part} must be a PyTorch tensor, got {type(given).__name__}; convert an "
                "array with torch.from_numpy()"
            )


def _refuse_other_rows(rows: object) -> None:
    if not isinstance(rows, Tensor):
        raise DataError(
            f"rows must be a PyTorch tensor of row numbers, got {type(rows).__name__}; convert "
            "them with torch.as_tensor()"
        )


# What numpy raises for a file that is another kind, cut short, or damaged.
NOT_AN_ARCHIVE = (
    EOFError,
    KeyError,
    OSError,
    RuntimeError,  # a zip that claims encryption, or a compression that nobody knows
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Column:
    """What a column of a user's own table is, and what became of it.

    Attributes:
        column: Its name.
        type: numeric, boolean, date, categorical; or its role: target, subject, split.
        missing: How many cells are.
        distinct: How many values there are, a missing one not counted.
        policy: In words, which features were made of it.
    """

    column: str
    type: str
    missing: int
    distinct: int
    policy: str


@dataclass(frozen=True, repr=False, eq=False)
class Dataset:
    """A training split, a test split, and the names of the classes.

    Attributes:
        name: Of the dataset.
        train: The rows to train on. Their task, and the classes below, are that of both splits.
        test: The rows to test on.
        validation: Rows that criteria are measured on, which nothing is trained or tested on; None
            where there are none.
        classes: Their names, in the order of their numbers; none for a regression.
        source: SHA-256 of what the user's own rows were read from; empty for rows of PUMA's.
        columns: What became of each column of the user's own table; not stored by :meth:`save`.

    Raises:
        DataError: A split is empty, has a label without a class, or rows of another
            shape than the other; or the dataset or two classes have no name of their own.
    """

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    source: str = ""
    columns: tuple[Column, ...] = ()
    validation: Examples | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name):
            raise DataError(f"a dataset must have a name, a text, got {self.name!r}")
        names = tuple(self.classes) if isinstance(self.classes, tuple | list) else (None,)
        if not all(isinstance(each, str) for each in names) or len({*names}) < len(names):
            raise DataError(
                f"dataset {self.name!r}: classes must be a tuple of names, each once, got "
                f"{self.classes!r}"
            )
        for part, examples in self.parts("training"):
            remedy = "make them with Examples.of"
            require_type(examples, Examples, f"the {part} split", DataError, remedy)
            if len(examples) == 0:
                raise DataError(f"dataset {self.name!r}: the {part} split is empty")
            if examples.task.name != self.train.task.name:
                raise DataError(
                    f"dataset {self.name!r}: the training split is of a {self.train.task.name} "
                    f"and the {part} split of a {examples.task.name}; make both of one task"
                )
            if self.train.features.shape[1:] != examples.features.shape[1:]:
                raise DataError(
                    f"dataset {self.name!r}: training and {part} rows differ in shape: "
                    f"{tuple(self.train.features.shape[1:])} and "
                    f"{tuple(examples.features.shape[1:])}"
                )
            if examples.task.is_regression:
                continue
            top = int(examples.labels.max())
            if top >= len(self.classes):
                raise DataError(
                    f"dataset {self.name!r}: a {part} label is {top}, but there are only "
                    f"{len(self.classes)} classes"
                )
        task = replace(self.train.task, classes=names)
        for part, examples in self.parts():
            object.__setattr__(self, part, examples.of_task(task))

    @property
    def task(self) -> Task:
        """What is learnt."""
        return self.train.task

    def __repr__(self) -> str:
        parts = ", ".join(f"{part}={examples!r}" for part, examples in self.parts())
        return f"Dataset({self.name!r}, {parts})"

    def parts(self, train: str = "train") -> list[tuple[str, Examples]]:
        """The splits by name."""
        parts = [(train, self.train), ("test", self.test)]
        return parts if self.validation is None else [*parts, ("validation", self.validation)]

    def to(self, device: torch.device | str) -> Dataset:
        """Return the same data on ``device``."""
        moved = copy.copy(self)
        for part, examples in self.parts():
            object.__setattr__(moved, part, examples.to(device))
        return moved

    @property
    def rows(self) -> Examples:
        """All N rows for training or testing: the former, then the latter."""
        parts = (self.train, self.test)
        return Examples(
            torch.cat([part.features for part in parts]),
            torch.cat([part.labels for part in parts]),
            np.concatenate([part.subject_ids for part in parts]),
            self.task,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of every row, label and owner of all splits, and of the user's own source."""
        arrays = self._arrays()
        digest = hashlib.sha256()
        for piece in framed(self.name.encode(), *([self.source.encode()] if self.source else [])):
            digest.update(piece)
        for key in sorted(arrays):
            header, cells = _npy(arrays[key])
            digest.update((len(header) + cells.nbytes).to_bytes(8, "big"))
            digest.update(header)
            digest.update(cells)
        return digest.hexdigest()

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {"classes": np.asarray(self.classes, dtype=np.str_)}
        for part, examples in self.parts():
            arrays[f"{part}_features"] = examples.features.cpu().numpy()
            arrays[f"{part}_labels"] = examples.labels.cpu().numpy()
            arrays[f"{part}_subject_ids"] = examples.subject_ids
        if self.task.name != CLASSIFICATION.name:
            arrays["task"] = np.asarray(self.task.name)
            arrays["target"] = np.asarray([self.task.centre, self.task.scale])
        return arrays

    def save(self, path: Path) -> None:
        """Write the dataset as one compressed .npz, whole or not at all, for the owner alone."""
        arrays = {"name": np.asarray(self.name), **self._arrays()}
        if self.source:
            arrays["source"] = np.asarray(self.source)
        write_arrays(path, arrays)

    @classmethod
    def load(cls, path: Path) -> Dataset:
        """Read what :meth:`save` wrote.

        Raises:
            DataError: The file is absent or not a dataset.
        """
        require_path(path, DataError)
        try:
            with np.load(path, allow_pickle=False) as stored:
                task = CLASSIFICATION
                if "task" in stored:
                    centre, scale = stored["target"].tolist()
                    task = Task(str(stored["task"]), centre=centre, scale=scale)  # type: ignore[arg-type]
                parts = {
                    part: Examples(
                        torch.from_numpy(stored[f"{part}_features"]),
                        torch.from_numpy(stored[f"{part}_labels"]),
                        stored[f"{part}_subject_ids"],
                        task,
                    )
                    for part in ("train", "test", "validation")
                    if f"{part}_labels" in stored
                }
                return cls(
                    str(stored["name"]),
                    parts["train"],
                    parts["test"],
                    tuple(stored["classes"].tolist()),
                    source=str(stored["source"]) if "source" in stored else "",
                    validation=parts.get("validation"),
                )
        except FileNotFoundError as error:
            raise DataError(
                f"{path}: no such dataset; run `dvc repro`, which prepares it"
            ) from error
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        except NOT_AN_ARCHIVE as error:
            raise DataError(f"{path}: not a dataset written by PUMA ({error})") from error


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write one compressed .npz, whole or not at all, for the owner alone.

    The same arrays give the same bytes.
    """
    # As numpy.savez_compressed, which takes twice as long for a file 5 % smaller.
    with (
        written(path, mode=PRIVATE) as stream,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _npy(array: np.ndarray) -> tuple[bytes, memoryview]:
    """The .npy file of ``array``: its header, and its cells, which are not copied."""
    canonical = np.asarray(array.tolist(), np.str_) if array.dtype.kind == "U" else array
    whole = np.ascontiguousarray(canonical)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(whole))
    return header.getvalue(), whole.reshape(-1).view(np.uint8).data
