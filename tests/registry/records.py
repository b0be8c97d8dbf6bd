"""What a registry holds of an original and of a removal from it, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlflow.entities import Metric, Param, Run, RunData, RunInfo, RunTag

from puma.registry.certificate.build import build, canonical, digest, parent_fields
from puma.registry.certificate.compare import Ancestor, Record

METRICS = {
    "accuracy": 0.7,
    "criterion_drift": -0.0025,
    "train_loss": 0.4,
    "lira_auc": 0.5,
    "bad": float("nan"),
}
PARAMS = {"method": "puma", "dataset": "toy", "damping": "0.1", "budget": "0.01", "n_removed": "3"}
RUN_TAGS = {
    "puma.python": "3.12.1",
    "puma.version": "1.0",
    "puma.torch": "2.0",
    "puma.mlflow": "3.0",
    "mlflow.source.git.commit": "c" * 40,
    "puma.git_uncommitted": "false",
}
ORIGINAL_TAGS = {
    "puma.fingerprint": "9" * 64,
    "puma.method": "original",
    "puma.seed": "7",
    "puma.data_digest": "d" * 64,
    "puma.weights_digest": "8" * 64,
}
REMOVAL_TAGS = {
    "puma.fingerprint": "f" * 64,
    "puma.method": "puma",
    "puma.seed": "7",
    "puma.data_digest": "d" * 64,
    "puma.weights_digest": "a" * 64,
    "puma.parent_version": "1",
    "puma.deletion_digest": "e1" * 32,
    "puma.n_removed": "3",
    "puma.n_subjects": "2",
    "puma.verdict": "passed",
    "puma.verdict_reason": "like retraining",
    "puma.audited_weights": "a" * 64,
    "puma.audited_deletion": "e1" * 32,
    "puma.unresolved": "lira_auc",
}
PAGE = "<p>passed</p>"


def run_of(metrics: Mapping[str, float] = METRICS) -> Run:
    return Run(
        RunInfo("run", "1", "nobody", "FINISHED", 1764331200000, None, "active"),
        RunData(
            metrics=[Metric(name, value, 0, 0) for name, value in metrics.items()],
            params=[Param(name, text) for name, text in PARAMS.items()],
            tags=[RunTag(name, text) for name, text in RUN_TAGS.items()],
        ),
    )


def issued(version: int, tags: Mapping[str, str], above: Record | None = None) -> Record:
    """The record of a version whose certificate was issued just now."""
    parent, refers, ancestors = None, None, ()
    if above is not None:
        parent, refers = parent_fields(above.version, above.tags), above.tags["puma.certificate"]
        ancestors = (as_ancestor(above), *above.ancestors)
    text = canonical(build("toy", tags, run_of(), parent, refers))
    vouched = {"puma.certificate": digest(text), "puma.certificate_page": digest(PAGE)}
    run_id = f"run{version}"
    return Record("toy", version, {**tags, **vouched}, run_id, run_of(), text, PAGE, ancestors)


def as_ancestor(record: Record, *kept: str) -> Ancestor:
    """``record`` as one above another, which keeps the texts of earlier certificates, too."""
    texts = [*kept, *([] if record.certificate is None else [record.certificate])]
    present = None if record.certificate is None else digest(record.certificate)
    return Ancestor(record.version, record.tags, {digest(text): text for text in texts}, present)


def tagged(record: Record, **values: str | None) -> Record:
    """With these tags changed; without those that are None."""
    tags = {**record.tags, **{f"puma.{name}": value for name, value in values.items()}}
    return replace(record, tags={name: value for name, value in tags.items() if value is not None})


def below(record: Record, *ancestors: Any) -> Record:
    return replace(record, ancestors=ancestors)


ORIGINAL = issued(1, ORIGINAL_TAGS)
REMOVAL = issued(3, REMOVAL_TAGS, ORIGINAL)
