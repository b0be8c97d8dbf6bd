"""A part of the inputs of ``python -m benchmarks fuzz``; the slow test takes them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fuzz import FAILURES, FAMILIES, judge, make_cases
from benchmarks.fuzz_case import REFUSED, Case
from puma.errors import DataError
from tests.registry.fixtures import _default_store

__all__ = ["_default_store"]
SAMPLED = {"requests": 6, "params": 40, "calls": 12}  # every so many of a family


@pytest.mark.parametrize("family", SAMPLED)
def test_a_sample_of_inputs_is_told_apart(family: str, tmp_path: Path) -> None:
    cases = make_cases(family, tmp_path, seed=1)[:: SAMPLED[family]]
    assert {case.expected is REFUSED for case in cases} == {False, True}
    found = {case.name: judge(case) for case in cases}
    assert {name: seen for name, seen in found.items() if seen.name in FAILURES} == {}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_all_inputs_are_told_apart(family: str, tmp_path: Path) -> None:
    cases = make_cases(family, tmp_path, seed=0)
    found = {f"{at} {case.name}": judge(case) for at, case in enumerate(cases)}
    assert len(found) >= 200
    assert {name: seen for name, seen in found.items() if seen.name in FAILURES} == {}


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("run", "expected", "outcome"),
    [
        (lambda: 3, 3, "accepted"),
        (lambda: 3, 4, "wrongly accepted"),
        (lambda: 3, REFUSED, "wrongly accepted"),
        (lambda: _raise(DataError("too small; make it larger")), REFUSED, "refused clearly"),
        (lambda: _raise(DataError("too small; make it larger")), 3, "wrongly refused"),
        (lambda: _raise(DataError("person-7 is unknown")), REFUSED, "traceback"),
        (lambda: _raise(DataError("x" * 5000)), REFUSED, "traceback"),
        (lambda: _raise(KeyError("x")), REFUSED, "traceback"),
        (lambda: _raise(KeyError("x")), 3, "traceback"),
    ],
)
def test_an_outcome_is_judged_by_what_was_expected(
    run: object, expected: object, outcome: str
) -> None:
    assert judge(Case("", run, expected, secrets=("person-7",))).name == outcome  # type: ignore[arg-type]


def test_a_refusal_that_leaves_a_file_is_none(tmp_path: Path) -> None:
    def run() -> None:
        (tmp_path / "half").write_text("x")
        raise DataError("too small; make it larger")

    assert "files changed" in judge(Case("", run, REFUSED, folder=tmp_path)).detail
