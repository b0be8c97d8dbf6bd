from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puma.data import DATASETS, Dataset, Examples, load_dataset
from puma.errors import DataError

IDS = ["ann", "bob", "ann", "cy", "dee", "bob"]


def examples(**changed: Any) -> Examples:
    """Six rows whose feature, label and owner all follow from the row number."""
    numbers = torch.arange(6)
    parts = {
        "features": torch.stack([numbers, numbers * 10], 1).float(),
        "labels": numbers % 3,
        "subject_ids": IDS,
    }
    return Examples.of(**{**parts, **changed})


def dataset(**changed: Any) -> Dataset:
    parts = {"name": "toy", "train": examples(), "test": examples(), "classes": tuple("abc")}
    return Dataset(**{**parts, **changed})


def assert_rows(found: Examples, rows: list[int]) -> None:
    """Feature, label and owner of every row must have stayed together."""
    assert found.features[:, 0].tolist() == rows
    assert found.features[:, 1].tolist() == [10 * row for row in rows]
    assert found.labels.tolist() == [row % 3 for row in rows]
    assert found.subject_ids.tolist() == [IDS[row] for row in rows]


def test_subset_takes_indices_in_their_order_and_masks() -> None:
    assert_rows(examples().subset(torch.tensor([4, 0, 2])), [4, 0, 2])
    assert_rows(examples().subset(torch.tensor([0, 1, 1, 0, 0, 1], dtype=torch.bool)), [1, 2, 5])
    assert_rows(examples().subset(torch.tensor([], dtype=torch.long)), [])


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(DataError, match=r"mask of shape \(4,\) for 6 examples"):
        examples().subset(torch.ones(4, dtype=torch.bool))


def test_without_keeps_the_others_in_their_order() -> None:
    assert_rows(examples().without(torch.tensor([5, 0])), [1, 2, 3, 4])
    assert_rows(examples().without(torch.tensor([], dtype=torch.long)), list(range(6)))
    assert_rows(examples().subset(torch.tensor([5, 3, 1])).without(torch.tensor([1])), [5, 1])


@pytest.mark.parametrize("kind", [list, frozenset, np.array])
def test_owned_by_finds_every_row_of_every_owner(kind: Callable[[list[str]], Any]) -> None:
    assert examples().owned_by(kind(["bob", "ann", "nobody"])).tolist() == [0, 1, 2, 5]
    assert examples().owned_by(frozenset()).tolist() == []


def test_without_ids_every_row_is_its_own_subject() -> None:
    assert Examples.of(torch.zeros(3, 1), torch.zeros(3).long()).subject_ids.tolist() == list("012")


def test_features_are_cut_off_from_their_graph(tmp_path: Path) -> None:
    features = torch.ones(6, 2, requires_grad=True)
    for given in (features, features * 2):
        found = examples(features=given)
        assert not found.features.requires_grad
        assert torch.equal(found.features, given.detach())
        data = dataset(train=found)
        data.save(tmp_path / "data.npz")
        assert Dataset.load(tmp_path / "data.npz").digest == data.digest
    assert features.requires_grad


def test_labels_become_int64() -> None:
    assert examples(labels=torch.ones(6, dtype=torch.int32)).labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"features": torch.zeros(5, 2)}, r"one length, got \(5, 6, 6\)"),
        ({"labels": torch.zeros(7, dtype=torch.long)}, r"one length, got \(6, 7, 6\)"),
        ({"subject_ids": IDS[:-1]}, r"one length, got \(6, 6, 5\)"),
        ({"features": torch.full((6, 2), torch.nan)}, "NaN or infinity"),
        ({"features": torch.full((6, 2), -torch.inf)}, "NaN or infinity"),
        ({"features": torch.zeros(6, 2, dtype=torch.int64)}, r"floating point, got torch\.int64"),
        (
            {"features": torch.zeros(6, 2, dtype=torch.bfloat16)},
            r"got torch\.bfloat16; convert them with \.float\(\)",
        ),
        ({"features": torch.zeros(6, 2, dtype=torch.half)}, r"32- or 64-bit .* got torch\.float16"),
        ({"labels": torch.tensor([0, 1, 2, -3, 0, 0])}, "labels must be >= 0, got -3"),
        ({"labels": torch.zeros(6)}, r"integer class number .* got shape \(6,\) of torch\.float32"),
        ({"labels": torch.zeros(6, dtype=torch.bool)}, r"of torch\.bool"),
        ({"labels": torch.zeros(6, 1, dtype=torch.int64)}, r"got shape \(6, 1\)"),
    ],
)
def test_malformed_examples_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        examples(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train": examples().without(torch.arange(6))}, "'toy': the training split is empty"),
        ({"test": examples().without(torch.arange(6))}, "'toy': the test split is empty"),
        ({"classes": ("a", "b")}, "a training label is 2, but there are only 2 classes"),
        (
            {"test": examples(labels=torch.full((6,), 3))},
            "a test label is 3, but there are only 3 classes",
        ),
        (
            {"test": examples(features=torch.zeros(6, 5))},
            r"training and test rows differ in shape: \(2,\) and \(5,\)",
        ),
    ],
)
def test_malformed_datasets_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset(**changed)


