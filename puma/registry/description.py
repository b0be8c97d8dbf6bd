"""What a version's page says: what the version is, and below that, what people did with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from puma.lineage.records import HEADLINE_METRICS, ModelRecord
from puma.settings import ORIGINAL

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

MARK = "\n\n---\n\n"


def describe(receipt: ModelRecord, parent: ModelVersion | None) -> str:
    """What the version is, for the reader of its page (Markdown)."""
    if parent is None:
        purpose = receipt.method.removesuffix("_original")
        recorded = "" if receipt.method == ORIGINAL else f", with what {purpose} removes by"
        text = f"**Original** model of {receipt.dataset}: trained on every training row{recorded}."
    else:
        text = (
            f"**{receipt.method}**: version {parent.version} of {receipt.dataset} without "
            f"{receipt.n_removed} training rows of {receipt.n_subjects} people.\n\n"
            f"Deletion set: `{receipt.deletion_digest}` (keyed digest)"
        )
    if receipt.verdict is not None:
        text += f"\n\nAudit: **{receipt.verdict}**: {receipt.verdict_reason}."
    numbers = [
        f"- {name}: {receipt.metrics[name]:.4g}"
        for name in HEADLINE_METRICS
        if name in receipt.metrics
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
