"""``torchrun -m puma remove``: one version, the same as one process makes; or none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from puma.project.workspace import Workspace
from puma.registry import Registry, list_versions, open_store
from tests.audited import DATASET, copy_of
from tests.audited_fixtures import own, project
from tests.registry.fixtures import _default_store, template

__all__ = ["_default_store", "own", "project", "template"]

pytestmark = pytest.mark.slow

CRITERION = """\
import os, signal
from torch.nn.functional import cross_entropy

def loss(logits, labels):
    if os.environ.get("RANK") == "1":
        {deed}
    return cross_entropy(logits, labels)
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
RAISES = "raise KeyError"


def removed(own: Workspace, *options: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """What ``puma remove`` prints and ends with; its version is new."""
    request = own.root / "request.csv"
    request.write_text("subject_id\nzz-train-20\nzz-train-21\nzz-train-22\n")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run(
        [
            *(sys.executable, *(launch if ranks > 1 else []), "-m", "puma", "remove"),
            *("--model", f"models:/puma-{DATASET}/1", "--deletions", str(request), *options),
        ],
        cwd=own.root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def names(own: Workspace) -> set[int]:
    return {each.version for each in list_versions(open_store(own), DATASET)}


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
def test_two_processes_register_what_one_would(
    own: Workspace, project: Workspace, tmp_path: Path
) -> None:
    alone, before = copy_of(project, tmp_path / "alone"), names(own)
    done, single = removed(own), removed(alone, ranks=1)
    (version,) = names(own) - before
    assert f"version {version} registered: 3 rows of 3 people" in done.stdout, done.stderr
    assert names(alone) == names(own), single.stderr
    # All but the seconds, printed once.
    assert [without_numbers(each) for each in (done.stdout, single.stdout)] == [
        without_numbers(single.stdout)
    ] * 2
    found, expected = (weights(each, version) for each in (own, alone))
    original = weights(own, 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (found - original).abs().max() > 1e-3


def without_numbers(text: str) -> str:
    return re.sub(r"[\d.]+", "#", text)


def weights(own: Workspace, version: int) -> Tensor:
    registry = Registry.open(own)
    (found,) = [each for each in registry.versions(DATASET) if each.version == version]
    return parameters_to_vector(registry.load_module(found).parameters()).detach()


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
@pytest.mark.parametrize(
    ("deed", "words"),
    [(KILLED, "Signal 9"), (RAISES, "criterion 'deadly:loss' raised KeyError")],
)
def test_a_rank_that_fails_ends_all_and_nothing_is_registered(
    own: Workspace, deed: str, words: str
) -> None:
    (own.root / "deadly.py").write_text(CRITERION.format(deed=deed))
    params = own.root / "params.yaml"
    preserve = "preserve: [{criterion: 'deadly:loss', budget: 0.1, name: own}]"
    params.write_text(
        params.read_text().replace("reference_models: 1", f"reference_models: 0, {preserve}")
    )
    before = names(own)
    done = removed(own)
    assert done.returncode != 0
    assert words in done.stderr
    assert names(own) == before
    assert "registered" not in done.stdout


def test_other_commands_are_for_one_process(own: Workspace, tmp_path: Path) -> None:
    """Rank 0 says so, however late it is."""
    late = "import os, time\nif os.environ.get('RANK') == '0':\n    time.sleep(3)\n"
    (tmp_path / "sitecustomize.py").write_text(late)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "-m", "puma", "versions", DATASET),
        ],
        cwd=own.root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.count("puma versions is for one process; run it without torchrun") == 1
