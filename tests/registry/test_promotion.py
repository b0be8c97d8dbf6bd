"""Promoting in a real store: what is written and what is left alone.

The conditions themselves are tested in test_promotion_rules.
"""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from puma.errors import RegistryError
from puma.project.workspace import Workspace
from puma.registry import list_versions, open_store, promotion, register_all
from puma.registry.certificate.build import read_artifact
from puma.registry.certificate.verify import verify_version
from puma.registry.promotion import PromotionRefusedError, promote
from puma.registry.versions import get_version
from tests.audited import copy_of
from tests.command import puma
from tests.registry.projects import (
    DATASET,
    OTHER_DELETION,
    write_audit,
)
from tests.registry.served import amend, answer, servable_project

NAME = f"puma-{DATASET}"


@pytest.fixture(scope="module")
def promotable(template: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Versions 1 original, which serves, 2 retrain, 3 puma. Shared: read it only."""
    return servable_project(template, tmp_path_factory.mktemp("promotable") / "project")


@pytest.fixture
def servable(promotable: Workspace, tmp_path: Path) -> Workspace:
    """Such a project of this test's own."""
    return copy_of(promotable, tmp_path / "servable")


def champion(workspace: Workspace) -> int:
    return int(open_store(workspace).get_model_version_by_alias(NAME, "champion").version)


def tags(workspace: Workspace, number: int) -> dict[str, str]:
    """Those on the version's page, and those that its run has for it."""
    return dict(get_version(open_store(workspace), DATASET, number).tags)


def refused(workspace: Workspace, number: int) -> dict[str, tuple[str, str]]:
    """Name of every condition that does not hold -> state, words; nothing was changed."""
    before = state(workspace)
    with pytest.raises(PromotionRefusedError) as caught:
        promote(workspace, DATASET, number)
    assert state(workspace) == before
    closed = {c.name: (c.state, c.detail) for c in caught.value.conditions if c.state != "holds"}
    for name, (_, said) in closed.items():
        assert f"{name} " in str(caught.value)
        assert said in str(caught.value)
    assert caught.value.any_fails == any(word == "fails" for word, _ in closed.values())
    return closed


def state(workspace: Workspace) -> Any:
    client = open_store(workspace)
    found = client.search_model_versions(f"name='{NAME}'")
    pages = [(item.version, item.description, dict(item.tags)) for item in found]
    return pages, list_versions(client, DATASET)


def replace_weights(workspace: Workspace, number: int, other: int) -> None:
    """The registered files of version ``number`` become those of ``other``."""
    client = open_store(workspace)
    folders = [
        workspace.root
        / "mlruns/puma/models"
        / client.get_model_version(NAME, str(each)).source.removeprefix("models:/")
        / "artifacts"
        for each in (number, other)
    ]
    assert all(folder.is_dir() for folder in folders)
    shutil.rmtree(folders[0])
    shutil.copytree(folders[1], folders[0])


# --- one promotion after another ---


@pytest.mark.slow
def test_promotions_one_after_another(servable: Workspace) -> None:
    start = datetime.now(UTC) - timedelta(seconds=1)
    done = promote(servable, DATASET, "challenger")
    assert (done.version, done.previous, done.moved, done.overridden) == (3, 1, True, ())
    assert [condition.state for condition in done.conditions] == ["holds"] * 6
    assert champion(servable) == 3
    assert tags(servable, 1)["puma.superseded_by"] == "3"
    promoted = tags(servable, 3)
    assert start <= datetime.fromisoformat(promoted["puma.promoted_at"]) <= datetime.now(UTC)
    assert not {"puma.forced", "puma.superseded_by"} & promoted.keys()
    page = open_store(servable).get_model_version(NAME, "3").description
    assert "Promoted" not in page

    before = state(servable)
    for force in (None, "to be sure"):  # it serves already
        done = promote(servable, DATASET, "champion", force=force)
        assert (done.version, done.previous, done.moved) == (3, 3, False)
    result = puma(servable.root, "promote", DATASET, "3")
    assert result.exit_code == 0
    assert result.stdout == "puma-toy version 3 serves already; nothing was changed\n"
    assert state(servable) == before

    closed = refused(servable, 1)
    assert closed.keys() == {"requests"}
    assert "version 1 is not known to be without these people: they would come back" in str(closed)
    result = puma(servable.root, "promote", DATASET, "1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "requests fails: version 3 (puma), which serves, removed 3 rows" in result.stderr
    assert '--force "a reason", which is written on the version' in result.stderr
    assert state(servable) == before

    # Made for the same request: nobody comes back, and nothing has to be forced.
    result = puma(servable.root, "promote", DATASET, "2", "--force", "in a hurry")
    assert result.exit_code == 0
    assert "nothing had to be forced; the reason was not recorded" in result.stdout
    assert "puma.forced" not in tags(servable, 2)
    promote(servable, DATASET, 3)
    assert champion(servable) == 3
    rows = list_versions(open_store(servable), DATASET)
    assert [row.superseded_by for row in rows] == [3, 3, None]
    assert [row.promoted_at is None for row in rows] == [True, False, False]


@pytest.mark.slow
def test_an_original_serves_while_nobody_was_removed(servable: Workspace) -> None:
    """Its verdict, that it remembers everybody, is none of a removal."""
    client = open_store(servable)
    for number in ("2", "3"):
        client.delete_model_version(NAME, number)
    client.delete_registered_model_alias(NAME, "champion")
    assert tags(servable, 1)["puma.verdict"] == "forgetting_incomplete"
    done = promote(servable, DATASET, 1)
    assert (done.previous, done.moved, champion(servable)) == (None, True, 1)


@pytest.mark.slow
def test_two_at_once_leave_one_champion_and_one_superseded(servable: Workspace) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: promote(servable, DATASET, number), (2, 3)))
    winner = champion(servable)
    loser = {2: 3, 3: 2}[winner]
    assert "puma.superseded_by" not in tags(servable, winner)
    assert tags(servable, loser)["puma.superseded_by"] == str(winner)
    assert tags(servable, 1)["puma.superseded_by"] == str(loser)


