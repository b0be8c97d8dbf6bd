"""Auditing the auditor: every method's verdicts on the same requests, seed by seed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from benchmarks.removals import Row, check, load
from puma.audit import (
    VERDICTS,
    Evidence,
    LiRA,
    audit_removal,
    predict,
    train_pool,
    train_shadow_attack,
)
from puma.audit.evidence import (
    predict_without,
    train_references,
    train_shadows,
    train_without,
)
from puma.data import Dataset
from puma.errors import SettingsError
from puma.models import build_model
from puma.models.parallel import run_all
from puma.removal import build_method, build_trainer
from puma.requests.deletion_set import DeletionSet
from puma.requests.demonstration import smallest_clusters
from puma.settings import ORIGINAL, Settings, is_original, original_of

AUDITED = ("original", "retrain", "puma", "amnesiac", "sisa_original", "sisa")
REQUESTS = (
    "1 person",
    "2 people",
    "6 people",
    "8 people",
    "57 people",
    "8 clusters",
    "3 clusters",
    "category",
)
CATEGORY_SHARE = (0.04, 0.12)  # of the training rows, for a category to be removed
FIRST = (
    "dataset",
    "request",
    "method",
    "seed",
    "removed_rows",
    "verdict",
    "verdict_pool",
    "seconds",
    "audit_seconds",
    "retrain_seconds",
    "attack_auc",
    "auc_low",
    "auc_high",
    "attack_rate",
    "attack_rate_unseen",
    "gap_to_retrain",
    "attack_quality",
)
AGAIN = "again"
OTHER_SEED = 10_000  # added for the models of a second audit by retraining
OF_PUMA = ("level_distance", "level_missed", "level_error")  # its diagnostics, as on its versions


def run_audits(
    datasets: Sequence[str],
    *,
    settings: Settings,
    seeds: int = 10,
    requests: Sequence[str] = REQUESTS,
    again: bool = False,
    jobs: int = 1,
    progress: bool = True,
) -> pd.DataFrame:
    """One audited version a row: columns :data:`FIRST`, then every other number, then ``reason``.

    A request is "N people" at random (N of them, or "1 person"), the smallest of "N clusters" by
    k-means of every class, or "category": the rows that have one value of a column in common. A
    seed decides the split, the weights, the batches, the marks and the audit's own models. An
    original is audited as if it were the answer to the request, which it is not: an audit that
    passes it is worth nothing. amnesiac removes from an original of its own, which is trained as
    the plain one.

    ``verdict`` and the numbers are of the audit against models that are retrained;
    ``verdict_pool`` is of the audit by the pool, empty for SISA, and ``audit_seconds`` is how
    long that took, the prediction of its models included. ``seconds`` is the removal's, and
    ``retrain_seconds`` one retraining's, both with the original's own loop in the same process.
    ``verdict_again``, where ``again``, is of a second audit by retraining, whose models have other
    seeds: no audit can agree with one by retraining more often than another such audit does.
    ``criterion_drift`` and, of puma, :data:`OF_PUMA` are those of the removal: what `puma promote`
    looks at beside the verdict.

    Each dataset and seed runs in one process with one thread, ``jobs`` of them at a time. Raises
    SettingsError for an unknown dataset or request, no dataset, or fewer than one seed or job.
    """
    names = check(datasets, seeds, jobs)
    unknown = [request for request in requests if not _is_request(request)]
    if unknown or not requests:
        raise SettingsError(f"unknown requests {unknown}; name some such as {', '.join(REQUESTS)}")
    tasks = [
        (name, seed, settings, tuple(requests), again)
        for name, seed in product(names, range(seeds))
    ]
    rows: list[Row] = []
    with tqdm(total=len(tasks), desc="audits", unit="dataset", disable=not progress) as bar:
        for _, found in run_all(_rows_of, tasks, jobs=jobs):
            rows += found
            bar.update()
    rows.sort(
        key=lambda row: (
            names.index(row["dataset"]),
            requests.index(row["request"]),
            AUDITED.index(row["method"]),
            row["seed"],
        )
    )
    others = sorted({key for row in rows for key in row} - {*FIRST, "reason"})
    return pd.DataFrame(rows, columns=[*FIRST, *others, "reason"])


def _is_request(request: str) -> bool:
    count, _, kind = request.partition(" ")
    return request == "category" or (
        count.isdecimal() and int(count) > 0 and kind in ("person", "people", "clusters")
    )


def _rows_of(
    name: str, seed: int, settings: Settings, requests: tuple[str, ...], again: bool
) -> list[Row]:
    audit = settings.audit.model_copy(update={"jobs": 1})  # the seeds are what runs side by side
    settings = settings.model_copy(update={"seed": seed, "audit": audit})
    others = settings.model_copy(update={"seed": seed + OTHER_SEED})
    data = load(name, settings)
    shadow = train_shadow_attack(
        data, settings.model, settings.training, settings.shadow, seed=seed, progress=False
    )
    lira = LiRA(train_shadows(data, settings, progress=False))
    pool = train_pool(data, settings, progress=False)
    originals = {
        kind: build_trainer(kind, settings).fit(
            build_model(settings.model, data, seed=seed), data, progress=False
        )
        for kind in sorted({original_of(method) for method in AUDITED})
    }
    originals[ORIGINAL] = replace(originals[ORIGINAL], pool=pool)
    # The originals that are trained alike, and by which seeds their models are.
    compared = {alike: (alike, settings) for alike in ("original", "sisa_original")}
    if again:
        compared[AGAIN] = ("original", others)
    rows = []
    with_rows = {}
    for case in requests:
        request = DeletionSet.of(_people(data, case, seed), data)
        evidence = {}
        for models, (alike, chosen) in compared.items():
            if models not in with_rows:  # these serve every request
                with_rows[models], without = train_references(
                    data, request, alike, chosen, progress=False
                )
            else:
                without = train_without(data, request, alike, chosen, progress=False)
            evidence[models] = Evidence(shadow, lira, with_rows[models], without)
        known = {"dataset": name, "request": case, "seed": seed, "removed_rows": len(request)}
        found = []
        for method in AUDITED:
            kind = original_of(method)
            trained = originals[kind]
            predictor, seconds = trained.predictor, np.nan
            outcome: Row = {}
            if not is_original(method):
                removal = build_method(method, settings).remove(trained, request, progress=False)
                predictor, seconds = removal.predictor, removal.seconds
                outcome = {"criterion_drift": removal.criterion_drift}
                if method == "puma":
                    outcome |= {name: removal.diagnostics[name] for name in OF_PUMA}
            alike = "sisa_original" if kind == "sisa_original" else "original"
            predictions = predict(predictor, data.train, data.test, parent=trained.predictor)
            report = audit_removal(predictions, data, request, evidence[alike], settings.audit)
            row = _row(report.metrics) | known | outcome
            row |= {
                "method": method,
                "verdict": report.verdict.name,
                "reason": report.verdict.reason,
                "seconds": seconds,
            }
            if alike == "original":
                start = time.perf_counter()
                without = predict_without(pool, request, settings, progress=False)
                by_pool = Evidence(shadow, lira, pool.everybody, without, "pool")
                report = audit_removal(predictions, data, request, by_pool, settings.audit)
                row["audit_seconds"] = time.perf_counter() - start
                row["verdict_pool"] = report.verdict.name
                if again:
                    report = audit_removal(
                        predictions, data, request, evidence[AGAIN], settings.audit
                    )
                    row["verdict_again"] = report.verdict.name
            found.append(row)
        retrained = next(row["seconds"] for row in found if row["method"] == "retrain")
        rows += [row | {"retrain_seconds": retrained} for row in found]
        pool.short_margins.clear()
    return rows


def _people(data: Dataset, request: str, seed: int) -> list[str]:
    """The subject ids of a request, as :func:`run_audits` names it."""
    ids = np.asarray(data.train.subject_ids)
    if request == "category":
        return sorted(set(ids[_category(data, seed)].tolist()))
    count, _, kind = request.partition(" ")
    if kind == "clusters":
        marked = smallest_clusters(data, clusters=int(count), seed=seed)
        return sorted(set(ids[marked.numpy()].tolist()))
    drawn = np.random.default_rng([seed, int(count)]).permutation(np.unique(ids))
    return sorted(drawn[: int(count)].tolist())


def _category(data: Dataset, seed: int) -> np.ndarray:
    """(n,) the rows that have one value of a column in common, drawn with ``seed``."""
    features = data.train.features.flatten(1).numpy()
    low, high = (share * len(features) for share in CATEGORY_SHARE)
    groups = [
        features[:, column] == value
        for column in range(features.shape[1])
        for value in np.unique(features[:, column])
        if low <= (features[:, column] == value).sum() <= high
    ]
    if not groups:
        raise SettingsError(
            f"no value of a column of {data.name!r} is that of 4 to 12 % of the rows; leave the "
            "request 'category' out"
        )
    drawn: np.ndarray = groups[int(np.random.default_rng(seed).integers(len(groups)))]
    return drawn


def _row(metrics: dict[str, float]) -> dict[str, Any]:
    """The metrics under the names of the table's columns."""
    renamed = {"attack_auc_low": "auc_low", "attack_auc_high": "auc_high"}
    return {renamed.get(name, name): value for name, value in metrics.items()}


def verdicts(frame: pd.DataFrame) -> pd.DataFrame:
    """How many seeds of each dataset, request and method came to which verdict."""
    keys = ["dataset", "request", "method"]
    counted = frame.groupby(keys, sort=False)["verdict"].value_counts().unstack(fill_value=0)
    return counted.reindex(columns=[name for name in VERDICTS if name in counted]).reset_index()