def test_reprs_hold_counts_alone() -> None:
    numbers = torch.full((6, 2), 123.5)
    text = repr(dataset(train=examples(features=numbers)))
    assert text == (
        "Dataset('toy', train=Examples(n=6, features=(2,)), test=Examples(n=6, features=(2,)))"
    )


@pytest.mark.parametrize("name", ["german_credit", "breast_cancer"])
def test_save_and_load_are_bit_exact(name: str, tmp_path: Path) -> None:
    original = load_dataset(name, seed=4)
    original.save(tmp_path / "new" / "folder" / "data.npz")
    restored = Dataset.load(tmp_path / "new" / "folder" / "data.npz")
    assert (restored.name, restored.classes) == (name, original.classes)
    for before, after in ((original.train, restored.train), (original.test, restored.test)):
        assert after.features.dtype == before.features.dtype == torch.float32
        assert torch.equal(after.features, before.features)
        assert torch.equal(after.labels, before.labels)
        np.testing.assert_array_equal(after.subject_ids, before.subject_ids)
    assert restored.digest == original.digest


def test_saved_rows_are_for_the_owner_alone(tmp_path: Path) -> None:
    dataset().save(tmp_path / "data.npz")
    assert (tmp_path / "data.npz").stat().st_mode & 0o777 == 0o600


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.npz", tmp_path / "longer-name.npz"
    dataset().save(first)
    dataset().save(second)
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:  # the clock would show up here
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    Dataset.load(first).save(second)
    assert first.read_bytes() == second.read_bytes()


def test_digest_changes_with_every_single_entry() -> None:
    digests = {dataset().digest, dataset(name="other").digest, dataset(classes=tuple("abd")).digest}
    for part in ("train", "test"):
        for row in range(6):
            whole = examples()
            for column in range(2):
                features = whole.features.clone()
                features[row, column] = torch.nextafter(features[row, column], torch.tensor(99.0))
                digests.add(dataset(**{part: examples(features=features)}).digest)
            labels = whole.labels.clone()
            labels[row] = (labels[row] + 1) % 3
            digests.add(dataset(**{part: examples(labels=labels)}).digest)
            ids = [*IDS[:row], "eve", *IDS[row + 1 :]]
            digests.add(dataset(**{part: examples(subject_ids=ids)}).digest)
    assert len(digests) == 3 + 2 * 6 * 4


def test_digest_sees_the_order_of_rows_and_the_split() -> None:
    turned, short = examples().subset(torch.arange(5, -1, -1)), examples().subset(torch.arange(5))
    variants = [dataset(train=turned), dataset(train=short), dataset(test=short)]
    assert len({dataset().digest, *(each.digest for each in variants)}) == 4


def test_digest_ignores_how_memory_is_laid_out() -> None:
    columns_first = examples().features.T.contiguous().T
    assert not columns_first.is_contiguous()
    wide = np.asarray(IDS, dtype="<U50")
    same = dataset(train=examples(features=columns_first, subject_ids=wide))
    assert same.digest == dataset().digest


def _truncated(path: Path) -> None:
    dataset().save(path)
    path.write_bytes(path.read_bytes()[:-40])


def _damaged(path: Path) -> None:
    dataset().save(path)
    with zipfile.ZipFile(path) as archive:
        start = archive.infolist()[2].header_offset + 60
    content = bytearray(path.read_bytes())
    content[start : start + 40] = bytes(40)
    path.write_bytes(content)


def _with_entry_bytes(offset: int, value: bytes) -> Callable[[Path], None]:
    """A zip whose directory describes every entry wrongly."""

    def spoil(path: Path) -> None:
        dataset().save(path)
        content = bytearray(path.read_bytes())
        for match in re.finditer(rb"PK\x01\x02", bytes(content)):
            start = match.start()
            content[start + offset : start + offset + len(value)] = value
        path.write_bytes(content)

    return spoil


