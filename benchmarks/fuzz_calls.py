"""Library calls: what a notebook may pass to the public names, right and wrong."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import puma
from benchmarks.fuzz_case import REFUSED, Case, text
from benchmarks.fuzz_params import settings_of, values_of
from benchmarks.fuzz_requests import BOTH, TEST, TRAIN, tiny_dataset
from puma.audit import roc, tpr_at_fpr, train_pool
from puma.audit.metrics import auc_interval
from puma.calibration import fit_temperature, hard_ece, reliability
from puma.data import DATASETS, Dataset, Examples, load_dataset
from puma.errors import SolverError
from puma.influence import (
    CURVATURES,
    REWEIGHTERS,
    SOLVERS,
    ConjugateGradients,
    LiSSA,
    MeanLoss,
    SoftECE,
    TrainingObjective,
    Woodbury,
    influence_scores,
    reweight,
)
from puma.label_errors import RANKERS, flip_labels, resolve_ranker
from puma.label_errors.suspects import rank
from puma.metrics import auc
from puma.models import MODELS, build_model, load_weights, new_model, save_weights
from puma.project.workspace import Workspace
from puma.removal import METHODS
from puma.requests.deletion_set import DeletionSet
from puma.requests.demonstration import mark
from puma.settings import (
    AuditSettings,
    MarkingSettings,
    ModelSettings,
    PoolSettings,
    Settings,
    SourceSettings,
    TrainingSettings,
)

Call = Any  # mypy infers no type of a lambda with defaults
DONE = "done"
BAD_SEEDS = (-1, 1.5, "0", None)
NEGATIVE = (-1,)
NOT_POSITIVE = (0, -1, math.nan, math.inf)
QUICK = TrainingSettings(epochs=2)
SMALL = ModelSettings(hidden=(4,))
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


class _Calls:
    """Collects cases."""

    def __init__(self, folder: Path) -> None:
        self.cases: list[Case] = []
        self.folder = folder
        self.secrets = (*TRAIN, BOTH, *TEST)

    def good(self, name: str, call: Call, expected: Any = DONE) -> None:
        """``call`` must give ``expected``, or whatever it gives."""

        def run() -> Any:
            found = call()
            return DONE if expected is DONE else found

        self._add(f"good: {name}", run, expected)

    def bad(self, name: str, call: Call) -> None:
        self._add(name, call, REFUSED)

    def bad_each(self, name: str, values: Any, call: Call) -> None:
        """``call`` of each of ``values`` must be refused."""
        for value in values:
            self.bad(f"{name}={_shown(value)}", partial(call, value))

    def _add(self, name: str, call: Call, expected: Any) -> None:
        self.cases.append(Case(name, call, expected, secrets=self.secrets, folder=self.folder))


def _shown(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{type(value).__name__} {tuple(value.shape)} of {value.dtype}"
    return text(value)


def call_cases(folder: Path, draw: random.Random) -> list[Case]:
    """Every call; ``draw`` draws nothing but their order."""
    folder.mkdir(parents=True, exist_ok=True)
    calls = _Calls(folder)
    _examples(calls)
    _datasets(calls)
    _deletion_sets(calls)
    _influence(calls)
    _reweighting(calls)
    _methods(calls)
    _models(calls)
    _measures(calls)
    _label_errors(calls)
    draw.shuffle(calls.cases)
    return calls.cases


def _examples(calls: _Calls) -> None:
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


def _datasets(calls: _Calls) -> None:
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


def _deletion_sets(calls: _Calls) -> None:
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


def _influence(calls: _Calls) -> None:
    data = tiny_dataset()
    model = build_model(SMALL, data, seed=0)
    count = len(data.train)
    for solver, curvature in itertools.product(("cg", "dense", "woodbury"), CURVATURES):
        calls.good(
            f"influence_scores({solver}, {curvature})",
            lambda s=solver, c=curvature: (
                influence_scores(model, data, solver=s, curvature=c, damping=5.0).shape
            ),
            torch.Size([count]),
        ) if not (solver == "woodbury" and curvature == "hessian") else None
    calls.bad_each(
        "influence_scores(model",
        bad_models(),
        lambda value: influence_scores(value, data),
    )
    double = Examples.of(data.train.features.double(), data.train.labels)
    high = Examples.of(data.train.features, data.train.labels + 5)
    wide = Examples.of(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    empty = data.train.subset(torch.tensor([], dtype=torch.long))
    others = (None, double, high, wide, empty, data.train.features, data.train.features.numpy())
    calls.bad_each("influence_scores(dataset", others, lambda value: influence_scores(model, value))
    for name, values in {
        "damping": (-1.0, math.nan, math.inf, "0.1", None),
        "solver": ("", "magic", 3, SOLVERS["cg"]),
        "curvature": ("", "magic", None, 3),
        "sample": (0, -1, 1.5, "all", math.nan),
        "criterion": (3, "training_loss", data),
    }.items():
        calls.bad_each(
            f"influence_scores({name}",
            values,
            lambda value, name=name: influence_scores(model, data, **{name: value}),
        )
    calls.bad_each(
        "influence_scores(sample=5, seed",
        BAD_SEEDS,
        lambda value: influence_scores(model, data, sample=5, seed=value),
    )
    for kind in (MeanLoss, SoftECE, TrainingObjective):
        calls.bad(f"{kind.__name__}(no examples)", lambda kind=kind: kind(empty))
    calls.bad_each("SoftECE(bins", (0, -1), lambda value: SoftECE(data.train, bins=value))
    calls.bad_each(
        "SoftECE(temperature", NOT_POSITIVE, lambda value: SoftECE(data.train, temperature=value)
    )
    calls.bad_each(
        "TrainingObjective(weight_decay",
        (-1, math.nan, math.inf),
        lambda value: TrainingObjective(data.train, value),
    )
    calls.bad_each(
        "ConjugateGradients(tolerance",
        (*NOT_POSITIVE, 1),
        lambda value: ConjugateGradients(tolerance=value),
    )
    calls.bad_each(
        "ConjugateGradients(max_iterations",
        (0, -1),
        lambda value: ConjugateGradients(max_iterations=value),
    )
    calls.bad_each("Woodbury(rows", (0, -1), lambda value: Woodbury(rows=value))
    for name, values in {"scale": NOT_POSITIVE, "steps": (0, -1), "tolerance": (0, 1)}.items():
        calls.bad_each(f"LiSSA({name}", values, lambda value, name=name: LiSSA(**{name: value}))


class _Pair(nn.Module):
    """Returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(features), features


