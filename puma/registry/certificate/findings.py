"""Findings: the outcome of checking one version, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["holds", "fails", "unknown", "skipped"]


@dataclass(frozen=True)
class Finding:
    """The outcome of checking one field.

    Attributes:
        field: The dotted path of a field of the certificate, or what else was checked.
        state: "unknown" when it cannot be checked; "skipped" when there is nothing here to check
            it against, and need not be.
        detail: What was found, or why it cannot be checked and what to do.
        expected: The value that was issued; None unless the field fails.
        found: The value that is there now; None unless the field fails.
    """

    field: str
    state: State
    detail: str
    expected: Any = None
    found: Any = None


@dataclass(frozen=True)
class Verification:
    """All findings about one version."""

    dataset: str
    version: int
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """The fields that do not hold, each once."""
        return self._fields("fails")

    @property
    def unknown(self) -> tuple[str, ...]:
        """The fields that cannot be checked, each once."""
        return self._fields("unknown")

    def _fields(self, state: State) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.field for one in self.findings if one.state == state))

    @property
    def conclusion(self) -> str:
        """The outcome in words. A failure goes before what cannot be checked."""
        if self.failed:
            return f"does not hold: {', '.join(self.failed)}"
        if self.unknown:
            return f"cannot be checked: {', '.join(self.unknown)}"
        return "holds"

    def to_dict(self) -> dict[str, Any]:
        """As `puma verify --json` prints it."""
        findings = [asdict(finding) for finding in self.findings]
        return {
            "dataset": self.dataset,
            "version": self.version,
            "conclusion": self.conclusion,
            "findings": findings,
        }


def differs(field: str, expected: Any, found: Any, why: str) -> Finding:
    """The finding about a field that does not hold."""
    detail = f"expected {_shown(expected)}, found {_shown(found)}: {why}"
    return Finding(field, "fails", detail, expected, found)


def differences(expected: Any, found: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the leaves in which two JSON values differ: dotted path, expected and found value.

    A list is a leaf.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in sorted(expected.keys() | found.keys()):
            below = f"{path}.{name}" if path else name
            yield from differences(expected.get(name), found.get(name), below)
    elif json.dumps(expected, sort_keys=True) != json.dumps(found, sort_keys=True):
        yield path, expected, found


def _shown(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value)
