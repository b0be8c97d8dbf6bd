"""Auditing the auditor: every method's verdict on the same requests, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pandas as pd
from tqdm import tqdm

from benchmarks.removals import Row, check, load
from puma.audit import VERDICTS, Evidence, LiRA, audit_removal, predict, train_shadow_attack
from puma.audit.evidence import train_references, train_shadows
from puma.models import build_model
from puma.models.parallel import run_all
from puma.removal import build_method, build_trainer
from puma.requests.deletion_set import DeletionSet
from puma.requests.demonstration import smallest_clusters
from puma.settings import Settings, is_original, original_of

AUDITED = ("original", "retrain", "puma", "amnesiac", "sisa_original", "sisa")
FIRST = (
    "dataset",
    "clusters",
    "method",
    "seed",
    "removed_rows",
    "verdict",
    "attack_auc",
    "auc_low",
    "auc_high",
    "attack_rate",
    "attack_rate_unseen",
    "gap_to_retrain",
    "attack_quality",
)


def run_audits(
    datasets: Sequence[str],
    *,
    settings: Settings,
    seeds: int = 10,
    clusters: Sequence[int] = (8,),
    jobs: int = 1,
    progress: bool = True,
) -> pd.DataFrame:
    """One audited version a row: columns :data:`FIRST`, then every other number, then ``reason``.

    The request is one k-means cluster of every class, the smallest of ``clusters``: fewer
    clusters make larger requests. A seed decides the split, the weights, the batches, the marks
    and the audit's own models. An original is audited as if it were the answer to the request,
    which it is not: an audit that passes it is worth nothing. amnesiac removes from an original
    of its own, which is trained as the plain one.

    Each dataset and seed runs in one process with one thread, ``jobs`` of them at a time. Raises
    SettingsError for an unknown dataset, no dataset, or fewer than one seed or job.
    """
    names = check(datasets, seeds, jobs)
    tasks = [(name, seed, settings, tuple(clusters)) for name, seed in product(names, range(seeds))]
    rows: list[Row] = []
    with tqdm(total=len(tasks), desc="audits", unit="dataset", disable=not progress) as bar:
        for _, found in run_all(_rows_of, tasks, jobs=jobs):
            rows += found
            bar.update()
    rows.sort(
        key=lambda row: (
            names.index(row["dataset"]),
            -row["clusters"],
            AUDITED.index(row["method"]),
            row["seed"],
        )
    )
    others = sorted({key for row in rows for key in row} - {*FIRST, "reason"})
    return pd.DataFrame(rows, columns=[*FIRST, *others, "reason"])


def _rows_of(name: str, seed: int, settings: Settings, clusters: tuple[int, ...]) -> list[Row]:
    audit = settings.audit.model_copy(update={"jobs": 1})  # the seeds are what runs side by side
    settings = settings.model_copy(update={"seed": seed, "audit": audit})
    data = load(name, settings)
    shadow = train_shadow_attack(
        data, settings.model, settings.training, settings.shadow, seed=seed, progress=False
    )
    lira = LiRA(train_shadows(data, settings, progress=False))
    kinds = {original_of(method) for method in AUDITED}
    originals = {
        kind: build_trainer(kind, settings).fit(
            build_model(settings.model, data, seed=seed), data, progress=False
        )
        for kind in sorted(kinds)
    }
    rows = []
    for count in clusters:
        marked = smallest_clusters(data, clusters=count, seed=seed)
        ids = sorted(set(data.train.subject_ids[marked.numpy()].tolist()))
        request = DeletionSet.of(ids, data)
        # One pair of populations for the originals that are trained alike.
        evidence = {
            alike: Evidence(
                shadow, lira, *train_references(data, request, alike, settings, progress=False)
            )
            for alike in ("original", "sisa_original")
        }
        for method in AUDITED:
            kind = original_of(method)
            trained = originals[kind]
            predictor = trained.predictor
            if not is_original(method):
                removal = build_method(method, settings).remove(trained, request, progress=False)
                predictor = removal.predictor
            report = audit_removal(
                predict(predictor, data.train, data.test, parent=trained.predictor),
                data,
                request,
                evidence["sisa_original" if kind == "sisa_original" else "original"],
                settings.audit,
            )
            rows.append(
                _row(report.metrics)
                | {
                    "dataset": name,
                    "clusters": count,
                    "method": method,
                    "seed": seed,
                    "removed_rows": len(request),
                    "verdict": report.verdict.name,
                    "reason": report.verdict.reason,
                }
            )
    return rows


def _row(metrics: dict[str, float]) -> dict[str, Any]:
    """The metrics under the names of the table's columns."""
    renamed = {"attack_auc_low": "auc_low", "attack_auc_high": "auc_high"}
    return {renamed.get(name, name): value for name, value in metrics.items()}


def verdicts(frame: pd.DataFrame) -> pd.DataFrame:
    """How many seeds of each dataset, request size and method came to which verdict."""
    keys = ["dataset", "clusters", "method"]
    counted = frame.groupby(keys, sort=False)["verdict"].value_counts().unstack(fill_value=0)
    return counted.reindex(columns=[name for name in VERDICTS if name in counted]).reset_index()
