"""Calls of puma.data: rows, and datasets of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from benchmarks.fuzz_calls.calls import BAD_SEEDS, Calls
from benchmarks.fuzz_requests import tiny_dataset
from puma.data import DATASETS, Dataset, Examples, load_dataset
from puma.project.workspace import Workspace
from puma.settings import SourceSettings


def add_examples(calls: Calls) -> None:
    features, labels = torch.zeros(3, 2), torch.tensor([0, 1, 0])
    nan, infinite = features.clone(), features.clone()
    nan[0, 0], infinite[0, 0] = math.nan, math.inf
    calls.good("Examples.of", lambda: len(Examples.of(features, labels)), 3)
    calls.good("Examples.of(double)", lambda: len(Examples.of(features.double(), labels)), 3)
    calls.good("Examples.of(int32 labels)", lambda: len(Examples.of(features, labels.int())), 3)
    calls.good("Examples.of(with ids)", lambda: len(Examples.of(features, labels, list("abc"))), 3)
    calls.good(
        "Examples.of(images)", lambda: len(Examples.of(features.reshape(3, 1, 2, 1), labels)), 3
    )
    calls.good(
        "Examples.of(features of a graph)",
        lambda: Examples.of(features.clone().requires_grad_(), labels).features.requires_grad,
        False,
    )
    calls.bad_each(
        "Examples.of(features",
        (
            None,
            [[0.0, 1.0]] * 3,
            features.numpy(),
            features.long(),
            features.half(),
            features.bfloat16(),
            features.bool(),
            features.to(torch.complex64),
            features.to_sparse(),
            features.to("meta"),
            features[:2],
            torch.tensor(1.0),
            nan,
            infinite,
            "features",
        ),
        lambda value: Examples.of(value, labels),
    )
    calls.bad_each(
        "Examples.of(labels",
        (
            None,
            [0, 1, 0],
            labels.numpy(),
            labels.float(),
            labels.bool(),
            labels.to(torch.uint8),
            labels[:2],
            labels[:, None],
            labels - 1,
            torch.tensor(1),
            "010",
        ),
        lambda value: Examples.of(features, value),
    )
    calls.bad_each(
        "Examples.of(ids",
        (
            ["a", "b"],
            ["a", "b", ""],
            ["a", "b", None],
            ["a", "b", math.nan],
            ["a", "b", " c"],
            ["a", "b", "c\n"],
            ["a", "b", "c\x00"],
            ["a", "b", "\ud800"],
            ["a", "b", "c" * 1001],
            np.array([["a"], ["b"], ["c"]]),
            "a",
            7,
        ),
        lambda value: Examples.of(features, labels, value),
    )
    examples = Examples.of(features, labels)
    calls.good("Examples.subset(rows)", lambda: len(examples.subset(torch.tensor([2, 0]))), 2)
    calls.good("Examples.subset(mask)", lambda: len(examples.subset(labels == 0)), 2)
    calls.good("Examples.without(rows)", lambda: len(examples.without(torch.tensor([1]))), 2)
    rows = (
        None,
        torch.tensor([3]),
        torch.tensor([-4]),
        torch.tensor([0.0]),
        torch.ones(2, dtype=torch.bool),
        torch.ones(3, 1, dtype=torch.bool),
    )
    calls.bad_each("Examples.subset(rows", rows, examples.subset)
    calls.bad_each("Examples.without(rows", rows, examples.without)


def add_datasets(calls: Calls) -> None:
    data = tiny_dataset()
    for name in sorted(DATASETS):
        if name != "mnist":
            calls.good(f"load_dataset({name!r})", lambda name=name: load_dataset(name).name, name)
    calls.bad_each("load_dataset(name", ("", "nobody", None, 3, ["radial"]), load_dataset)
    calls.bad_each(
        "load_dataset(seed",
        (*BAD_SEEDS, 2**32),
        lambda value: load_dataset("radial", seed=value),
    )
    for name in ("radial", "german_credit", "digits"):
        calls.bad_each(
            f"load_dataset({name!r}, test_fraction",
            (0, 1, -0.5, 2, math.nan, math.inf, "0.5", None, 1e-9, 1 - 1e-9),
            lambda value, name=name: load_dataset(name, test_fraction=value),
        )
    missing = calls.folder / "nowhere"
    calls.bad_each(
        "load_dataset(source",
        (3, "table.csv", {}, SourceSettings(path=str(missing), target="y")),
        lambda value: load_dataset("own", source=value),
    )
    calls.bad("load_dataset('mnist')", lambda: load_dataset("mnist", folder=missing))
    calls.bad("load_dataset('mnist', folder=3)", lambda: load_dataset("mnist", folder=3))  # type: ignore[arg-type]

    empty = data.train.subset(torch.tensor([], dtype=torch.long))
    wide = Examples.of(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    parts = (None, data, data.train.features, empty)
    calls.bad_each("Dataset(train", parts, lambda value: Dataset("x", value, data.test, ("a", "b")))
    calls.bad_each(
        "Dataset(test",
        (*parts, wide),
        lambda value: Dataset("x", data.train, value, ("a", "b")),
    )
    calls.bad_each(
        "Dataset(classes",
        ((), ("a",), None, ("a", "a"), (0, 1)),
        lambda value: Dataset("x", data.train, data.test, value),
    )
    calls.bad_each(
        "Dataset(name",
        (None, 3, ""),
        lambda value: Dataset(value, data.train, data.test, ("a", "b")),
    )
    saved = calls.folder / "data.npz"
    data.save(saved)
    short, garbage = calls.folder / "short.npz", calls.folder / "garbage.npz"
    short.write_bytes(saved.read_bytes()[:-100])
    garbage.write_bytes(b"PK\x03\x04 no archive")
    calls.good("Dataset.load", lambda: Dataset.load(saved).digest, data.digest)
    calls.bad_each(
        "Dataset.load(path",
        (short, garbage, missing, calls.folder, None, Path("a\0b"), Path("/dev/null")),
        Dataset.load,
    )
    calls.bad_each("Workspace.find(start", (Path("/"), missing / "x"), Workspace.find)
