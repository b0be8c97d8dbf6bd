"""Images of digits, shape (1, height, width), values from 0 to 1 by a fixed division.

No statistic of the data scales them, so that nothing of the test rows reaches the training.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from puma.data.base import Dataset, Examples
from puma.data.groups import group_masks
from puma.data.splitting import NOTHING, Extras, hold_out, split_examples
from puma.errors import DataError

FOLDER = "PUMA_DATA_DIR"
DIGITS = tuple("0123456789")
FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


def digits(*, seed: int, test_fraction: float, extras: Extras = NOTHING) -> Dataset:
    """Load scikit-learn's 1797 images of 8×8 pixels, which come with it: sixteenths of full ink.

    Every image is its own subject; image-0001 is scikit-learn's first.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    return split_examples(
        "digits",
        found.images[:, None] / 16,
        found.target,
        DIGITS,
        owner="image",
        seed=seed,
        test_fraction=test_fraction,
        extras=extras,
    )


def mnist(
    *,
    folder: Path | str | None = None,
    download: bool = False,
    seed: int = 0,
    extras: Extras = NOTHING,
) -> Dataset:
    """Load MNIST as published: 60 000 images of 28×28 pixels to train on, 10 000 to test.

    image-00001 owns the first training image, image-60001 the first test image. Float32 rows
    take 220 MB; on one core the digest takes 1 s, saving 7 s.

    Args:
        folder: It holds MNIST/raw/ with the four unpacked IDX files. None is the folder that
            the environment variable PUMA_DATA_DIR names.
        download: Whether files that are not there yet may be fetched from the network.
        seed: Of what ``extras`` draws.
        extras: What is wanted beside.

    Raises:
        DataError: No folder is named, MNIST is not in it, a file of it is damaged, or it cannot
            be fetched.
    """
    chosen = folder or os.environ.get(FOLDER)
    if not chosen:
        raise DataError(
            f"MNIST does not come with PUMA; set {FOLDER} or data.folder to a folder that holds "
            "MNIST/raw/, or to any folder together with data.download: true to fetch it"
        )
    images, labels = _read(Path(chosen).expanduser(), train=True, download=download)
    others, their_labels = _read(Path(chosen).expanduser(), train=False, download=download)
    ids = [f"image-{row:05d}" for row in range(1, len(images) + len(others) + 1)]
    train = Examples.of(_scaled(images), labels, ids[: len(images)])
    test = Examples.of(_scaled(others), their_labels, ids[len(images) :])
    group_masks("mnist", extras.groups, {})  # refuses any
    rows = np.arange(len(train))
    kept, _, *held_out = hold_out(
        "mnist", labels.numpy(), train.subject_ids, (rows, rows[:0]), extras, seed=seed
    )
    if not held_out:
        return Dataset("mnist", train, test, DIGITS)
    validation = train.subset(torch.from_numpy(held_out[0]))
    return Dataset(
        "mnist", train.subset(torch.from_numpy(kept)), test, DIGITS, validation=validation
    )


def _scaled(images: Tensor) -> Tensor:
    return images[:, None].to(torch.float32).div_(255)


def _read(root: Path, *, train: bool, download: bool) -> tuple[Tensor, Tensor]:
    """(n, 28, 28) uint8 and (n,) int64 of one split."""
    from torchvision.datasets import MNIST

    raw = root / "MNIST" / "raw"
    if not download and not all((raw / name).is_file() for name in FILES):
        raise DataError(
            f"{raw} does not hold MNIST ({', '.join(FILES)}, unpacked); set {FOLDER} or "
            "data.folder to a folder whose MNIST/raw/ does, or set data.download: true to "
            "fetch it"
        )
    try:
        found = MNIST(root, train=train, download=download)
    except Exception as error:  # torchvision raises network, assertion and parsing errors alike
        remedy = "check the network" if download else "delete them and set data.download: true"
        raise DataError(
            f"MNIST's files in {raw} cannot be {'fetched' if download else 'read'} "
            f"({type(error).__name__}: {' '.join(str(error).split())}); copy them there again, "
            f"or {remedy}"
        ) from error
    return found.data, found.targets
