"""Requests of a few people, from the request to the version that serves, without --force."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from puma.project.workspace import Workspace
from puma.registry import RegisteredVersion, list_versions, open_store
from tests.audited import DATASET, copy_of
from tests.audited_fixtures import own, project
from tests.command import puma
from tests.registry.fixtures import _default_store, template

__all__ = ["_default_store", "own", "project", "template"]

pytestmark = pytest.mark.slow

STEPS = 8  # a removal, a promotion, and so often again as a refusal says
STUCK = ["forgetting_incomplete", "over_forgotten", "utility_lost", "inconclusive"]


def versions(workspace: Workspace) -> list[RegisteredVersion]:
    return list_versions(open_store(workspace), DATASET)


def champion(workspace: Workspace) -> RegisteredVersion:
    return next(each for each in versions(workspace) if "champion" in each.aliases)


def remove(workspace: Workspace, rows: range, model: str = "@champion") -> int:
    """The version that answers the request, and whatever its verdict."""
    path = workspace.root / f"request-{rows.start}.csv"
    path.write_text("subject_id\n" + "".join(f"zz-train-{row}\n" for row in rows))
    asked = ["--model", f"models:/puma-{DATASET}{model}", "--deletions", str(path)]
    return answered(workspace, ["remove", *asked])


def answered(workspace: Workspace, command: list[str]) -> int:
    result = puma(workspace.root, *command)
    found = re.search(r"version (\d+) (registered|answers|is without)", result.stdout)
    assert found is not None, result.output
    row = versions(workspace)[int(found[1]) - 1]
    accepted = row.verdict in ("passed", "indistinguishable")
    assert result.exit_code == (0 if accepted else 1)
    return row.version


def promote(workspace: Workspace, number: int) -> list[str]:
    """Promote it, or what the refusals say; the commands that they name.

    The end is a promotion, or that the version which serves was made from this one.
    """
    named: list[str] = []
    for _ in range(STEPS):
        result = puma(workspace.root, "promote", DATASET, str(number))
        if result.exit_code == 0 or "let it serve on" in result.stderr:
            return named
        found = re.search(r"`puma ([^`]+)`", result.stderr)
        assert found is not None, result.stderr
        named.append(found[1])
        words = shlex.split(found[1])
        number = int(words[2]) if words[0] == "promote" else answered(workspace, words)
    raise AssertionError(f"no version may serve: {named}")


@pytest.mark.parametrize("people", [1, 2, 6])
def test_a_small_request_is_served(own: Workspace, people: int) -> None:
    promote(own, remove(own, range(20, 20 + people)))
    served = champion(own)
    assert served.n_removed == people
    assert served.verdict in ("passed", "indistinguishable")
    assert served.forced is None
    # And the next one, on the version that serves now.
    promote(own, remove(own, range(30, 30 + people)))
    assert champion(own).n_removed == 2 * people


@pytest.mark.parametrize("verdict", STUCK)
def test_no_verdict_is_the_end(project: Workspace, tmp_path: Path, verdict: str) -> None:
    """Version 5 is given each verdict; what the refusal names leads to a version without them."""
    workspace = copy_of(project, tmp_path / verdict)
    stuck = remove(workspace, range(20, 22))
    give_verdict(workspace, stuck, verdict)
    named = promote(workspace, stuck)
    assert "--method retrain" in named[0]
    retrained = champion(workspace)
    assert (retrained.method, retrained.n_removed) == ("retrain", 2)

    # Retrained ones can be stuck, too: the next one has another seed.
    again = copy_of(project, tmp_path / f"{verdict} again")
    stuck = answered(again, shlex.split(f"{removal(again)} --method retrain"))
    give_verdict(again, stuck, verdict)
    named = promote(again, stuck)
    assert "--method retrain --seed 1" in named[0]
    assert champion(again).version != stuck
    assert champion(again).tags["puma.seed"] != "0"
    assert champion(again).deletion_digest == versions(again)[stuck - 1].deletion_digest


def removal(workspace: Workspace) -> str:
    path = workspace.root / "again.csv"
    path.write_text("subject_id\nzz-train-20\nzz-train-21\n")
    return f"remove --model models:/puma-{DATASET}/1 --deletions {shlex.quote(str(path))}"


def give_verdict(workspace: Workspace, number: int, verdict: str) -> None:
    """As if the audit had come to it: tag and certificate."""
    from puma.registry.certificate.build import archive_certificate, issue_certificate

    client = open_store(workspace)
    name = f"puma-{DATASET}"
    client.set_model_version_tag(name, str(number), "puma.verdict", verdict)
    archive_certificate(client, client.get_model_version(name, str(number)))
    issue_certificate(client, DATASET, client.get_model_version(name, str(number)))


def test_a_stuck_version_blocks_nobody_and_nobody_comes_back(own: Workspace) -> None:
    first = remove(own, range(20, 26))
    stuck = remove(own, range(40, 44), "/1")
    give_verdict(own, stuck, "forgetting_incomplete")
    promote(own, first)
    served = champion(own)
    assert served.n_removed == 6
    # Those of the second request are noted, and then served.
    promote(own, stuck)
    assert champion(own).n_removed == 10
    # Neither the original nor the first may serve again; the way on leads to nobody's return.
    for number in (1, served.version):
        result = puma(own.root, "promote", DATASET, str(number))
        assert result.exit_code == 1
        assert "they would come back; " in result.stderr
    promote(own, served.version)
    assert champion(own).n_removed == 10
