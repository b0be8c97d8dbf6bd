"""Calls of puma.requests: deletion sets and demonstrations."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.fuzz_calls.calls import NEGATIVE, Calls
from benchmarks.fuzz_requests import BOTH, TEST, TRAIN, tiny_dataset
from puma.requests.deletion_set import DeletionSet
from puma.requests.demonstration import mark
from puma.settings import MarkingSettings


def add_deletion_sets(calls: Calls) -> None:
    data = tiny_dataset()
    ids = list(TRAIN[8:10])
    request = calls.folder / "request.csv"
    request.write_text("subject_id\n" + "\n".join(ids) + "\n")
    for name, value in {
        "list": ids,
        "tuple": tuple(ids),
        "set": set(ids),
        "iterator": iter(ids),
        "array": np.array(ids),
        "with repeats": [*ids, *ids],
    }.items():
        calls.good(
            f"DeletionSet.of({name})", lambda value=value: len(DeletionSet.of(value, data)), 4
        )
    calls.bad_each(
        "DeletionSet.of(ids",
        (
            *(None, 3, "person-001", b"person-001", [], (), [None], [1], [b"person-001"]),
            *([ids], np.array([1, 2]), [*TRAIN, BOTH], TRAIN[:8], TEST, ["nobody-at-all"], [""]),
            torch.tensor([1, 2]),
        ),
        lambda value: DeletionSet.of(value, data),
    )
    calls.bad_each(
        "DeletionSet.of(dataset", (None, data.train), lambda value: DeletionSet.of(ids, value)
    )
    calls.good("DeletionSet.read(path)", lambda: len(DeletionSet.read(request, data)), 4)
    calls.good("DeletionSet.read(text)", lambda: len(DeletionSet.read(str(request), data)), 4)
    calls.bad_each(
        "DeletionSet.read(path",
        (None, 3, "", "a\0b", calls.folder, b"request.csv", calls.folder / ("n" * 300)),
        lambda value: DeletionSet.read(value, data),
    )
    calls.bad("DeletionSet.read(dataset=None)", lambda: DeletionSet.read(request, None))  # type: ignore[arg-type]
    calls.bad_each(
        "mark(settings",
        (MarkingSettings(clusters=1000),),
        lambda value: mark(data, value),
    )
    calls.bad_each(
        "mark(seed", NEGATIVE, lambda value: mark(data, MarkingSettings(clusters=2), seed=value)
    )
