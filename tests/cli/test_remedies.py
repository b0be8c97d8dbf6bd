"""The command that a refusal names can be run as it stands, and helps."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from alembic import command as alembic
from click.testing import CliRunner
from mlflow.cli import cli as mlflow
from mlflow.store.db.utils import _get_alembic_config

from puma import cli
from puma.project.workspace import Workspace
from puma.registry import open_store, register_all
from tests.audited import copy_of
from tests.command import puma
from tests.registry.fixtures import _default_store, template
from tests.registry.projects import DATASET, copy_store, exported_model, make_project
from tests.registry.served import BUDGET, make_servable, servable_project

__all__ = ["_default_store", "template"]
NAME = f"puma-{DATASET}"
PACKAGE = Path(cli.__file__).parents[1]


@pytest.fixture(scope="module")
def promotable(template: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Versions 1 original, which serves, 2 retrain, 3 puma. Shared: read it only."""
    return servable_project(template, tmp_path_factory.mktemp("promotable") / "project")


@pytest.fixture
def own(promotable: Workspace, tmp_path: Path) -> Workspace:
    """Such a project of this test's own."""
    return copy_of(promotable, tmp_path / "own")


def named(text: str) -> list[list[str]]:
    """The arguments of every `puma …` that a message names."""
    return [shlex.split(found) for found in re.findall(r"`puma ([^`]+)`", " ".join(text.split()))]


def refused(workspace: Workspace, *arguments: str, code: int = 2) -> Any:
    result = puma(workspace.root, *arguments)
    assert result.exit_code == code, result.output
    return result


# --- every message of the package ---


