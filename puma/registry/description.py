"""The text of a version's page: what the version is, and notes below that."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from puma.html_table import rows_of_people
from puma.lineage.records import ADOPTED_FROM, HEADLINE_METRICS, ModelRecord
from puma.registry.certificate.build import PAGE
from puma.registry.chart import CHART
from puma.registry.preserved import BOUND_BY, NOTHING, preserved_of
from puma.settings import ORIGINAL, EvidenceSource

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

EVIDENCE_IN_WORDS: dict[EvidenceSource, str] = {
    "pool": "against retrained models as the pool predicts them",
    "retrain": "against retrained models",
}
MARK = "\n\n---\n\n"


def run_page(experiment: str, run_id: str) -> str:
    """The address of a run in MLflow's UI, wherever that is served."""
    return f"#/experiments/{experiment}/runs/{run_id}"


def _version_page(version: ModelVersion) -> str:
    return f"#/models/{quote(version.name, safe='')}/versions/{version.version}"


def describe(record: ModelRecord, parent: ModelVersion | None, run: str) -> str:
    """What the version is, for the reader of its page (Markdown).

    Args:
        record: What it is and what was measured of it.
        parent: The version that it was made from; None for an original.
        run: The address of its run, see :func:`run_page`.
    """
    if parent is None:
        purpose = record.method.removesuffix("_original")
        recorded = "" if record.method == ORIGINAL else f", with what {purpose} removes by"
        text = f"**Original** model of {record.dataset}: trained on every training row{recorded}."
        if ADOPTED_FROM in record.parameters:
            text += (
                f" Adopted from `{record.parameters[ADOPTED_FROM]}`, which was trained elsewhere."
            )
    else:
        text = (
            f"**{record.method}**: [version {parent.version}]({_version_page(parent)}) of "
            f"{record.dataset} without "
            f"{rows_of_people(record.n_removed, record.n_subjects, noun='training row')}.\n\n"
            f"Deletion set: `{record.deletion_digest}` (keyed digest)"
        )
    text += (
        f"\n\nTo read: its [certificate]({run}/artifacts/{PAGE}), its [run]({run}), and a "
        f"[chart]({run}/artifacts/{CHART}) of the versions up to this one."
    )
    if record.verdict is not None:
        source = EVIDENCE_IN_WORDS[record.evidence or "retrain"]
        text += f"\n\nAudit, {source}: **{record.verdict}**: {record.verdict_reason}."
    kept = preserved_of({k: str(v) for k, v in record.parameters.items()}, record.metrics)
    if kept:
        lines = [
            f"- {each.title} ({each.what}): {each.before:.4g}, then {each.after:.4g}; moved by "
            f"{each.drift:+.4g}, of {each.budget:.4g} allowed"
            for each in kept
        ]
        bound = str(record.parameters.get(BOUND_BY, NOTHING))
        if bound != NOTHING:
            lines.append(f"- What kept the rows from their targets: {bound}")
        text += "\n\nWhat was to be kept:\n\n" + "\n".join(lines)
    numbers = [
        f"- {name}: {record.metrics[name]:.4g}"
        for name in HEADLINE_METRICS
        if name in record.metrics
    ]
    return "\n\n".join([text, "\n".join(numbers)]) if numbers else text


def add_note(description: str | None, note: str) -> str:
    """``description`` with ``note`` as its last paragraph, below the mark."""
    written = description or ""
    return written + ("\n\n" if MARK in written else MARK) + note


def with_notes(described: str, description: str | None) -> str:
    """``described`` anew, with the notes that ``description`` already carried."""
    _, mark, notes = (description or "").partition(MARK)
    return described + mark + notes