def _filled(value: float) -> nn.Module:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, value)
    return model


def bad_models() -> tuple[Any, ...]:
    """What is no classifier of two numbers into two classes."""
    frozen = nn.Linear(2, 2).requires_grad_(False)
    return (
        None,
        "mlp",
        np.zeros((2, 2)),
        nn.Linear,
        lambda features: features,
        nn.Identity(),
        frozen,
        nn.Linear(2, 1),
        nn.Linear(3, 2),
        nn.Linear(2, 2).double(),
        nn.Linear(2, 2).half(),
        nn.Sequential(nn.Linear(2, 2), nn.Flatten(0)),
        nn.Sequential(nn.Linear(2, 2), nn.Unflatten(1, (2, 1))),
        _Pair(),
        _filled(math.nan),
        _filled(math.inf),
    )


def _reweighting(calls: _Calls) -> None:
    draw = torch.Generator().manual_seed(0)
    one = torch.randn(7, generator=draw, dtype=torch.float64)
    two = torch.randn(2, 7, generator=draw, dtype=torch.float64)
    sums = torch.tensor([0.3, -0.2], dtype=torch.float64)
    problems: dict[str, tuple[Tensor, float | Tensor]] = {"1": (one, 0.4), "2": (two, sums)}
    for (count, (scores, target)), solver in itertools.product(problems.items(), REWEIGHTERS):
        name = f"reweight({count} criteria, {solver}"

        def right(
            scores: Tensor,
            target: float | Tensor,
            plain: Tensor | None = None,
            *,
            solver: str = solver,
            **settings: Any,
        ) -> bool:
            return _is_right(scores, target, solver, plain, **settings)

        plain = reweight(scores, target, l1=0.0, l2=0.0, solver=solver)
        for scale in (1.0, 1e-12, 1e-80, 1e-158, 1e-300, 1e12, 1e80, 1e150, 1e300):
            calls.good(
                f"{name}, scores times {scale:g})",
                partial(right, scores * scale, target * scale, plain),
                True,
            )
        calls.good(
            f"{name}, one score of 1e300)",
            partial(
                right, torch.cat([scores, torch.full_like(scores[..., :1], 1e300)], -1), target
            ),
            True,
        )
        for shape, value in {"no": scores[..., :0], "zero": torch.zeros_like(scores)}.items():
            zero = torch.zeros(value.shape[-1], dtype=torch.float64)
            calls.good(f"{name}, {shape} scores)", partial(right, value, target, zero), True)
        for l1, l2 in ((1e300, 0.0), (0.0, 1e300), (1e-300, 1e-300), (0.1, 0.1)):
            zero_or_any = torch.zeros(7, dtype=torch.float64) if max(l1, l2) > 1 else None
            calls.good(
                f"{name}, l1={l1:g}, l2={l2:g})",
                partial(right, scores, target, zero_or_any, l1=l1, l2=l2),
                True,
            )
        for bounds in ((0.0, 0.0), (-1e-300, 1e-300), (-1e300, 1e300), (0.0, 1.0), (-1.0, 0.0)):
            calls.good(
                f"{name}, bounds={bounds})",
                partial(right, scores, target, l2=1e-6, bounds=bounds),
                True,
            )
    bad = one.clone()
    bad[0] = math.nan
    wrong: dict[str, tuple[Any, ...]] = {
        "scores": (None, one.numpy(), one.long(), one.tolist(), bad, bad.nan_to_num(math.inf) / 0),
        "target": (None, "1", math.nan, math.inf, torch.ones(2), two, [1.0, 2.0], 1j),
        "l1": (-1.0, math.nan, math.inf, "0", None),
        "l2": (-1.0, math.nan, math.inf, "0", None),
        "bounds": (
            (0.5, 1.0),
            (-1.0, -0.5),
            (1.0, -1.0),
            (math.nan, 1.0),
            (0.0,),
            None,
            3,
            ("a", "b"),
        ),
        "solver": ("", "magic", 3, None),
    }
    for name, values in wrong.items():
        calls.bad_each(
            f"reweight({name}",
            values,
            lambda value, name=name: reweight(
                **{"scores": one, "target": 0.4, "l1": 0.0, "l2": 0.0, name: value}
            ),
        )
    calls.bad(
        "reweight(scores of 3 dimensions)", lambda: reweight(one[None, None], 0.4, l1=0.0, l2=0.0)
    )
    calls.bad("reweight(0 criteria)", lambda: reweight(two[:0], sums[:0], l1=0.0, l2=0.0))