def messages() -> Iterator[tuple[str, str]]:
    """Place and command of every `puma …` in a string that is no docstring."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        texts = {
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        inside = {
            each
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for each in node.values
        }
        for node in ast.walk(tree):
            if node in texts or node in inside:
                continue
            text = ""
            if isinstance(node, ast.JoinedStr):
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "1"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            for arguments in named(text):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", shlex.join(arguments)


def test_every_command_that_a_message_names_is_complete() -> None:
    found = list(messages())
    assert len(found) >= 5
    group: Any = typer.main.get_command(cli.app)
    for place, words in found:
        name, *arguments = shlex.split(words)
        try:
            group.commands[name].make_context(name, arguments)
        except Exception as error:  # typer's own copy of click has errors of its own
            pytest.fail(f"{place}: `puma {words}`: {error}")


# --- promote ---


@pytest.mark.slow
def test_a_version_of_somebody_else_leads_to_the_list(own: Workspace) -> None:
    open_store(own).create_model_version(NAME, source=str(own.root))
    (command,) = named(refused(own, "promote", DATASET, "4").stderr)
    listed = refused(own, *command, code=0).stdout
    assert "retrain" in listed
    assert refused(own, "promote", DATASET, "2", code=0).stdout.endswith(
        "version 2 is champion now, after version 1\n"
    )


@pytest.mark.slow
def test_a_changed_tag_leads_to_the_field(own: Workspace) -> None:
    open_store(own).set_model_version_tag(NAME, "3", "puma.n_removed", "99")
    (command,) = named(refused(own, "promote", DATASET, "3", code=1).stderr)
    assert (
        "FAILS       deletion.rows: expected 3, found 99" in refused(own, *command, code=1).stdout
    )


@pytest.mark.slow
def test_a_missing_certificate_leads_to_the_pipeline_that_issues_it(own: Workspace) -> None:
    open_store(own).delete_model_version_tag(NAME, "3", "puma.certificate")
    text = refused(own, "promote", DATASET, "3").stderr
    assert "run `dvc repro`, which issues those" in text
    (command,) = named(text)
    assert "run `dvc repro`, which issues those" in refused(own, *command).stdout
    assert puma(own.root, "registered").exit_code == 1  # so the stage register runs
    register_all(own, progress=False)
    refused(own, "promote", DATASET, "3", code=0)


@pytest.mark.slow
def test_a_budget_that_was_not_kept_leads_to_the_retrained_version(
    template: Workspace, tmp_path: Path
) -> None:
    own = make_project(tmp_path / "own")
    copy_store(template, own)
    make_servable(own, drift=2 * BUDGET)
    text = refused(own, "promote", DATASET, "3", code=1).stderr
    assert "budget fails: " in text
    (command,) = named(text)
    assert command == ["promote", DATASET, "2"]
    refused(own, *command, code=0)


@pytest.mark.slow
def test_changed_weights_can_be_restored(own: Workspace) -> None:
    client = open_store(own)
    other, archive = (exported_model(client, NAME, number) for number in ("2", "3"))
    backup = archive.read_bytes()
    archive.write_bytes(other.read_bytes())
    for command in ("promote", "verify"):
        assert "restore mlruns/" in refused(own, command, DATASET, "3", code=1).output
    archive.write_bytes(backup)
    for command in ("promote", "verify"):
        refused(own, command, DATASET, "3", code=0)


@pytest.mark.slow
def test_changed_weights_can_be_done_without(own: Workspace) -> None:
    client = open_store(own)
    other, archive = (exported_model(client, NAME, number) for number in ("2", "3"))
    archive.write_bytes(other.read_bytes())
    (command,) = named(refused(own, "promote", DATASET, "3", code=1).stderr)
    assert command == ["promote", DATASET, "2"]
    refused(own, *command, code=0)
    (command,) = named(refused(own, "erase", DATASET, "1", "--yes").stderr)
    assert command == ["erase", DATASET, "3"]
    refused(own, *command, "--yes", code=0)
    refused(own, "erase", DATASET, "1", "--yes", code=0)
    refused(own, "verify", DATASET, "2", code=0)


@pytest.mark.slow
def test_a_tombstone_that_was_changed_can_be_deleted(own: Workspace) -> None:
    client = open_store(own)
    client.set_registered_model_tag(NAME, "puma.erased.9", "{")
    for command in ("versions", "promote", "verify", "erase"):
        arguments = [] if command == "versions" else ["2"]
        if command == "verify":
            refused(own, command, DATASET, "2", code=0)  # it needs none
        else:
            text = refused(own, command, DATASET, *arguments).stderr
            assert "the tag puma.erased.9" in text
            assert "or delete it" in text
    client.delete_registered_model_tag(NAME, "puma.erased.9")
    for command in ("versions", "erase", "promote"):
        refused(own, command, DATASET, *([] if command == "versions" else ["2"]), code=0)


@pytest.mark.slow
def test_force_promotes_as_the_message_says(own: Workspace) -> None:
    open_store(own).set_model_version_tag(NAME, "3", "puma.verdict", "utility_lost")
    text = refused(own, "promote", DATASET, "3", code=1).stderr
    (option,) = re.findall(r'--force "[^"]+"', text)
    assert (
        "FORCED audit" in refused(own, "promote", DATASET, "3", *shlex.split(option), code=0).stdout
    )


# --- verify ---


@pytest.mark.slow
@pytest.mark.parametrize(
    "moved", ["by hand", "away", "to what conditions forbid to leave", "not yet"]
)
def test_a_champion_out_of_place_can_be_put_back(own: Workspace, moved: str) -> None:
    client, due = open_store(own), 1
    if moved == "not yet":  # a promotion that was cut short before its last step
        client.set_model_version_tag(NAME, "3", "puma.promoted_at", "2026-01-01T00:00:00+00:00")
        client.set_model_version_tag(NAME, "1", "puma.superseded_by", "3")
        due = 3
    elif moved == "away":
        client.delete_registered_model_alias(NAME, "champion")
    else:
        client.set_registered_model_alias(NAME, "champion", "3")
    commands = named(refused(own, "verify", DATASET, str(due), code=1).stdout)
    plain, forced = commands
    if puma(own.root, *plain).exit_code != 0:
        assert moved != "not yet"
        refused(own, *forced, code=0)
    assert int(client.get_model_version_by_alias(NAME, "champion").version) == due
    assert "alias champion: it serves" in refused(own, "verify", DATASET, str(due), code=0).stdout


@pytest.mark.slow
def test_a_clock_that_steps_back_does_not_change_who_is_to_serve(own: Workspace) -> None:
    refused(own, "promote", DATASET, "2", code=0)
    open_store(own).set_model_version_tag(
        NAME, "2", "puma.promoted_at", "2999-01-01T00:00:00+00:00"
    )
    refused(own, "promote", DATASET, "3", code=0)
    assert "alias champion: it serves" in refused(own, "verify", DATASET, "3", code=0).stdout
    assert "alias champion" not in refused(own, "verify", DATASET, "2", code=0).stdout


# --- erase ---


@pytest.mark.slow
def test_a_champion_is_erased_after_the_promotion_that_the_refusal_names(own: Workspace) -> None:
    (command,) = named(refused(own, "erase", DATASET, "1").stderr)
    assert command[-1] == "VERSION"
    refused(own, *command[:-1], "3", code=0)
    refused(own, "erase", DATASET, "1", code=0)


@pytest.mark.slow
def test_what_only_mlflow_can_delete_leads_to_its_pages(
    own: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_store(own)
    twin = client.get_model_version(NAME, "2")
    client.create_model_version(NAME, source=str(own.root))
    client.create_model_version(NAME, source=twin.source, run_id=twin.run_id)
    started: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: started.append(arguments))
    monkeypatch.setattr("puma.cli.ui._refuse_busy", lambda *_: None)
    for version in ("4", "2"):
        (command,) = named(refused(own, "erase", DATASET, version).stderr)
        refused(own, *command, code=0)
    assert len(started) == 2
    client.delete_model_version(NAME, "5")
    refused(own, "erase", DATASET, "2", code=0)


# --- any command ---


@pytest.mark.slow
def test_a_database_of_an_older_mlflow_is_upgraded_by_the_named_command_alone(
    own: Workspace,
) -> None:
    database = own.root / "mlflow.db"
    alembic.downgrade(_get_alembic_config(f"sqlite:///{database}"), "-1")
    before = database.read_bytes()
    model = ["--model", f"models:/{NAME}/1", "--deletions", "request.csv"]
    for arguments in (
        *(["versions", DATASET], ["compare", DATASET], ["registered"], ["ui"]),
        *([name, DATASET, "2"] for name in ("verify", "promote", "erase", "audit")),
        *(["suspects", DATASET], ["remove", *model]),
    ):
        text = refused(own, *arguments).stderr
        assert len(text.splitlines()) == 1, text
        assert re.search(r"found version \w+, but expected \w+\)\. Made by an older MLflow", text)
    assert database.read_bytes() == before
    (upgrade,) = re.findall(r"run `mlflow ([^`]+)`", text)
    assert CliRunner().invoke(mlflow, shlex.split(upgrade)).exit_code == 0
    for arguments in (["registered"], ["verify", DATASET, "2"], ["promote", DATASET, "2"]):
        refused(own, *arguments, code=0)


@pytest.mark.slow
def test_the_command_that_restores_a_deleted_experiment_works(
    own: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_store(own)
    client.delete_experiment(client.get_experiment_by_name("puma").experiment_id)
    text = refused(own, "versions", DATASET).stderr
    (command,) = re.findall(r"run `([^`]+)`", text)
    assignment, program, *arguments = shlex.split(command)
    assert program == "mlflow"
    name, _, uri = assignment.partition("=")
    monkeypatch.setenv(name, uri)
    assert CliRunner().invoke(mlflow, arguments).exit_code == 0
    monkeypatch.delenv(name)
    refused(own, "versions", DATASET, code=0)