def test_what_no_audit_could_show_is_said_wherever_somebody_looks(servable: Workspace) -> None:
    reason = "nothing was found, and nothing could have been found"
    write_audit(servable, "retrain", verdict="indistinguishable", reason=reason)
    amend(servable, "puma", parameters={"level_tolerance": 0.5}, level_distance=2.0, level_missed=1)
    write_audit(servable, "puma", verdict="indistinguishable", reason=reason)
    register_all(servable, progress=False)
    # The third has new parameters: it is another version.
    closed = refused(servable, 4)
    assert closed.keys() == {"target margins"}
    assert "`puma promote toy 2`" in closed["target margins"][1]
    assert tags(servable, 4)["puma.verdict_reason"] == reason

    result = puma(servable.root, "promote", DATASET, "2")
    assert result.exit_code == 0
    assert "target margins: retrain never saw the removed rows: none to reach" in result.stdout
    client = open_store(servable)
    found = client.get_model_version(NAME, "2")
    assert f"Audit, against retrained models: **indistinguishable**: {reason}." in found.description
    when = found.tags["puma.promoted_at"]
    assert found.description.endswith(
        f"**Promoted** on {when} although no audit could show that these rows are forgotten: they "
        "are too few. Checked instead: retrain never saw the removed rows: none to reach."
    )
    certificate = json.loads(read_artifact(client, found.run_id, "certificate.json") or "")
    assert certificate["audit"]["verdict"] == "indistinguishable"
    assert certificate["audit"]["reason"] == reason
    page = read_artifact(client, found.run_id, "certificate.html") or ""
    shown = page.index("What this certificate does not show")
    assert page.index("<li>That the removed rows are forgotten. They are so few") > shown
    assert verify_version(servable, DATASET, 2).conclusion == "holds"


# --- what is refused ---


