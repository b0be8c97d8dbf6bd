"""Data of one's own that are no table: what the user's function returns."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from puma.data import Dataset, load_dataset
from puma.errors import DataError
from puma.project.own_data import source_digest
from puma.settings import SourceSettings

HEAD = """
import numpy as np, torch
from pathlib import Path
n = 24
owners = [f"{row // 2:03d}" for row in range(n)]
pixels = np.arange(n * 12, dtype=np.float32).reshape(n, 3, 2, 2)
numbers = [row // 2 % 3 for row in range(n)]
"""


def module(folder: Path, code: str, name: str = "shop_photos") -> None:
    (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(code))


def load(folder: Path, code: str, path: str | None = None, **options: object) -> Dataset:
    # A name of its own for each test: Python imports a module once.
    name = f"own_{folder.name}".replace("-", "_").replace("[", "_").replace("]", "_")
    module(folder, code, name)
    source = SourceSettings(source=f"{name}:load", path=path)
    return load_dataset("photos", source=source, root=folder, **options)  # type: ignore[arg-type]


def test_rows_keep_their_shape_their_class_and_their_owner(tmp_path: Path) -> None:
    data = load(tmp_path, "def load(): return pixels, numbers, owners")
    assert data.train.features.shape[1:] == (3, 2, 2)
    assert data.classes == ("0", "1", "2")
    whole = data.rows
    row = (whole.features[:, 0, 0, 0] / 12).long()
    assert sorted(row.tolist()) == list(range(24))
    assert whole.labels.tolist() == (row // 2 % 3).tolist()
    assert whole.subject_ids.tolist() == [f"{int(each) // 2:03d}" for each in row]
    assert not {*data.train.subject_ids.tolist()} & {*data.test.subject_ids.tolist()}
    assert len(data.test) == 6  # a quarter of the people, who own two rows each
    assert len(load(tmp_path, "", test_fraction=0.5).test) == 12


def test_a_stated_split_stands_and_texts_are_classes(tmp_path: Path) -> None:
    code = """
    def load():
        sides = ["test" if row % 5 == 0 else "train" for row in range(n)]
        return torch.as_tensor(pixels).double(), [f"c{10 - k}" for k in numbers], owners, sides
    """
    data = load(tmp_path, code)
    assert (data.test.features[:, 0, 0, 0] / 12).tolist() == [0, 5, 10, 15, 20]
    assert data.train.features.dtype == torch.float64
    assert data.classes == ("c10", "c8", "c9")


def test_token_ids_are_exact(tmp_path: Path) -> None:
    code = """
    def load():
        tokens = np.arange(n * 4).reshape(n, 4) * 170_000
        return tokens, np.asarray(numbers), np.asarray(owners)
    """
    data = load(tmp_path, code)
    assert data.train.features.dtype == torch.float32
    found = np.sort(data.rows.features.long().numpy().ravel())
    assert found.tolist() == [170_000 * each for each in range(24 * 4)]


def test_the_function_is_called_with_its_path_from_the_root(tmp_path: Path) -> None:
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "a.txt").write_text("7")
    code = """
    def load(path: Path):
        return pixels + int((path / "a.txt").read_text()), numbers, owners
    """
    data = load(tmp_path, code, path="album")
    assert float(data.rows.features.min()) == 7


def test_the_digest_is_that_of_the_module_and_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "album" / "deep").mkdir(parents=True)
    photo = tmp_path / "album" / "deep" / "a.txt"
    photo.write_text("7")
    code = "def load(path): return pixels, numbers, owners"
    module(tmp_path, code)
    source = SourceSettings(source="shop_photos:load", path="album")
    digests = [source_digest(source, tmp_path)]
    assert digests[0] == source_digest(source, tmp_path)
    photo.write_text("8")
    digests.append(source_digest(source, tmp_path))
    photo.rename(tmp_path / "album" / "a.txt")
    digests.append(source_digest(source, tmp_path))
    module(tmp_path, code + "  # changed")
    digests.append(source_digest(source, tmp_path))
    assert len({*digests}) == 4
    data = load_dataset("photos", source=source, root=tmp_path)
    assert data.source == digests[-1]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("load = 3", "is of type int; name a function that returns features, labels"),
        ("def load(): return pixels", "returned ndarray; return features, labels, subject ids"),
        ("def load(): return pixels, numbers", "returned 2 things; return features, labels"),
        ("def load(): return pixels, numbers[:3], owners", "parts of lengths 24, 3, 24; return"),
        ("def load(): return pixels, numbers, owners, ['test']", "parts of lengths 24, 24, 24, 1"),
        ("def load(): return pixels[:0], [], []", "returned no rows"),
        ("def load(): return pixels[:, 0, 0, 0], numbers, owners", r"features of shape \(24,\)"),
        ("def load(): return [['a', 'b']] * n, numbers, owners", "no array of numbers but of type"),
        ("def load(): return [[2**24 + 1]] * n, numbers, owners", "int64 features that 32-bit"),
        ("def load(): return pixels, [0.5] * n, owners", "labels of type float; return whole"),
        ("def load(): return pixels, [0] * n, owners", "the target has one value in all 24 rows"),
        ("def load(): return pixels, numbers, ['a'] * n", "3 of 3 classes have rows of one person"),
        ("def load(): return pixels * np.nan, numbers, owners", "features hold NaN or infinity"),
        ("def load(): return pixels, numbers, [' a'] * n", "24 with space around it"),
        ("", r"cannot be imported \(AttributeError.*write \"package.module:function\""),
    ],
)
def test_what_is_no_such_data_is_refused(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(tmp_path, code)


def test_absent_modules_are_refused(tmp_path: Path) -> None:
    for name in ("nowhere_at_all:load", "nowhere_at_all.deep:load", "sys:load"):
        with pytest.raises(DataError, match=rf"source '{name}': there is no module .*params\.yaml"):
            load_dataset("photos", source=SourceSettings(source=name), root=tmp_path)


def test_what_the_function_raises_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        load(tmp_path, "def load(): return 1 / 0")


def test_truth_values_and_tensors_with_gradients_are_numbers_too(tmp_path: Path) -> None:
    code = """
        import torch
        def load(): return pixels > 5, torch.arange(float(n), requires_grad=True), owners
    """
    module(tmp_path, textwrap.dedent(code), "own_truth")
    source = SourceSettings(source="own_truth:load", task="regression")
    data = load_dataset("truth", source=source, root=tmp_path, test_fraction=0.5)
    assert data.train.features.dtype == torch.float32
    assert data.train.features.unique().tolist() == [0.0, 1.0]
    assert not data.train.labels.requires_grad


def test_a_function_may_return_the_numbers_of_a_regression(tmp_path: Path) -> None:
    module(tmp_path, "def load(): return pixels, [k / 3 for k in range(n)], owners", "own_numbers")
    source = SourceSettings(source="own_numbers:load", task="regression")
    data = load_dataset("numbers", source=source, root=tmp_path, test_fraction=0.5)
    assert (data.task.name, data.classes) == ("regression", ())
    row = (data.rows.features[:, 0, 0, 0] / 12).double()
    found = data.task.centre + data.task.scale * data.rows.labels.double()
    torch.testing.assert_close(found, row / 3, rtol=1e-5, atol=1e-5)
