"""The table that one decides by, on versions with known numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from puma.errors import DataError
from puma.lineage.comparison import Comparison, registered_versions
from puma.project.files import write_json
from puma.project.workspace import Workspace
from tests.test_html_table import cells


def version(number: int, method: str, digest: str | None, **metrics: float) -> dict[str, Any]:
    return {
        "version": number,
        "method": method,
        "verdict": "passed" if digest else "forgetting_incomplete",
        "n_removed": 57 if digest else 0,
        "deletion_digest": digest,
        "metrics": metrics,
    }


FIRST = [
    version(1, "original", None, accuracy=0.74, attack_rate=1.0, retained_loss=0.2),
    version(2, "retrain", "a", accuracy=0.728, attack_rate=0.421, runtime_seconds=0.67),
    version(3, "puma", "a", accuracy=0.752, attack_rate=0.474, runtime_seconds=0.18),
]
EVERYTHING = {
    "attack_rate": 0.5,
    "remaining_influence": 0.1,
    "criterion_drift": 0.0004,
    "runtime_seconds": 1.0,
    "speedup_vs_retrain": 3.5,
}


def test_the_verdict_is_first_and_retraining_of_the_same_request_beside_each_version():
    later = [
        version(4, "retrain", "b", attack_rate=0.1),
        version(5, "puma", "b"),
        version(6, "puma", "c"),  # by `puma remove`: nothing was retrained
    ]
    table = Comparison.of("toy", [*FIRST, *later])
    rows = table.rows
    assert next(iter(rows)) == "verdict"
    assert rows["verdict"][0] == "forgetting incomplete"
    assert rows["accuracy (test)"] == ("0.740", "0.728", "0.752", "–", "–", "–")
    # The original is attacked for the newest request.
    retraining = rows["attack rate of retraining for the same request"]
    assert retraining == ("0.100", "0.421", "0.421", "0.100", "0.100", "–")
    assert "0.200" not in repr(table)  # one of fifty other metrics
    assert "R² (test)" not in rows


def test_at_most_ten_rows_of_every_task():
    tasks: list[dict[str, float]] = [{"accuracy": 0.7}, {"test_r2": 0.4, "test_mae": 40.0}]
    for test in tasks:
        metrics = {**test, **EVERYTHING}
        versions = [version(1, "original", None, **metrics), version(2, "retrain", "a", **metrics)]
        rows = Comparison.of("toy", versions).rows
        assert len(rows) <= 10
        assert ("mean absolute error (test)" in rows) == ("test_mae" in test)
    assert rows["drift of the retained rows' loss (nats)"] == ("4.0e-04", "4.0e-04")


def test_text_and_html_show_the_same_cells():
    table = Comparison.of("<toy>", FIRST)
    lines = cells(table._repr_html_())
    assert lines[0] == ["", "1 original", "2 retrain", "3 puma"]
    assert [tuple(line[1:]) for line in lines[1:]] == [*table.rows.values()]
    text = repr(table).splitlines()
    assert text[0] == "Versions of <toy>"
    assert len(text) == len(lines) + 1
    assert text[2].split()[-3:] == ["incomplete", "passed", "passed"]


def test_no_version_is_an_empty_table():
    assert repr(Comparison.of("toy", [])).startswith("Versions of toy")


def test_what_the_stage_register_wrote_is_read_or_asked_for(tmp_path: Path):
    workspace = Workspace(tmp_path)
    with pytest.raises(DataError, match=r"registered\.json: no such list .*run `dvc repro`"):
        registered_versions(workspace, "toy")
    write_json(workspace.registered, {"toy": [{"version": 1}]})
    assert registered_versions(workspace, "toy") == [{"version": 1}]
    with pytest.raises(DataError, match=r"has no versions of other; run `dvc repro`"):
        registered_versions(workspace, "other")
    workspace.registered.write_text("{")
    with pytest.raises(DataError, match=r"has no versions of toy; run `dvc repro`"):
        registered_versions(workspace, "toy")
