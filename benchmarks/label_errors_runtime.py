"""How long every ranker takes on the paper's sizes, in one thread, against PUMA's psi."""

from __future__ import annotations

import copy
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import pandas as pd
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.label_errors import (
    RANKED_DATASETS,
    CountedShapley,
    fitted,
    flipped_dataset,
    known,
)
from benchmarks.removals import Row, load
from puma.data import Dataset, Examples, spiral, two_moons
from puma.errors import SettingsError
from puma.influence import (
    ConjugateGradients,
    FlatModel,
    GaussNewton,
    Shifted,
    Solver,
    resolve_solver,
    weighted_gradient,
)
from puma.label_errors import (
    NTK,
    Loss,
    NotSettledWarning,
    Psi,
    Ranker,
    Representer,
    SelfInfluence,
    WeakSignalWarning,
)
from puma.models.parallel import run_all
from puma.settings import Settings

# Where the paper gives a size it is the dataset's own: radial 600, rectangular 800, breast cancer
# 699 and German credit 1000 points (Appendix A). Of two moons it gives 5000 (Appendix E), of the
# spiral none: it is taken to be as large.
POINTS = 5000
DAMPING = 0.1  # psi's and self-influence's default
RUNTIME_COLUMNS = (
    "dataset",
    "method",
    "seconds",
    "ratio_to_psi",
    "points",
    "train_rows",
    "parameters",
    "runs",
    "seconds_min",
    "seconds_max",
    "wall_seconds",
    "rows_timed",
    "extrapolated",
    "permutations",
    "settled",
)


@dataclass(frozen=True)
class Limits:
    """How thoroughly to time.

    repeats: runs of everything, of which the median counts; the methods that go row by row and
    G-Shapley have one. once: a method whose first run takes longer than this many seconds is not
    run again. permutations, tolerance: of G-Shapley. whole: what takes longer than this many
    seconds row by row is timed on ``rows`` rows.

    Raises SettingsError for what cannot be.
    """

    repeats: int = 3
    once: float = 10.0
    permutations: int = 400
    tolerance: float = 0.25
    whole: float = 120.0
    rows: int = 40

    def __post_init__(self) -> None:
        for setting in ("repeats", "rows"):
            if getattr(self, setting) < 1:
                raise SettingsError(f"{setting} must be >= 1, got {getattr(self, setting)}")
        CountedShapley(permutations=self.permutations, tolerance=self.tolerance)  # checks the two