def _pickled(path: Path) -> None:
    ids = np.asarray(IDS, dtype=object)
    np.savez(path, name="toy", classes=["a"], train_subject_ids=ids)  # type: ignore[arg-type]


def _without_labels(path: Path) -> None:
    dataset().save(path)
    with np.load(path) as stored:
        kept = {name: stored[name] for name in stored.files if name != "test_labels"}
    np.savez(path, **kept)


def _bare_array(path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    path.write_bytes(buffer.getvalue())


@pytest.mark.parametrize(
    "spoil",
    [
        _truncated,
        _damaged,
        _pickled,
        _without_labels,
        _bare_array,
        _with_entry_bytes(10, b"\x63\x00"),
        _with_entry_bytes(8, b"\x01\x00"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("subject_id\n1\n"),
        os.mkdir,
    ],
    ids=[
        "truncated",
        "damaged",
        "pickle",
        "no labels",
        "bare array",
        "compression",
        "encrypted",
        "empty",
        "text",
        "folder",
    ],
)
def test_files_that_are_no_dataset_are_refused(
    spoil: Callable[[Path], object], tmp_path: Path
) -> None:
    spoil(tmp_path / "data.npz")
    with pytest.raises(DataError, match=r"data\.npz: not a dataset written by PUMA"):
        Dataset.load(tmp_path / "data.npz")


def test_an_absent_dataset_names_the_stage_to_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.npz: no such dataset; run `dvc repro`"):
        Dataset.load(tmp_path / "data.npz")


@pytest.mark.parametrize("name", sorted({*DATASETS} - {"mnist"}))  # which does not come with PUMA
def test_every_dataset_is_split_by_its_seed_and_standardised(name: str) -> None:
    first, again, other = (load_dataset(name, seed=seed) for seed in (3, 3, 4))
    assert first.name == name
    assert first.digest == again.digest != other.digest
    rows = len(first.train) + len(first.test)
    assert len(first.test) == pytest.approx(0.25 * rows, abs=max(1, len(first.classes)))
    for part in (first.train, first.test):
        if first.task.is_regression:
            assert float(part.labels.double().std()) == pytest.approx(1, rel=0.25)
        else:
            assert part.labels.unique().tolist() == list(range(len(first.classes)))
        assert part.features.dtype == torch.float32
        assert float(part.features.abs().mean()) < 3  # scaled: of order 1


@pytest.mark.parametrize(
    "changed",
    [
        {"features": np.zeros((6, 2))},
        {"features": torch.tensor(1.0)},
        {"features": torch.zeros(6, 2).to_sparse()},
        {"labels": [0, 1, 2, 0, 1, 2]},
        {"subject_ids": np.array([IDS]).T},
    ],
    ids=["array", "number", "sparse", "list", "column of ids"],
)
def test_what_is_no_tensor_of_rows_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"must"):
        examples(**changed)


@pytest.mark.parametrize(
    "rows", [None, [0], torch.tensor([6]), torch.tensor([-7]), torch.tensor([0.0])]
)
def test_rows_that_are_not_there_are_refused(rows: Any) -> None:
    for choose in (examples().subset, examples().without):
        with pytest.raises(DataError, match="rows"):
            choose(rows)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": None},
        {"name": ""},
        {"classes": ("a", "b", "b")},
        {"classes": (0, 1, 2)},
        {"train": None},
    ],
    ids=str,
)
def test_a_dataset_of_other_parts_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        dataset(**changed)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "0", None, True])
def test_a_seed_that_no_generator_takes_is_refused(seed: Any) -> None:
    with pytest.raises(DataError, match="a seed must be a whole number"):
        load_dataset("radial", seed=seed)


def test_the_digest_is_that_of_the_files_that_numpy_would_write() -> None:
    data = load_dataset("two_moons")
    arrays = {"classes": np.asarray(data.classes)}
    for part, examples in (("train", data.train), ("test", data.test)):
        arrays[f"{part}_features"] = examples.features.numpy()
        arrays[f"{part}_labels"] = examples.labels.numpy()
        arrays[f"{part}_subject_ids"] = examples.subject_ids
    for source in ("", "0815"):
        digest = hashlib.sha256()
        for part in [b"two_moons", source.encode(), *(arrays[name] for name in sorted(arrays))]:
            written = io.BytesIO()
            written.write(part) if isinstance(part, bytes) else np.save(written, part)
            content = written.getvalue()
            if content:
                digest.update(len(content).to_bytes(8, "big") + content)
        assert replace(data, source=source).digest == digest.hexdigest()
