"""Images: digits against scikit-learn, MNIST against the bytes of its files.

PUMA_DATA_DIR may name a folder with the real MNIST; everything else is done on a tiny one.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from puma.data import Dataset, load_dataset
from puma.errors import DataError

REAL = os.environ.get("PUMA_DATA_DIR")
PARTS = {"train": 7, "t10k": 4}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may reach the network, or see the folder of whoever runs the tests."""

    def refuse(*_: object) -> None:
        raise OSError("the network is off")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.delenv("PUMA_DATA_DIR", raising=False)


def write_idx(path: Path, content: np.ndarray) -> None:
    """The IDX format: two zero bytes, type 8 (uint8), dimensions, sizes, then the bytes."""
    header = struct.pack(f">BBBB{content.ndim}I", 0, 0, 8, content.ndim, *content.shape)
    path.write_bytes(header + content.astype(np.uint8).tobytes())


def read_idx(path: Path) -> np.ndarray:
    content = path.read_bytes()
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part, n in PARTS.items():
        write_idx(raw / f"{part}-images-idx3-ubyte", generator.integers(0, 256, (n, 28, 28)))
        write_idx(raw / f"{part}-labels-idx1-ubyte", generator.integers(0, 10, n))
    return tmp_path


def assert_is_the_files(data: Dataset, folder: Path) -> None:
    first = 1
    for part, examples in (("train", data.train), ("t10k", data.test)):
        images = read_idx(folder / "MNIST" / "raw" / f"{part}-images-idx3-ubyte")
        labels = read_idx(folder / "MNIST" / "raw" / f"{part}-labels-idx1-ubyte")
        assert examples.features.shape == (len(images), 1, 28, 28)
        assert examples.features.dtype == torch.float32
        pixels = examples.features[:, 0].numpy()
        np.testing.assert_array_equal(np.rint(pixels * 255), images)
        assert np.abs(pixels * 255 - images).max() < 1e-4
        assert 0 <= pixels.min() < pixels.max() <= 1
        np.testing.assert_array_equal(examples.labels.numpy(), labels)
        ids = [f"image-{row:05d}" for row in range(first, first + len(images))]
        assert examples.subject_ids.tolist() == ids
        first += len(images)


def test_digits_are_scikit_learn_s() -> None:
    data = load_dataset("digits", seed=2)
    known = load_digits()
    rows = train_test_split(np.arange(1797), test_size=0.25, stratify=known.target, random_state=2)
    assert data.classes == tuple("0123456789")
    for part, expected in zip((data.train, data.test), rows, strict=True):
        assert part.features.shape == (len(expected), 1, 8, 8)
        assert part.features.dtype == torch.float32
        np.testing.assert_array_equal(part.features[:, 0].numpy() * 16, known.images[expected])
        np.testing.assert_array_equal(part.labels.numpy(), known.target[expected])
        assert part.subject_ids.tolist() == [f"image-{row + 1:04d}" for row in expected]
    assert data.digest == load_dataset("digits", seed=2).digest
    assert data.digest != load_dataset("digits", seed=3).digest


def test_mnist_is_the_bytes_of_its_files(folder: Path) -> None:
    assert_is_the_files(load_dataset("mnist", folder=folder), folder)


@pytest.mark.skipif(REAL is None, reason="PUMA_DATA_DIR names no folder with MNIST")
def test_the_real_mnist_is_the_bytes_of_its_files() -> None:
    data = load_dataset("mnist", folder=REAL)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert_is_the_files(data, Path(str(REAL)))
    assert torch.bincount(data.test.labels).tolist() == [
        *(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)  # as published
    ]


def test_mnist_keeps_its_official_split(folder: Path) -> None:
    split = load_dataset("mnist", folder=folder)
    assert load_dataset("mnist", folder=folder, seed=9, test_fraction=0.5).digest == split.digest


def test_the_environment_names_the_folder_unless_the_caller_does(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load_dataset("mnist", folder=str(folder)).digest
    monkeypatch.setenv("PUMA_DATA_DIR", str(folder))
    assert load_dataset("mnist").digest == expected
    monkeypatch.setenv("PUMA_DATA_DIR", str(tmp_path / "nowhere"))
    assert load_dataset("mnist", folder=folder).digest == expected


def test_mnist_survives_save_and_load(folder: Path, tmp_path: Path) -> None:
    data = load_dataset("mnist", folder=folder)
    data.save(tmp_path / "data.npz")
    assert Dataset.load(tmp_path / "data.npz").digest == data.digest


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_folder_both_ways_are_named(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv("PUMA_DATA_DIR", value)
    for download in (False, True):  # a download needs to know where to
        with pytest.raises(
            DataError, match=r"set PUMA_DATA_DIR or data\.folder .* data\.download: true"
        ):
            load_dataset("mnist", download=download)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", ["images-idx3", "labels-idx1"])
def test_an_absent_file_names_both_ways_and_fetches_nothing(
    folder: Path, part: str, kind: str
) -> None:
    raw = folder / "MNIST" / "raw"
    (raw / f"{part}-{kind}-ubyte").unlink()
    before = sorted(raw.iterdir())
    with pytest.raises(
        DataError,
        match=r"does not hold MNIST \(.* PUMA_DATA_DIR or data\.folder .* data\.download: true",
    ):
        load_dataset("mnist", folder=folder)
    assert sorted(raw.iterdir()) == before


def test_nothing_is_written_for_an_absent_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not hold"):
        load_dataset("mnist", folder=tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("download", [False, True])
def test_torchvision_is_told_whether_to_download(
    folder: Path, download: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads: list[Any] = []
    honest = torchvision.datasets.MNIST

    def watched(root: Path, **options: Any) -> Any:
        downloads.append(options["download"])
        return honest(root, **{**options, "download": False})

    monkeypatch.setattr(torchvision.datasets, "MNIST", watched)
    load_dataset("mnist", folder=folder, download=download)
    assert downloads == [download, download]


def test_a_download_without_network_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be fetched \(.*\); copy .* check the network"):
        load_dataset("mnist", folder=tmp_path / "new", download=True)


def test_files_that_are_there_are_not_fetched_again(folder: Path) -> None:
    assert_is_the_files(load_dataset("mnist", folder=folder, download=True), folder)


@pytest.mark.parametrize("content", [b"", b"text", b"\0\0\x08\x03", None])
def test_damaged_files_are_refused(folder: Path, content: bytes | None) -> None:
    path = folder / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5] if content is None else content)
    with pytest.raises(DataError, match=r"cannot be read \(.*delete them and set data\.download"):
        load_dataset("mnist", folder=folder)


def test_files_that_do_not_fit_each_other_are_refused(folder: Path) -> None:
    write_idx(folder / "MNIST" / "raw" / "train-labels-idx1-ubyte", np.zeros(6))
    with pytest.raises(DataError, match=r"one length, got \(7, 6, 7\)"):
        load_dataset("mnist", folder=folder)


@pytest.mark.slow
def test_importing_loads_no_heavy_package() -> None:
    code = (
        "import sys, puma.data, puma.models, puma.requests.demonstration\n"
        "print(sorted({'torchvision', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
