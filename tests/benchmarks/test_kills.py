"""Removals of the direct path, killed; benchmarks/kills.py kills many more of them."""

from __future__ import annotations

import random

import pytest

from benchmarks import kills
from tests.audited import DATASET
from tests.registry.fixtures import _default_store

__all__ = ["_default_store"]
KILLS = 5
DONE = ("registered", "done")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> kills.Range:
    folder = tmp_path_factory.mktemp("kills")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return kills.Range.of(folder, kills.prepare(folder, None, DATASET), DATASET)


@pytest.mark.slow
def test_killed_at_random_times(target: kills.Range) -> None:
    target.run()  # the first fork waits for what it is forked from
    lasts = target.run()
    assert lasts is not None
    draw = random.Random(1)
    for number in range(1, KILLS + 1):
        target.run(draw.uniform(0, lasts))
        found = target.see(rerun=number == KILLS)
        assert found.half_versions == 0
        assert found.versions_after - found.versions_before == (found.reached in DONE)
    assert found.rerun == "completed"
