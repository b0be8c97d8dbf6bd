"""Who may serve: the gate, what a promotion writes down, and what it leaves alone."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from puma.errors import RegistryError
from puma.project.workspace import Workspace
from puma.registry import list_versions, open_store, promotion, register_all
from puma.registry.certificate.build import issue_certificate
from puma.registry.promotion import PromotionRefusedError, promote
from tests.command import puma
from tests.registry.projects import DATASET, DELETION, OTHER_DELETION, write_audit
from tests.registry.served import amend, answer, make_servable

NAME = f"puma-{DATASET}"


@pytest.fixture
def servable(workspace: Workspace) -> Workspace:
    make_servable(workspace)
    return workspace


def champion(workspace: Workspace) -> int:
    return int(open_store(workspace).get_model_version_by_alias(NAME, "champion").version)


def tags(workspace: Workspace, number: int) -> dict[str, str]:
    return dict(open_store(workspace).get_model_version(NAME, str(number)).tags)


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


# --- what opens the gate ---


@pytest.mark.parametrize("wanted", [2, "3", "challenger"])
def test_a_removal_that_passed_serves(servable: Workspace, wanted: str | int) -> None:
    number = 3 if wanted == "challenger" else int(wanted)
    start = datetime.now(UTC) - timedelta(seconds=1)
    done = promote(servable, DATASET, wanted)
    assert (done.version, done.previous, done.moved, done.overridden) == (number, 1, True, ())
    assert [condition.state for condition in done.conditions] == ["holds"] * 5
    assert champion(servable) == number
    assert tags(servable, 1)["puma.superseded_by"] == str(number)
    promoted = tags(servable, number)
    assert start <= datetime.fromisoformat(promoted["puma.promoted_at"]) <= datetime.now(UTC)
    assert not {"puma.forced", "puma.superseded_by"} & promoted.keys()
    page = open_store(servable).get_model_version(NAME, str(number)).description
    assert "Promoted" not in page


def test_a_method_without_a_budget_is_bound_by_its_verdict_alone(servable: Workspace) -> None:
    (budget,) = (c for c in promote(servable, DATASET, 2).conditions if c.name == "budget")
    assert budget.detail == "retrain was given none (the retained loss moved by +0.062 nats)"


def test_an_original_serves_while_nobody_was_removed(workspace: Workspace) -> None:
    """Its verdict, that it remembers everybody, is none of a removal."""
    make_servable(workspace)
    client = open_store(workspace)
    for number in ("2", "3"):
        client.delete_model_version(NAME, number)
    client.delete_registered_model_alias(NAME, "champion")
    assert tags(workspace, 1)["puma.verdict"] == "forgetting_incomplete"
    done = promote(workspace, DATASET, 1)
    assert (done.previous, done.moved, champion(workspace)) == (None, True, 1)


def test_the_present_champion_again_changes_nothing(servable: Workspace) -> None:
    promote(servable, DATASET, 3)
    before = state(servable)
    for force in (None, "to be sure"):
        done = promote(servable, DATASET, "champion", force=force)
        assert (done.version, done.previous, done.moved) == (3, 3, False)
    assert state(servable) == before
    result = puma(servable.root, "promote", DATASET, "3")
    assert result.exit_code == 0
    assert result.stdout == "puma-toy version 3 serves already; nothing was changed\n"


def test_two_promotions_in_a_row_and_back(servable: Workspace) -> None:
    promote(servable, DATASET, 2)
    promote(servable, DATASET, 3)
    assert tags(servable, 2)["puma.superseded_by"] == "3"
    assert tags(servable, 1)["puma.superseded_by"] == "2"
    promote(servable, DATASET, 2)  # made for the same request: nobody comes back
    assert champion(servable) == 2
    assert "puma.superseded_by" not in tags(servable, 2)
    assert tags(servable, 3)["puma.superseded_by"] == "2"
    rows = list_versions(open_store(servable), DATASET)
    assert [row.superseded_by for row in rows] == [2, None, 2]
    assert [row.promoted_at is None for row in rows] == [True, False, False]


def test_two_at_once_leave_one_champion_and_one_superseded(servable: Workspace) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: promote(servable, DATASET, number), (2, 3)))
    winner = champion(servable)
    loser = {2: 3, 3: 2}[winner]
    assert "puma.superseded_by" not in tags(servable, winner)
    assert tags(servable, loser)["puma.superseded_by"] == str(winner)
    assert tags(servable, 1)["puma.superseded_by"] == str(loser)


# --- what keeps it shut ---


@pytest.mark.parametrize("verdict", ["forgetting_incomplete", "inconclusive", "utility_lost"])
def test_any_other_verdict_is_refused(workspace: Workspace, verdict: str) -> None:
    make_servable(workspace)
    write_audit(workspace, "puma", verdict=verdict, reason="0.93 of what it was")
    register_all(workspace, progress=False)
    closed = refused(workspace, 3)
    assert closed.keys() == {"audit"}
    assert f"is {verdict}, not passed (0.93 of what it was); promote" in closed["audit"][1]
    result = puma(workspace.root, "promote", DATASET, "3")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "audit fails: the verdict on version 3" in result.stderr
    assert champion(workspace) == 1


@pytest.mark.parametrize(
    ("drift", "closed"),
    [(0.01, False), (-0.01, False), (0.010002, True), (-0.010002, True), (0.5, True)],
)
def test_a_drift_beyond_the_budget_is_refused(
    workspace: Workspace, drift: float, closed: bool
) -> None:
    make_servable(workspace, drift=drift)
    if not closed:
        assert promote(workspace, DATASET, 3).moved
        return
    found = refused(workspace, 3)
    assert found.keys() == {"budget"}
    assert f"moved by {drift:+.4g} nats, of 0.01 allowed" in found["budget"][1]


def test_weights_other_than_the_audited_are_refused(servable: Workspace) -> None:
    replace_weights(servable, 3, other=2)
    audited, held = (tags(servable, each)["puma.weights_digest"][:8] for each in (3, 2))
    closed = refused(servable, 3)
    assert closed.keys() == {"subject"}
    assert f"has weights {held}…, not {audited}… that were audited" in closed["subject"][1]


def test_an_audit_for_another_request_is_refused(servable: Workspace) -> None:
    open_store(servable).set_model_version_tag(NAME, "3", "puma.audited_deletion", "ab" * 32)
    closed = refused(servable, 3)
    assert closed.keys() == {"subject", "certificate"}
    assert f"is about request abababab…, and version 3 answers {DELETION[:8]}…" in str(closed)


def test_back_to_an_original_that_knows_removed_people_is_refused(servable: Workspace) -> None:
    promote(servable, DATASET, 3)
    closed = refused(servable, 1)
    assert closed.keys() == {"requests"}
    said = closed["requests"][1]
    assert f"version 3 (puma) removed 3 rows for another request, {DELETION[:8]}…" in said
    assert "version 1 was not made for it: it still knows these people" in said


def test_a_removal_for_an_earlier_request_is_refused(servable: Workspace) -> None:
    answer(servable, OTHER_DELETION, n_removed=5, seed=10)
    closed = refused(servable, 3)
    assert closed.keys() == {"requests"}
    assert "version 5 (puma) removed 5 rows for another request" in closed["requests"][1]
    assert promote(servable, DATASET, 5).moved


@pytest.mark.parametrize(("n_removed", "opens"), [(4, True), (3, False), (1, False)])
def test_a_request_that_cannot_hold_the_one_that_served_is_refused(
    servable: Workspace, n_removed: int, opens: bool
) -> None:
    """Three rows went before: one request that holds them and others is larger."""
    promote(servable, DATASET, 3)
    answer(servable, OTHER_DELETION, n_removed=n_removed, seed=10)
    if opens:
        assert promote(servable, DATASET, 5).moved
        return
    closed = refused(servable, 5)
    assert closed.keys() == {"requests"}
    assert f"version 5 removed {n_removed} for another request" in closed["requests"][1]


def test_a_demonstration_that_never_served_binds_nobody(servable: Workspace) -> None:
    answer(servable, OTHER_DELETION, n_removed=1, seed=10)
    assert promote(servable, DATASET, 5).moved


def test_a_removal_from_a_removal_knows_none_of_its_people(servable: Workspace) -> None:
    promote(servable, DATASET, 3)
    answer(servable, OTHER_DELETION, n_removed=1, seed=10)
    client = open_store(servable)
    client.set_model_version_tag(NAME, "5", "puma.parent_version", "3")
    client.delete_model_version_tag(NAME, "5", "puma.certificate")
    issue_certificate(client, DATASET, client.get_model_version(NAME, "5"))
    assert promote(servable, DATASET, 5).moved
    assert refused(servable, 3).keys() == {"requests"}  # and its parent knows those of the child


def test_a_verdict_written_by_hand_opens_nothing(workspace: Workspace) -> None:
    make_servable(workspace)
    write_audit(workspace, "puma", verdict="over_forgotten")
    register_all(workspace, progress=False)
    open_store(workspace).set_model_version_tag(NAME, "3", "puma.verdict", "passed")
    closed = refused(workspace, 3)
    assert closed.keys() == {"certificate"}
    said = 'audit.verdict: expected "over_forgotten", found "passed"'
    assert closed["certificate"][1].startswith(said)


# --- what cannot be checked ---


@pytest.mark.parametrize(
    ("tag", "condition", "said"),
    [
        ("puma.verdict", "audit", "was never audited; run `dvc repro`"),
        ("puma.audited_weights", "subject", "does not say which weights were audited"),
        ("puma.audited_deletion", "subject", "does not say which weights were audited"),
        ("puma.method", "registered by PUMA", "was not registered by PUMA"),
    ],
)
def test_what_a_version_does_not_say_cannot_be_checked(
    servable: Workspace, tag: str, condition: str, said: str
) -> None:
    open_store(servable).delete_model_version_tag(NAME, "3", tag)
    closed = refused(servable, 3)
    assert closed.keys() - {"certificate"} == {condition}
    assert closed[condition][0] == "unknown"
    assert said in closed[condition][1]
    # What a tag no longer says, the certificate still does.
    told = "certificate" in closed
    assert told == (tag != "puma.method")
    result = puma(servable.root, "promote", DATASET, "3")
    assert (result.exit_code, result.stdout) == (1 if told else 2, "")
    assert f"{condition} cannot be checked" in result.stderr


def test_puma_without_a_drift_or_a_budget_cannot_be_checked(workspace: Workspace) -> None:
    write_audit(workspace, "puma", verdict="passed")
    register_all(workspace, progress=False)
    assert "has no budget" in refused(workspace, 3)["budget"][1]
    amend(workspace, "puma", parameters={"budget": 0.01})
    register_all(workspace, progress=False)
    assert "has no criterion_drift" in refused(workspace, 4)["budget"][1]


def test_files_that_are_gone_cannot_be_checked(servable: Workspace) -> None:
    shutil.rmtree(servable.root / "mlruns/puma/models")
    state_, said = refused(servable, 3)["subject"]
    assert state_ == "unknown"
    assert "puma-toy/3 cannot be loaded" in said


def test_a_failure_is_told_before_what_is_unknown(servable: Workspace) -> None:
    client = open_store(servable)
    client.delete_model_version_tag(NAME, "3", "puma.audited_weights")
    client.set_model_version_tag(NAME, "3", "puma.verdict", "over_forgotten")
    assert puma(servable.root, "promote", DATASET, "3").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((DATASET, "9"), "has no version '9'"), (("dice", "1"), "unknown dataset 'dice'")],
)
def test_an_unknown_version_is_an_error(
    servable: Workspace, arguments: tuple[str, str], message: str
) -> None:
    result = puma(servable.root, "promote", *arguments, "--force", "why not")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_crash_is_no_refusal(servable: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr(promotion, "check_conditions", crash)
    result = puma(servable.root, "promote", DATASET, "3")
    assert result.exit_code == 2
    assert "ZeroDivisionError: by accident" in result.stderr


# --- by force ---


@pytest.mark.parametrize("reason", ["", "  ", "\n", "x" * 1001])
def test_force_needs_a_reason(servable: Workspace, reason: str) -> None:
    before = state(servable)
    with pytest.raises(RegistryError, match=r"needs a reason of 1 to 1000 characters, got"):
        promote(servable, DATASET, 1, force=reason)
    assert puma(servable.root, "promote", DATASET, "3", "--force", reason).exit_code == 2
    assert state(servable) == before


def test_force_is_written_on_the_version_and_stays(servable: Workspace) -> None:
    promote(servable, DATASET, 3)
    result = puma(servable.root, "promote", DATASET, "1", "--force", "request\n  withdrawn")
    assert result.exit_code == 0
    assert "FORCED requests: version 3 (puma) removed 3 rows" in result.stdout
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


def test_forced_twice_both_reasons_are_on_the_page(servable: Workspace) -> None:
    for number, reason in ((3, None), (1, "first"), (3, None), (1, "second")):
        promote(servable, DATASET, number, force=reason)
    page = open_store(servable).get_model_version(NAME, "1").description
    assert page.count("\n\n---\n\n") == 1
    assert page.index("past requests: first") < page.index("past requests: second")
    assert tags(servable, 1)["puma.forced"] == "second"


def test_where_nothing_had_to_be_forced_nothing_was(servable: Workspace) -> None:
    result = puma(servable.root, "promote", DATASET, "3", "--force", "in a hurry")
    assert result.exit_code == 0
    assert "nothing had to be forced; the reason was not recorded" in result.stdout
    assert "puma.forced" not in tags(servable, 3)


# --- what becomes of it ---


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


def test_versions_tells_who_serves_and_who_served(servable: Workspace) -> None:
    promote(servable, DATASET, 3)
    promote(servable, DATASET, 1, force="withdrawn")
    result = puma(servable.root, "versions", DATASET)
    assert max(map(len, result.stdout.splitlines())) <= 80
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


def test_what_an_earlier_puma_registered_is_brought_up_by_registering(servable: Workspace) -> None:
    client = open_store(servable)
    for number in ("2", "3"):
        for tag in ("puma.audited_weights", "puma.audited_deletion"):
            client.delete_model_version_tag(NAME, number, tag)
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
