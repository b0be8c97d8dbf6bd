"""Deletion requests one after another: how well is everybody forgotten after the k-th?

    OMP_NUM_THREADS=1 python -m benchmarks request-sequence --seeds 5 --requests 10

Three ways to answer the k-th request for `--people` random people of German Credit:

levelled  from the version before, taking everybody removed so far to their target margins
          (what `puma remove` does);
new only  from the version before, taking the new people alone to theirs;
at once   from the original, everybody in one removal.

Each is audited for everybody who was removed so far, against the same retrained models.
Writes docs/results/sequence.csv.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from puma.audit import Evidence, LiRA, audit_removal, predict, train_shadow_attack
from puma.audit.evidence import train_references, train_shadows
from puma.data import load_dataset
from puma.models import build_model
from puma.models.predictions import accuracy
from puma.project.files import require_writable, write_text
from puma.removal import Removal, Trained, build_method
from puma.requests.deletion_set import DeletionSet
from puma.settings import PumaSettings, Settings

OUTPUT = Path(__file__).parents[1] / "docs" / "results" / "sequence.csv"
DATASET = "german_credit"
WAYS = ("levelled", "new only", "at once")
NUMBERS = (
    "remaining_influence",
    "remaining_influence_low",
    "remaining_influence_high",
    "gap_to_retrain_ratio",
    "retained_accuracy",
    "audit_passed",
)


def rows_of(seed: int, requests: int, people: int) -> Iterator[dict[str, object]]:
    """One row for each request and way."""
    # A pool serves the data that it was trained on, and one of the ways removes from other data.
    settings = Settings(seed=seed, puma=PumaSettings(reference_models=1))
    data = load_dataset(DATASET, seed=seed, test_fraction=settings.data.test_fraction)
    method = build_method("puma", settings)
    initial = build_model(settings.model, data, seed=seed)
    original = method.fit(initial, data, progress=False)
    attack = train_shadow_attack(
        data, settings.model, settings.training, settings.shadow, seed=seed, progress=False
    )
    lira = LiRA(train_shadows(data, settings, progress=False))
    ids = sorted(set(data.train.subject_ids.tolist()))
    random.Random(seed).shuffle(ids)

    latest = dict.fromkeys(WAYS, original.predictor)
    drifts = dict.fromkeys(WAYS, 0.0)
    for number in range(1, requests + 1):
        gone = ids[: number * people]
        marked = DeletionSet.of(gone, data)
        earlier = gone[:-people]
        left = data
        if earlier:
            left = replace(data, train=data.train.without(DeletionSet.of(earlier, data).rows))
        new = DeletionSet.of(gone[-people:], left)
        with_rows, without_rows = train_references(
            data, marked, "original", settings, progress=False
        )
        evidence = Evidence(attack, lira, with_rows, without_rows)
        for way in WAYS:
            removed = new if way == "new only" else marked
            start = original.predictor if way == "at once" else latest[way]
            removal: Removal = method.remove(
                Trained(start, removed.dataset, initial), removed, progress=False
            )
            latest[way] = removal.predictor
            base = 0.0 if way == "at once" else drifts[way]
            drifts[way] = base + removal.criterion_drift
            predictions = predict(
                removal.predictor, data.train, data.test, parent=original.predictor
            )
            report = audit_removal(predictions, data, marked, evidence, settings.audit)
            yield {
                "seed": seed,
                "request": number,
                "way": way,
                "n_removed": len(marked),
                "verdict": report.verdict.name,
                "cumulative_drift": drifts[way],
                "accuracy": accuracy(removal.predictor, data.test),
                **{name: report.metrics[name] for name in NUMBERS},
            }


def main(
    seeds: Annotated[int, typer.Option(min=1)] = 5,
    requests: Annotated[int, typer.Option(min=1)] = 10,
    people: Annotated[int, typer.Option(min=1)] = 8,
    output: Path = OUTPUT,
) -> None:
    """Answer deletion requests one after another and audit every new version."""
    require_writable(output)
    found = []
    for seed in range(seeds):
        for row in rows_of(seed, requests, people):
            found.append(row)
            print(
                f"seed {seed}, request {row['request']:>2}, {row['way']:>8}: {row['verdict']}, "
                f"remaining influence {row['remaining_influence']:+.2f}",
                flush=True,
            )
    table = pd.DataFrame(found)
    write_text(output, table.to_csv(index=False, float_format="%.6g"))
    passed = table.pivot_table(
        index="request", columns="way", values="audit_passed", aggfunc="sum"
    ).astype(int)
    print(passed)
    print(table.groupby("way")[["accuracy", "cumulative_drift", *NUMBERS]].mean().round(3).T)
