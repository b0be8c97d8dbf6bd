"""The page of a certificate for people: one HTML file that loads nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from puma.html_table import rows_of_people

STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}"
    "th{font-weight:normal;color:#555;text-align:left;vertical-align:top;width:14rem}"
    "th,td{padding:.2rem .5rem .2rem 0;border-bottom:1px solid #ddd}"
    "td{font-family:monospace;overflow-wrap:anywhere}"
)
GROUPS = ("parameters", "parent", "deletion", "environment", "git")

NOTHING_SHOWN = (
    "That the removed rows are forgotten. They are so few that models trained with and without "
    "them cannot be told apart: the audit found nothing, and could have found nothing. It shows "
    "that the predictions differ from retrained models' by no more than chance."
)
PREDICTED = (
    "That models were retrained for the audit. What retrained models would predict was itself "
    "predicted, from models that were trained once, each without other people."
)


def page(certificate: dict[str, Any], digest: str) -> str:
    """Write a certificate as HTML; ``digest`` is the SHA-256 of its canonical text."""
    audit, removal = certificate["audit"], certificate["deletion"]
    what = "Removal" if removal else "Original"
    heading = f"{what}: {certificate['method']} of {certificate['dataset']}"
    single = [
        (name, value)
        for name, value in certificate.items()
        if name not in (*GROUPS, "audit", "limits", "preserved")
    ]
    parts = [f"<h1>{escape(heading)}</h1>"]
    if removal:
        parts.append(
            f"<p>{rows_of_people(removal['rows'], removal['subjects'], noun='training row')} "
            f"{'was' if removal['rows'] == 1 else 'were'} removed from "
            f"version {certificate['parent']['version']}.</p>"
        )
    if audit:
        parts.append(
            f"<p>Audit: <strong>{escape(audit['verdict'])}</strong>: {escape(audit['reason'])}.</p>"
        )
    limits = list(certificate["limits"])
    if audit and audit["verdict"] == "indistinguishable":
        limits.insert(0, NOTHING_SHOWN)
    if audit and audit.get("evidence") == "pool":
        limits.append(PREDICTED)
    parts.append(f"<h2>What this certificate does not show</h2><ul>{_items(limits)}</ul>")
    parts.append(f"<h2>The version</h2>{_table(single)}")
    for name in GROUPS:
        if certificate[name]:
            title = name if name == "git" else name.capitalize()
            parts.append(f"<h2>{title}</h2>{_table(certificate[name].items())}")
    if certificate.get("preserved"):
        rows = [
            (
                each["name"],
                f"{each['criterion']}: {each['before']:.4g}, then {each['after']:.4g}; moved by "
                f"{each['drift']:+.4g}, of {each['budget']:.4g} allowed",
            )
            for each in certificate["preserved"]
        ]
        parts.append(f"<h2>What was to be kept</h2>{_table(rows)}")
    if audit:
        about = [(name, audit[name]) for name in ("weights_digest", "deletion_digest")]
        parts.append(f"<h2>Audit</h2>{_table([*about, *sorted(audit['metrics'].items())])}")
        if audit["unresolved"]:
            parts.append(f"<p>Not measured reliably: {escape(', '.join(audit['unresolved']))}.</p>")
    parts.append(
        f"<p>SHA-256 of certificate.json: <code>{escape(digest)}</code>. To check it: "
        "<code>puma verify</code>.</p>"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(heading)}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    lines = (f"<tr><th>{escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in rows)
    return f"<table>{''.join(lines)}</table>"


def _cell(value: Any) -> str:
    return escape("none" if value is None else str(value))


def _items(texts: Iterable[str]) -> str:
    return "".join(f"<li>{escape(text)}</li>" for text in texts)
