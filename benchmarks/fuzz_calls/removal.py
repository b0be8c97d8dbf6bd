"""Calls of puma.removal: every method, fitted and asked to remove."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import puma
from benchmarks.fuzz_calls.bad_models import bad_models
from benchmarks.fuzz_calls.calls import QUICK, SMALL, Calls
from benchmarks.fuzz_case import text
from benchmarks.fuzz_params import settings_of, values_of
from benchmarks.fuzz_requests import TRAIN, tiny_dataset
from puma.audit import train_pool
from puma.data import Dataset
from puma.models import build_model
from puma.removal import METHODS
from puma.requests.deletion_set import DeletionSet
from puma.settings import AuditSettings, PoolSettings, Settings

POOLED = Settings(
    model=SMALL,
    training=QUICK,
    pool=PoolSettings(models=16, everybody=3),
    audit=AuditSettings(jobs=1),
)
# For a tiny dataset: the Hessian of two epochs is not positive definite.
OWN: dict[str, dict[str, Any]] = {
    "sisa": {"shards": 2, "slices": 2},
    "puma_paper": {"curvature": "gauss_newton"},
}


def add_methods(calls: Calls) -> None:
    data = tiny_dataset()
    model = build_model(SMALL, data, seed=0)
    chosen = DeletionSet.of(TRAIN[8:10], data)
    other_data = Dataset("other", data.train, data.test, data.classes)
    elsewhere = DeletionSet.of(TRAIN[8:10], other_data)
    for name, kind in METHODS.items():
        for key, annotation, default in settings_of(kind):
            if "." in key:
                continue  # of the training, which its own class checks
            for value in values_of(annotation, default=default).bad[:2]:
                calls.bad(
                    f"{kind.__name__}({key}={text(value)})",
                    lambda kind=kind, key=key, value=value: kind(**{key: value}),
                )
        calls.bad_each(
            f"{kind.__name__}(training",
            (None, 3, {"epochs": 0}),
            lambda value, kind=kind: kind(training=value),
        )
        calls.bad(f"{kind.__name__}(nonsense=1)", lambda kind=kind: kind(nonsense=1))
        small = OWN.get(name, {})
        method = kind(training=QUICK, **small)

        def fit(value: Any, method: Any = method) -> Any:
            return method.fit(value, data, progress=False)

        calls.bad_each(f"{name}.fit(model", bad_models(), fit)
        calls.bad_each(
            f"{name}.fit(dataset",
            (None, data.train, "german_credit"),
            lambda value, method=method: method.fit(model, value, progress=False),
        )
        trained = method.fit(model, data, progress=False)
        if method.uses_pool:
            calls.bad(
                f"{name}.remove(trained without a pool",
                lambda m=method, t=trained: m.remove(t, chosen, progress=False),
            )
            trained = replace(trained, pool=train_pool(data, POOLED, progress=False))
        calls.good(
            f"{name}.remove",
            lambda m=method, t=trained: m.remove(t, chosen, progress=False).n_removed,
            4,
        )
        calls.bad_each(
            f"{name}.remove(deletion_set",
            (None, list(TRAIN[8:10]), chosen.rows, elsewhere),
            lambda value, m=method, t=trained: m.remove(t, value, progress=False),
        )
        calls.bad_each(
            f"{name}.remove(trained",
            (None, trained.predictor),
            lambda value, m=method: m.remove(value, chosen, progress=False),
        )
    blocked = calls.folder / "file"
    blocked.write_text("")
    calls.bad(
        "SISA.fit(records in a file)",
        lambda: puma.SISA(training=QUICK, shards=2, slices=2).fit(
            model, data, records=blocked / "x", progress=False
        ),
    )
    plain = puma.Retrain(training=QUICK).fit(model, data, progress=False)
    calls.bad("SISA.remove(a plain original)", lambda: puma.SISA().remove(plain, chosen))
    for solver in ("", "magic", "lissa"):
        calls.bad(
            f"PUMA(solver={solver!r}).remove",
            lambda solver=solver: puma.PUMA(solver=solver, training=QUICK).remove(
                plain, chosen, progress=False
            ),
        )
