"""Versions of one model side by side, by the few numbers that one decides by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from puma.errors import DataError
from puma.html_table import html_table, in_words, short_number
from puma.lineage.records import RETRAIN
from puma.project.workspace import Workspace

# Of a version's metrics; the rows of the table, in words. What no version has is left out.
_METRICS = {
    "accuracy": "accuracy (test)",
    "test_r2": "R² (test)",
    "test_mae": "mean absolute error (test)",
    "attack_rate": "attack rate: removed rows taken for members",
}
_FURTHER = {
    "remaining_influence": "remaining influence (0: as retrained, 1: never removed)",
    "criterion_drift": "drift of the retained rows' loss (nats)",
    "runtime_seconds": "runtime (seconds)",
    "speedup_vs_retrain": "times faster than retraining",
}


def registered_versions(workspace: Workspace, dataset: str) -> list[dict[str, Any]]:
    """What the stage ``register`` wrote of a dataset's versions, oldest first.

    Raises:
        DataError: There is no such file, or it has none of this dataset.
    """
    path = workspace.registered
    try:
        versions: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))[dataset]
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: no such list of versions; run `dvc repro`, which registers them"
        ) from error
    except (KeyError, json.JSONDecodeError) as error:
        raise DataError(
            f"{path}: has no versions of {dataset}; run `dvc repro`, which registers them"
        ) from error
    return versions


@dataclass(frozen=True, repr=False)
class Comparison:
    """The table that one decides by: at most ten rows, the verdict first.

    Attributes:
        dataset: Whose versions they are.
        columns: "version method" of each, oldest first.
        rows: By what it is, a text for each version; – for what it does not have.
    """

    dataset: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, dataset: str, versions: Iterable[Mapping[str, Any]]) -> Comparison:
        """Compare versions, oldest first.

        Args:
            dataset: Whose versions they are.
            versions: As ``puma versions --json`` prints them, and the stage ``register`` writes
                them: ``version``, ``method``, ``verdict``, ``n_removed``, ``deletion_digest`` and
                ``metrics`` of each.
        """
        versions = list(versions)
        rows = {
            "verdict": tuple(in_words(each["verdict"]) for each in versions),
            "removed rows": tuple(str(each["n_removed"]) for each in versions),
            **_numbers(versions, _METRICS),
        }
        if retrained := _attack_rates_of_retraining(versions):
            title = "attack rate of retraining for the same request"
            rows[title] = tuple(short_number(_retrained_rate(each, retrained)) for each in versions)
        rows |= _numbers(versions, _FURTHER)
        columns = tuple(f"{each['version']} {each['method']}" for each in versions)
        return cls(dataset, columns, rows)

    def __repr__(self) -> str:
        lines = [("", *self.columns), *((name, *cells) for name, cells in self.rows.items())]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            [
                f"Versions of {self.dataset}",
                *(
                    "  ".join(map(str.ljust, line, widths)).rstrip()  # names left, as in a table
                    for line in lines
                ),
            ]
        )

    def _repr_html_(self) -> str:
        lines = [(name, *cells) for name, cells in self.rows.items()]
        return html_table(f"Versions of {self.dataset}", lines, columns=("", *self.columns))


def _numbers(
    versions: list[Mapping[str, Any]], named: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    return {
        title: tuple(short_number(each["metrics"].get(name)) for each in versions)
        for name, title in named.items()
        if any(name in each["metrics"] for each in versions)
    }


def _attack_rates_of_retraining(versions: list[Mapping[str, Any]]) -> dict[str, float]:
    """Attack rate of the retrained version of each request, the newest last."""
    return {
        each["deletion_digest"]: each["metrics"]["attack_rate"]
        for each in versions
        if each["method"] == RETRAIN and "attack_rate" in each["metrics"]
    }


def _retrained_rate(version: Mapping[str, Any], rates: dict[str, float]) -> float | None:
    """That of the version's own request; an original is attacked for the newest."""
    if version["deletion_digest"] is None:
        return list(rates.values())[-1]
    return rates.get(version["deletion_digest"])
