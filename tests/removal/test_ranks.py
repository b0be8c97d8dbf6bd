"""Several processes of torch.distributed compute, each with a share of the rows, what one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from puma.influence.sharding import gathered, share, summed
from puma.removal.puma.first_order_step import SEVERAL
from tests.removal import shared_by_ranks

RANKS = 3

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each of three ranks computed."""
    folder = tmp_path_factory.mktemp("ranks")
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(RANKS), "-m", "tests.removal.shared_by_ranks", str(folder)),
        ],
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=300,
    )
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(RANKS)]


def test_every_pass_and_every_removal_is_that_of_one_process(found):
    expected = shared_by_ranks.everything()
    for rank, mine in enumerate(found):
        for group, values in expected.items():
            assert mine[group].keys() == values.keys()
            for name, value in values.items():
                # λ for several criteria is found up to a tolerance; all else up to round-off.
                accuracy = 10 * SEVERAL if name == "several criteria" else 1e-10
                error = (mine[group][name] - value).abs().max() / value.abs().max()
                assert error <= accuracy, (rank, group, name)


def test_ranks_agree_on_what_could_differ_and_fail_together(found):
    for rank, mine in enumerate(found):
        agreements = mine["agreements"]
        assert agreements["agreed"].tolist() == [0, 0]
        assert agreements["from rank 0"] == 0
        assert agreements["refused"]
        assert agreements["unlike"]
        assert agreements["no training"]
        assert agreements["shares"].tolist() == [[0, 7], [7, 15], [15, 23]][rank]


def test_removals_change_the_weights(found):
    for name, values in found[0]["removals"].items():
        before, after = values[-3 - 12 * (name == "several criteria") :][:2]
        assert before != after, name


def test_one_process_alone_has_all_rows():
    assert share(5) == slice(0, 5)
    tensor = torch.ones(3)
    assert summed(tensor) is tensor
    assert gathered(tensor, 3) is tensor