def run_runtime(
    datasets: Sequence[str] = RANKED_DATASETS,
    *,
    settings: Settings,
    points: int = POINTS,
    limits: Limits | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """One method on one dataset a row, :data:`RUNTIME_COLUMNS`; the paper's Table 3.

    A tenth of the training labels is flipped and the model of ``settings`` trained, with its seed.
    ``points``: of two_moons and spiral; the others have their own. Everything in one thread, one
    after the other, after one call that does not count.

    seconds: CPU time, median of ``runs``; in one thread that is the time on the clock, less what
    other processes take, and wall_seconds that shows how much they took. ratio_to_psi: of seconds
    to those of ``psi`` on the same dataset, above 1 is slower.

    - psi: validation loss, without the check whether that is noise. psi_checked: with it.
    - representer: features, refit of the last layer, scores.
    - ntk_per_example: one backward pass a row, as in the paper. ntk: one forward-mode pass.
    - self_influence: exactly, by one factorisation. self_influence_per_point: one solve a row to
      1e-6 in double precision. self_influence_psi_solver: one solve a row with psi's own solver
      and precision, always on a sample of rows.
    - g_shapley: until its values' standard error is ``limits.tolerance`` of their spread, or
      ``limits.permutations``; ``settled`` says which, ``permutations`` how many were made.

    rows_timed: fewer than train_rows where the rest is extrapolated in proportion.

    Raises SettingsError for a dataset not in RANKED_DATASETS, none, or impossible limits.
    """
    names = known(datasets)
    limits = limits or Limits()
    tasks = [(name, settings, points, limits) for name in names]
    rows: list[Row] = []
    with (
        # torch is held to one thread by run_all, numpy's BLAS, which the representer needs, here.
        threadpool_limits(1),
        tqdm(total=len(tasks), desc="runtime", unit="dataset", disable=not progress) as bar,
    ):
        for _, found in run_all(_rows_of, tasks, jobs=1):
            rows += found
            bar.update()
    return pd.DataFrame(rows, columns=list(RUNTIME_COLUMNS))


def _rows_of(name: str, settings: Settings, points: int, limits: Limits) -> list[Row]:
    dataset = _load(name, settings, points)
    shared = {
        "dataset": name,
        "points": len(dataset.train) + len(dataset.test),
        "train_rows": len(dataset.train),
    }
    dataset, _ = flipped_dataset(dataset, settings.seed)
    model = fitted(dataset, settings, settings.training, settings.seed)
    shared["parameters"] = FlatModel(model).size
    compared: dict[str, Ranker] = {
        "loss": Loss(),
        "psi": Psi(check=False),
        "psi_checked": Psi(),
        "representer": Representer(),
        "ntk": NTK(check=False),
        "ntk_per_example": NTK(check=False, per_example_gradients=True),
        "self_influence": SelfInfluence(),
    }
    rows: list[Row] = [
        {"method": method, **_repeated(partial(ranker.suspicion, model, dataset), limits)}
        for method, ranker in compared.items()
    ]
    rows += _per_point_rows(model, dataset.train, limits)
    rows.append({"method": "g_shapley", **_shapley(model, dataset, limits, settings.seed)})
    psi = next(row["seconds"] for row in rows if row["method"] == "psi")
    whole = {"rows_timed": len(dataset.train), "extrapolated": False, "permutations": math.nan}
    return [{**whole, **shared, **row, "ratio_to_psi": row["seconds"] / psi} for row in rows]


def _load(name: str, settings: Settings, points: int) -> Dataset:
    sized = {"two_moons": two_moons, "spiral": spiral}
    if name not in sized:
        return load(name, settings)
    fraction = settings.data.test_fraction
    return sized[name](seed=settings.seed, test_fraction=fraction, points=points)


class Lap(NamedTuple):
    """Seconds of one run: of this process's CPU time, and on the clock."""

    cpu: float
    wall: float


def _repeated(call: Callable[[], object], limits: Limits) -> Row:
    """The median of ``limits.repeats`` runs after one that does not count, unless it is slow."""
    first = _lap(call)
    slow = first.cpu > limits.once
    return _timing([first] if slow else [_lap(call) for _ in range(limits.repeats)])


def _timing(laps: Sequence[Lap], scale: float = 1.0) -> Row:
    cpu = [lap.cpu * scale for lap in laps]
    return {
        "seconds": statistics.median(cpu),
        "runs": len(laps),
        "seconds_min": min(cpu),
        "seconds_max": max(cpu),
        "wall_seconds": statistics.median(lap.wall * scale for lap in laps),
    }


def _lap(call: Callable[[], object]) -> Lap:
    cpu, wall = time.process_time(), time.perf_counter()
    with warnings.catch_warnings():
        # Whether a ranking is noise is the other benchmark's to tell.
        warnings.simplefilter("ignore", WeakSignalWarning)
        call()
    return Lap(time.process_time() - cpu, time.perf_counter() - wall)


def per_point(flat: FlatModel, examples: Examples, rows: Tensor, solver: Solver) -> Tensor:
    """(len(rows),) gᵀH⁻¹g of single ``rows``, a backward pass and a solve each.

    H is that of all ``examples``, so that a few rows cost what they cost among all.
    """
    operator = Shifted(GaussNewton(flat, examples), DAMPING)
    weight = torch.ones(1, dtype=flat.dtype, device=flat.device)
    scores = []
    for row in rows.split(1):
        gradient = weighted_gradient(flat, examples.subset(row), weight)
        scores.append(gradient @ solver.solve(operator, gradient).value)
    return torch.stack(scores)


def _per_point_rows(model: nn.Module, examples: Examples, limits: Limits) -> list[Row]:
    doubled = replace(examples, features=examples.features.double())
    exact = FlatModel(copy.deepcopy(model).double())
    tight = ConjugateGradients(tolerance=SelfInfluence().tolerance)
    rows = [{"method": "self_influence_per_point", **_sampled(exact, doubled, tight, limits)}]
    n = len(examples)
    if rows[0]["seconds"] <= limits.whole and rows[0]["rows_timed"] < n:
        everything = partial(per_point, exact, doubled, torch.arange(n), tight)
        rows[0] |= {**_timing([_lap(everything)]), "rows_timed": n, "extrapolated": False}
    plain = _sampled(FlatModel(model), examples, resolve_solver(None), limits)
    return [*rows, {"method": "self_influence_psi_solver", **plain}]


def _sampled(flat: FlatModel, examples: Examples, solver: Solver, limits: Limits) -> Row:
    """``per_point`` on rows spread over all, its seconds scaled up to all of them."""
    n = len(examples)
    count = min(limits.rows, n)
    rows = torch.linspace(0, n - 1, count).long()
    per_point(flat, examples, rows[:1], solver)  # the first call of all is slower
    lap = _lap(partial(per_point, flat, examples, rows, solver))
    return {**_timing([lap], n / count), "rows_timed": count, "extrapolated": count < n}


def _shapley(model: nn.Module, dataset: Dataset, limits: Limits, seed: int) -> Row:
    """Timed once, being the slowest of all but one."""
    ranker = CountedShapley(
        permutations=limits.permutations, tolerance=limits.tolerance, seed=1000 * seed
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        timing = _timing([_lap(partial(ranker.suspicion, model, dataset))])
    settled = not any(issubclass(each.category, NotSettledWarning) for each in caught)
    return {**timing, "permutations": sum(ranker.made), "settled": settled}
