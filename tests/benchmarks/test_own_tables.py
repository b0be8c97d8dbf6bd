"""The benchmark of tables of one's own measures the stage that it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.own_tables import made_table, measured

ROOT = Path(__file__).parents[2]


def test_the_table_has_the_size_that_was_asked_for() -> None:
    table = made_table(500, 30)
    assert table.shape == (500, 30)
    assert {*map(str, table.dtypes)} >= {"float64", "bool", "datetime64[ns]"}
    assert 1 < table["customer_id"].value_counts().mean() < 4
    assert table["column_3"].isna().mean() == pytest.approx(0.05, abs=0.04)


@pytest.mark.slow
def test_the_stage_is_run_and_measured() -> None:
    row = measured(400, 9, "csv.gz", ROOT)
    # One column of two categories, a date, a truth value, and four numbers with their gaps.
    assert (row["rows"], row["columns"], row["features"]) == (400, 9, 2 + 1 + 1 + 4 * 2)
    assert 1 < row["seconds"] < 200
    assert 1 < row["cpu_seconds"] < 200
    assert 0.1 < row["peak_gb"] < 2
