"""Keeping a criterion beside the retained loss: with its entry in puma.preserve and without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
from torch import nn
from tqdm import tqdm

from benchmarks.removals import Row, check
from benchmarks.tables import NOTHING
from puma.audit import Evidence, LiRA, audit_removal, predict, train_pool, train_shadow_attack
from puma.audit.evidence import predict_without, train_shadows
from puma.data import Dataset, load_dataset
from puma.errors import SettingsError, SolverError
from puma.influence import FlatModel, preserved_criterion
from puma.models import build_model
from puma.models.parallel import run_all
from puma.models.predictions import accuracy
from puma.removal import RemovalMethod, Trained, build_method, build_trainer
from puma.requests.deletion_set import DeletionSet
from puma.requests.demonstration import smallest_clusters
from puma.settings import ORIGINAL, PreservedCriterion, Settings

GROUPS = {"german_credit": "age_in_years >= 50", "two_moons": "x >= 1"}
BUDGETS = {"soft_ece": 0.005, "group_loss": 0.005}
REQUESTS = ("cluster", "random")
OVER = ("retained", "validation")
VERSIONS = ("retrain", "without", "with")
VALIDATION = 0.2
RANDOM = 0.1  # of the people
ROUND_OFF = 1e-6
HEADING = (
    "dataset",
    "request",
    "criterion",
    "over",
    "drift",
    "largest kept",
    "in budget",
    "may serve",
    "accuracy",
    "distance",
    "bound",
)
SERVING = ("passed", "indistinguishable")
COLUMNS = (
    "dataset",
    "request",
    "criterion",
    "over",
    "version",
    "seed",
    "removed_rows",
    "budget",
    "before",
    "drift",
    "criterion_drift",
    "verdict",
    "accuracy",
    "original_accuracy",
    "level_distance_before",
    "level_distance",
    "bound_by",
    "seconds",
    "reason",
)


def run_preserved(
    datasets: Sequence[str],
    *,
    settings: Settings,
    seeds: int = 5,
    jobs: int = 1,
    progress: bool = True,
) -> pd.DataFrame:
    """Run one removal a row, with :data:`COLUMNS`.

    The criteria are the soft calibration error and the loss of a group, each on the rows that stay
    and on validation rows. A request is the demonstration's, the smallest cluster of every class,
    or a tenth of the people at random. ``with`` is PUMA with the criterion's entry, ``without`` is
    PUMA without it, and ``retrain`` says what retraining does to the criterion; ``drift`` is
    measured of each. The verdict is of the audit by the pool. ``level_distance``: of the removed
    rows from their target margins, in logits. Each dataset and seed runs in a process with one
    thread.

    Raises:
        SettingsError: A dataset has no group here, there is none, or fewer than one seed or job.
    """
    names = check(datasets, seeds, jobs)
    without = [name for name in names if name not in GROUPS]
    if without:
        raise SettingsError(f"no group of {', '.join(without)} is stated; take {', '.join(GROUPS)}")
    tasks = [(name, seed, settings) for name, seed in product(names, range(seeds))]
    rows: list[Row] = []
    with tqdm(total=len(tasks), desc="preserved", unit="dataset", disable=not progress) as bar:
        for _, found in run_all(_rows_of, tasks, jobs=jobs):
            rows += found
            bar.update()
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    order = {"dataset": names, "request": REQUESTS, "criterion": BUDGETS, "version": VERSIONS}
    for column, values in order.items():
        frame[column] = pd.Categorical(frame[column], list(values), ordered=True)
    sorted_frame = frame.sort_values(["dataset", "request", "criterion", "over", "version", "seed"])
    return sorted_frame.astype(dict.fromkeys(order, str)).reset_index(drop=True)


def _rows_of(name: str, seed: int, settings: Settings) -> list[Row]:
    audit = settings.audit.model_copy(update={"jobs": 1})
    settings = settings.model_copy(update={"seed": seed, "audit": audit})
    data = load_dataset(
        name,
        seed=seed,
        test_fraction=settings.data.test_fraction,
        validation_fraction=VALIDATION,
        groups=[GROUPS[name]],
    )
    shadow = train_shadow_attack(
        data, settings.model, settings.training, settings.shadow, seed=seed, progress=False
    )
    lira = LiRA(train_shadows(data, settings, progress=False))
    pool = train_pool(data, settings, progress=False)
    model = build_model(settings.model, data, seed=seed)
    trained = build_trainer(ORIGINAL, settings).fit(model, data, progress=False)
    trained = replace(trained, pool=pool)
    rows: list[Row] = []
    for case in REQUESTS:
        request = DeletionSet.of(_people(data, case, seed), data)
        absent = predict_without(pool, request, settings, progress=False)
        evidence = Evidence(shadow, lira, pool.everybody, absent, "pool")
        known = {"dataset": name, "request": case, "seed": seed, "removed_rows": len(request)}
        plain = {
            version: _outcome(build_method(method, settings), trained, request, evidence, settings)
            for version, method in (("retrain", "retrain"), ("without", "puma"))
        }
        for criterion, over in product(BUDGETS, OVER):
            where = {"where": GROUPS[name]} if criterion == "group_loss" else {}
            entry = PreservedCriterion.model_validate(
                {"criterion": criterion, "budget": BUDGETS[criterion], "over": over, **where}
            )
            keeping = settings.puma.model_copy(update={"preserve": (entry,)})
            method = build_method("puma", settings.model_copy(update={"puma": keeping}))
            outcomes = plain | {"with": _outcome(method, trained, request, evidence, settings)}
            measured = preserved_criterion(entry, request.remaining, 0.0)
            flat = FlatModel(trained.predictor)
            before = measured.value(flat, flat.vector)
            for version, (predictor, outcome) in outcomes.items():
                after = FlatModel(predictor)
                drift = measured.value(after, after.vector) - before
                rows.append(
                    known
                    | {"criterion": criterion, "over": over, "version": version}
                    | {"budget": entry.budget, "before": before, "drift": drift}
                    | outcome
                )
        pool.short_margins.clear()
    return rows


def _outcome(
    method: RemovalMethod,
    trained: Trained,
    request: DeletionSet,
    evidence: Evidence,
    settings: Settings,
) -> tuple[nn.Module, Row]:
    """The model, and what its removal and its audit say; the original where no step is possible."""
    data, predictor = trained.dataset, trained.predictor
    outcome: Row = {"bound_by": "", "criterion_drift": 0.0, "seconds": np.nan}
    try:
        removal = method.remove(trained, request, progress=False)
    except SolverError as error:
        return predictor, outcome | {"verdict": "no step", "reason": str(error)}
    predictor = removal.predictor
    report = audit_removal(
        predict(predictor, data.train, data.test, parent=trained.predictor),
        data,
        request,
        evidence,
        settings.audit,
    )
    return predictor, outcome | {
        "criterion_drift": removal.criterion_drift,
        "verdict": report.verdict.name,
        "reason": report.verdict.reason,
        "accuracy": accuracy(predictor, data.test),
        "original_accuracy": accuracy(trained.predictor, data.test),
        "level_distance_before": removal.diagnostics.get("level_distance_before", np.nan),
        "level_distance": removal.diagnostics.get("level_distance", np.nan),
        "bound_by": removal.parameters.get("bound_by", ""),
        "seconds": removal.seconds,
    }


def _people(data: Dataset, request: str, seed: int) -> list[str]:
    ids = np.asarray(data.train.subject_ids)
    if request == "cluster":
        rows = smallest_clusters(data, clusters=8, seed=seed)
        return sorted(set(ids[rows.numpy()].tolist()))
    drawn = np.random.default_rng([seed, 77]).permutation(np.unique(ids))
    return sorted(drawn[: round(RANDOM * len(drawn))].tolist())


def preserved_table(frame: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heading and lines: a criterion and a request each, what is of several versions with slashes.

    The versions are in the order of :data:`VERSIONS`. Drifts are means of their sizes over the
    seeds; ``in budget``, ``may serve`` and ``bound`` count removals; ``distance`` is that of
    the two PUMAs. The last lines are of all requests and criteria together.
    """
    keys = ["dataset", "request", "criterion", "over"]
    groups = [([str(part) for part in key], rows) for key, rows in frame.groupby(keys, sort=False)]
    for over, rows in frame.groupby("over", sort=False):
        groups.append((["all", "all", "all", str(over)], rows))
    return list(HEADING), [
        [*names, *_cells(rows, mixed=names[0] == "all")] for names, rows in groups
    ]


def _cells(rows: pd.DataFrame, *, mixed: bool) -> list[str]:
    """Cells of a line; criteria that are ``mixed`` have no mean drift."""
    versions = [rows[rows["version"] == version] for version in VERSIONS]
    drifts = [f"{each['drift'].abs().mean():.4f}" for each in versions]
    return [
        NOTHING if mixed else " / ".join(drifts),
        f"{versions[-1]['drift'].abs().max():.4f}",
        _counts(versions, lambda each: each["drift"].abs() <= each["budget"] + ROUND_OFF),
        _counts(versions, lambda each: each["verdict"].isin(SERVING)),
        " / ".join(f"{each['accuracy'].mean():.3f}" for each in versions),
        " / ".join(f"{each['level_distance'].mean():.2f}" for each in versions[1:]),
        str(int((versions[-1]["bound_by"].fillna("nothing") != "nothing").sum())),
    ]


def _counts(
    versions: Sequence[pd.DataFrame], holds: Callable[[pd.DataFrame], pd.Series[bool]]
) -> str:
    return " / ".join(str(int(holds(each).sum())) for each in versions)