@pytest.mark.slow
def test_what_was_edited_in_the_store_is_refused(servable: Workspace) -> None:
    client = open_store(servable)
    replace_weights(servable, 3, other=2)
    audited, held = (tags(servable, each)["puma.weights_digest"][:8] for each in (3, 2))
    closed = refused(servable, 3)
    assert closed.keys() == {"subject"}
    assert f"has weights {held}…, not {audited}… that were audited" in closed["subject"][1]

    client.set_model_version_tag(NAME, "2", "puma.n_removed", "4")
    closed = refused(servable, 2)
    assert closed.keys() == {"certificate"}
    assert closed["certificate"][1].startswith("deletion.rows: expected 3, found 4")

    shutil.rmtree(servable.root / "mlruns/puma/models")
    client.delete_model_version_tag(NAME, "3", "puma.certificate")
    closed = refused(servable, 3)
    assert {name: found for name, (found, _) in closed.items()} == {
        "subject": "unknown",
        "certificate": "unknown",
    }
    assert "puma-toy/3 cannot be loaded" in closed["subject"][1]
    result = puma(servable.root, "promote", DATASET, "3")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "subject cannot be checked: " in result.stderr
    client.set_model_version_tag(NAME, "3", "puma.verdict", "over_forgotten")
    assert puma(servable.root, "promote", DATASET, "3").exit_code == 1
    client.delete_model_version_tag(NAME, "3", "puma.method")
    assert refused(servable, 3).keys() == {"registered by PUMA"}
    assert champion(servable) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((DATASET, "9"), "has no version '9'"), (("dice", "1"), "unknown dataset 'dice'")],
)
def test_an_unknown_version_is_an_error(
    promotable: Workspace, arguments: tuple[str, str], message: str
) -> None:
    result = puma(promotable.root, "promote", *arguments, "--force", "why not")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_crash_is_no_refusal(promotable: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr(promotion, "check_conditions", crash)
    result = puma(promotable.root, "promote", DATASET, "3")
    assert result.exit_code == 2
    assert "ZeroDivisionError: by accident" in result.stderr


@pytest.mark.slow
def test_as_json_it_is_all_that_was_checked(servable: Workspace) -> None:
    first = puma(servable.root, "promote", DATASET, "3", "--json")
    found = json.loads(first.stdout)
    assert (first.exit_code, found["dataset"], found["moved"]) == (0, DATASET, True)
    assert (found["version"], found["previous"], found["overridden"]) == (3, 1, [])
    assert [each["state"] for each in found["conditions"]] == ["holds"] * 6
    assert champion(servable) == 3
    again = json.loads(puma(servable.root, "promote", DATASET, "3", "--json").stdout)
    assert (again["moved"], again["conditions"]) == (False, [])

    refusal = puma(servable.root, "promote", DATASET, "1", "--json")
    found = json.loads(refusal.stdout)
    assert (refusal.exit_code, found["moved"], champion(servable)) == (1, False, 3)
    (unmet,) = [each for each in found["conditions"] if each["state"] != "holds"]
    assert (unmet["name"], unmet["state"]) == ("requests", "fails")
    assert f"requests fails: {unmet['detail']}" in refusal.stderr


# --- by force ---


@pytest.mark.parametrize("reason", ["", "  ", "\n", "x" * 1001])
def test_force_needs_a_reason(tmp_path: Path, reason: str) -> None:
    """It is refused before a store is opened."""
    with pytest.raises(RegistryError, match=r"needs a reason of 1 to 1000 characters, got"):
        promote(Workspace(tmp_path), DATASET, 1, force=reason)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_force_is_written_on_the_version_and_stays(servable: Workspace) -> None:
    promote(servable, DATASET, 3)
    result = puma(servable.root, "promote", DATASET, "3", "--force", " ")
    assert result.exit_code == 2
    result = puma(servable.root, "promote", DATASET, "1", "--force", "request\n  withdrawn")
    assert result.exit_code == 0
    assert "FORCED requests: version 3 (puma), which serves, removed 3 rows" in result.stdout
    assert result.stdout.endswith("puma-toy version 1 is champion now, after version 3\n")
    forced = tags(servable, 1)
    assert forced["puma.forced"] == "request withdrawn"
    assert "puma.superseded_by" not in forced
    when = forced["puma.promoted_at"]
    note = f"**Promoted by force** on {when}, past requests: request withdrawn"
    page = open_store(servable).get_model_version(NAME, "1").description
    assert page.startswith("**Original** model of toy")
    assert page.endswith(note)

    write_audit(servable, "original", attack_rate=0.25)  # measured again, its page is rewritten
    register_all(servable, progress=False)
    page = open_store(servable).get_model_version(NAME, "1").description
    assert "attack_rate: 0.25" in page
    assert page.endswith(note)
    assert tags(servable, 1)["puma.forced"] == "request withdrawn"


@pytest.mark.slow
def test_forced_twice_both_reasons_are_on_the_page(servable: Workspace) -> None:
    for number, reason in ((3, None), (1, "first"), (3, None), (1, "second")):
        promote(servable, DATASET, number, force=reason)
    page = open_store(servable).get_model_version(NAME, "1").description
    assert page.count("\n\n---\n\n") == 1
    assert page.index("past requests: first") < page.index("past requests: second")
    assert tags(servable, 1)["puma.forced"] == "second"


# --- what becomes of it ---


@pytest.mark.slow
def test_a_promotion_cut_short_leaves_the_alias_and_is_completed_by_repeating_it(
    servable: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    steps = ["set_model_version_tag", "set_registered_model_alias"]
    for step in steps:
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise OSError("connection lost")

            patch.setattr(MlflowClient, step, fail)
            with pytest.raises(RegistryError, match="connection lost"):
                promote(servable, DATASET, 3)
        assert champion(servable) == 1
    assert promote(servable, DATASET, 3).moved
    assert champion(servable) == 3
    assert tags(servable, 1)["puma.superseded_by"] == "3"


@pytest.mark.slow
def test_versions_tells_who_serves_and_who_served(
    servable: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(servable, DATASET, 3)
    promote(servable, DATASET, 1, force="withdrawn")
    result = puma(servable.root, "versions", DATASET)
    assert max(map(len, result.stdout.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "200")  # a line for each
    result = puma(servable.root, "versions", DATASET)
    first, _, third = (
        line for line in result.stdout.splitlines() if line[:2] in ("1 ", "2 ", "3 ")
    )
    assert "champion" in first
    assert "(forced)" in result.stdout
    assert "challenger," in third
    assert "superseded by 1" in result.stdout
    rows = json.loads(puma(servable.root, "versions", DATASET, "--json").stdout)
    assert [(row["forced"], row["superseded_by"]) for row in rows] == [
        ("withdrawn", None),
        (None, None),
        (None, 1),
    ]


@pytest.mark.slow
def test_registering_never_moves_the_champion(servable: Workspace) -> None:
    promote(servable, DATASET, 3)
    before = state(servable)
    register_all(servable, progress=False)
    assert state(servable) == before
    answer(servable, OTHER_DELETION, n_removed=7, seed=10)
    write_audit(servable, "puma", verdict="passed", attack_rate=0.25)
    register_all(servable, progress=False)
    assert champion(servable) == 3
    client = open_store(servable)
    rows = list_versions(client, DATASET)
    assert [row.superseded_by for row in rows] == [3, None, None, None, None]
    assert rows[4].aliases == ("challenger",)
    assert rows[2].promoted_at == before[1][2].promoted_at


@pytest.mark.slow
def test_what_an_earlier_puma_registered_is_brought_up_by_registering(servable: Workspace) -> None:
    client = open_store(servable)
    for number in ("2", "3"):
        run_id = client.get_model_version(NAME, number).run_id
        for tag in ("puma.audited_weights", "puma.audited_deletion"):
            client.delete_tag(run_id, tag)
    for number in ("1", "2", "3"):
        client.delete_model_version_tag(NAME, number, "puma.certificate")
    closed = refused(servable, 3)
    assert {name: state for name, (state, _) in closed.items()} == {
        "subject": "unknown",
        "certificate": "unknown",
    }
    assert puma(servable.root, "promote", DATASET, "3").exit_code == 2
    register_all(servable, progress=False)
    assert promote(servable, DATASET, 3).moved
