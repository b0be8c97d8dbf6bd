"""Calls of puma.models: networks made, written and read."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from benchmarks.fuzz_calls.calls import NEGATIVE, SMALL, Calls
from benchmarks.fuzz_requests import tiny_dataset
from puma.models import MODELS, build_model, load_weights, new_model, save_weights
from puma.settings import ModelSettings


def add_models(calls: Calls) -> None:
    data = tiny_dataset()
    for name in sorted(MODELS):
        if name != "densenet":
            calls.good(
                f"new_model({name!r})",
                lambda name=name: type(new_model(ModelSettings(name=name), (2,), 2, seed=0)),
                nn.Sequential,
            )
    for name in (
        "",
        "nobody",
        "MLP",
        ":",
        "a:",
        ":a",
        "no.module:X",
        "os:path",
        "os:nothing",
        "os.path:",
    ):
        calls.bad(
            f"new_model({name!r})",
            lambda name=name: new_model(ModelSettings(name=name), (2,), 2, seed=0),
        )
    calls.bad_each(
        "new_model(shape",
        ((0,), (-1,)),
        lambda value: new_model(SMALL, value, 2, seed=0),
    )
    calls.bad_each(
        "new_model(classes",
        (0, -1),
        lambda value: new_model(SMALL, (2,), value, seed=0),
    )
    calls.bad_each("new_model(seed", NEGATIVE, lambda value: new_model(SMALL, (2,), 2, seed=value))
    calls.bad(
        "new_model(densenet of rows)",
        lambda: new_model(ModelSettings(name="densenet"), (2,), 2, seed=0),
    )
    model = build_model(SMALL, data, seed=0)
    saved, other, cut = (calls.folder / name for name in ("w.pt", "other.pt", "cut.pt"))
    save_weights(model, saved)
    save_weights(nn.Linear(5, 5), other)
    cut.write_bytes(saved.read_bytes()[:-50])
    calls.good(
        "load_weights", lambda: load_weights(build_model(SMALL, data, seed=1), saved) is None, False
    )
    calls.bad_each(
        "load_weights(path",
        (other, cut, calls.folder, calls.folder / "nowhere", None, Path("a\0b"), Path("/dev/null")),
        lambda value: load_weights(build_model(SMALL, data, seed=1), value),
    )