def _is_right(
    scores: Tensor,
    target: float | Tensor,
    solver: str,
    plain: Tensor | None,
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    bounds: tuple[float, float] = (-1.0, 1.0),
) -> bool:
    """Whether λ is that of ``plain``, or at least finite and within bounds.

    Without penalties no common scale changes λ. An iteration may say that it does not converge.
    """
    try:
        found = reweight(scores, target, l1=l1, l2=l2, bounds=bounds, solver=solver)
    except SolverError:
        return solver in ("slsqp", "lbfgsb")
    within = bool((found.isfinite() & (found >= bounds[0]) & (found <= bounds[1])).all())
    return within and (plain is None or torch.allclose(found, plain, atol=1e-4))


def _methods(calls: _Calls) -> None:
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


def _models(calls: _Calls) -> None:
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


def _measures(calls: _Calls) -> None:
    calls.good("auc", lambda: auc([1, 2], [0, 1]), 0.875)
    bad: tuple[Any, ...] = ([], [[1.0]], [math.nan], [math.inf], 3.0)
    calls.bad_each("auc(positives", bad, lambda value: auc(value, [1.0]))
    calls.bad_each("auc(negatives", bad, lambda value: auc([1.0], value))
    calls.bad_each("roc(positives", bad, lambda value: roc(value, [1.0]))
    calls.bad_each("tpr_at_fpr(positives", bad, lambda value: tpr_at_fpr(value, [1.0], 0.1))
    calls.bad_each("auc_interval(positives", bad, lambda value: auc_interval(value, [1.0, 2.0]))
    probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
    truth = torch.tensor([0, 1, 0])
    calls.good("hard_ece", lambda: hard_ece(probabilities, truth) > 0, True)
    wrong = (
        *(probabilities.numpy(), probabilities[:2], probabilities[:, 0], probabilities * 2),
        *(probabilities - 1, probabilities * math.nan, probabilities[:0], probabilities.long()),
    )
    calls.bad_each("hard_ece(probabilities", wrong, lambda value: hard_ece(value, truth))
    bad_labels = (
        truth.numpy(),
        truth[:2],
        truth.float(),
        truth + 1,
        truth - 1,
        truth[:, None],
    )
    calls.bad_each("hard_ece(labels", bad_labels, lambda value: hard_ece(probabilities, value))
    calls.bad_each(
        "reliability(bins", (0, -1), lambda value: reliability(probabilities, truth, bins=value)
    )
    logits = probabilities.log()
    calls.bad_each(
        "fit_temperature(logits",
        (
            logits.numpy(),
            logits[:2],
            logits[:, 0],
            logits * math.nan,
            logits[:0],
            logits.long(),
        ),
        lambda value: fit_temperature(value, truth),
    )
    calls.bad_each(
        "fit_temperature(labels", bad_labels, lambda value: fit_temperature(logits, value)
    )


def _cannot_be_ranked_by(method: str, model: Any) -> bool:
    """A loss needs no weights, and a representer's own need not be trainable."""
    if not isinstance(model, nn.Module):
        return False
    trainable = any(each.requires_grad for each in model.parameters())
    return trainable or method not in ("loss", "representer")


def _label_errors(calls: _Calls) -> None:
    data = tiny_dataset()
    model = build_model(SMALL, data, seed=0)
    for name in sorted(RANKERS):
        if name != "g_shapley":
            calls.bad_each(
                f"rank({name}, model",
                [each for each in bad_models() if _cannot_be_ranked_by(name, each)],
                lambda value, name=name: rank(value, data, method=name, progress=False),
            )
    calls.bad_each("rank(method", ("", "magic"), lambda value: rank(model, data, method=value))
    calls.bad_each(
        "rank(criterion",
        ("", "magic"),
        lambda value: rank(model, data, method="psi", criterion=value),
    )
    calls.bad_each("resolve_ranker(", ("", "magic"), resolve_ranker)
    calls.bad_each(
        "flip_labels(fraction",
        (-1, 1.5, math.nan, math.inf),
        lambda value: flip_labels(data.train, value, n_classes=2, seed=0),
    )
    calls.bad_each(
        "flip_labels(seed",
        NEGATIVE,
        lambda value: flip_labels(data.train, 0.5, n_classes=2, seed=value),
    )
