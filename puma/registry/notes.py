"""What people did with a version, kept below what a version's page says by itself."""

from __future__ import annotations

MARK = "\n\n---\n\n"


def add_note(description: str | None, note: str) -> str:
    """``description`` with ``note`` as its last paragraph, below the mark."""
    written = description or ""
    return written + ("\n\n" if MARK in written else MARK) + note


def with_notes(described: str, description: str | None) -> str:
    """``described`` anew, with the notes that ``description`` already carried."""
    _, mark, notes = (description or "").partition(MARK)
    return described + mark + notes
