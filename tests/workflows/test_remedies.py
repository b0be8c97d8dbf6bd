"""What a refusal of ``puma remove`` or ``puma promote`` names helps, on a real project."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest

from puma.project.workspace import Workspace
from puma.registry import open_store
from puma.registry.versions import get_version
from tests.audited import DATASET
from tests.audited_fixtures import own, project
from tests.command import puma
from tests.registry.fixtures import _default_store, template
from tests.registry.projects import exported_model

__all__ = ["_default_store", "own", "project", "template"]

pytestmark = pytest.mark.slow
NAME = f"puma-{DATASET}"


def request(workspace: Workspace, first: int) -> str:
    """The file of a request of three people."""
    path = workspace.root / f"request-{first}.csv"
    ids = (f"zz-train-{number}\n" for number in range(first, first + 3))
    path.write_text("".join(["subject_id\n", *ids]))
    return path.name


def refusal(workspace: Workspace, arguments: list[str]) -> str:
    result = puma(workspace.root, *arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


def remove(workspace: Workspace, *arguments: str) -> str:
    """The number of the version that this registers."""
    result = puma(workspace.root, "remove", *arguments)
    assert result.exit_code in (0, 1), result.output
    (number,) = re.findall(rf"{NAME} version (\d+) registered", result.stdout)
    return str(number)


def test_each_refusal_of_remove_is_lifted_by_what_it_names(own: Workspace) -> None:
    client, params = open_store(own), own.root / "params.yaml"
    key, away = own.key, own.root / "away"
    archive, other = (exported_model(client, NAME, number) for number in ("1", "4"))
    weights, text = archive.read_bytes(), params.read_text()
    seed = get_version(client, DATASET, 1).tags["puma.seed"]

    archive.write_bytes(other.read_bytes())
    params.write_text(text.replace("epochs: 40", "epochs: 41"))
    key.rename(away)
    client.set_model_version_tag(NAME, "1", "puma.seed", "99")

    command = ["remove", "--model", f"models:/{NAME}/2", "--deletions", request(own, 20)]
    options = ["--method", "sisa", "--budget", "0.1"]

    def choose(place: int, before: str, after: list[str]) -> Callable[[], None]:
        def change() -> None:
            there = command if before in command else options
            start = there.index(before)
            there[start : start + place] = after

        return change

    remedies: list[tuple[str, Callable[[], object]]] = [
        ("choose one of .*retrain", choose(2, "--method", ["--method", "retrain"])),
        ("given no budget.* leave it out", choose(2, "--budget", [])),
        ("choose another version", choose(1, f"models:/{NAME}/2", [f"models:/{NAME}/1"])),
        (
            "seed: expected 0, found 99.* put it back",
            lambda: client.set_model_version_tag(NAME, "1", "puma.seed", seed),
        ),
        (f"{key} is not here.* restore it", lambda: away.rename(key)),
        ("epochs is 41.* put it back", lambda: params.write_text(text)),
        (
            "other weights.* restore mlruns/ and mlflow.db from a backup",
            lambda: archive.write_bytes(weights),
        ),
    ]
    for message, remedy in remedies:
        assert re.search(message, found := refusal(own, command + options)), found
        remedy()
    number = remove(own, *command[1:], *options)

    # Its tombstone forbids the same model; the options that the refusal names make another.
    assert puma(own.root, "erase", DATASET, number, "--yes").exit_code == 0
    found = refusal(own, command + options)
    (named,) = re.findall(r"add (--seed \d+ --method retrain),", found)
    assert int(remove(own, *command[1:], *shlex.split(named))) > int(number)


def test_a_version_that_lacks_somebody_else_than_an_erased_one_is_led_on(own: Workspace) -> None:
    def retrained(first: int) -> str:
        base = f"models:/{NAME}/1"
        return remove(
            own, "--model", base, "--deletions", request(own, first), "--method", "retrain"
        )

    one, two = retrained(20), retrained(30)
    assert puma(own.root, "promote", DATASET, one, "--force", "first").exit_code == 0
    assert puma(own.root, "promote", DATASET, two, "--force", "second").exit_code == 0
    assert puma(own.root, "erase", DATASET, one, "--yes").exit_code == 0
    due = retrained(40)
    result = puma(own.root, "promote", DATASET, due)
    steps = 0
    while result.exit_code != 0:
        steps += 1
        assert steps < 6, result.stderr
        commands = re.findall(r"`puma ([^`]+)`", " ".join(result.stderr.split()))
        named = shlex.split(commands[-1])
        due = remove(own, *named[1:]) if named[0] == "remove" else named[2]
        result = puma(own.root, "promote", DATASET, due)
    assert steps > 0
    assert "serves" in puma(own.root, "verify", DATASET, due).stdout
