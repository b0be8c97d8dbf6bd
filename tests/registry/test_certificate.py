"""Certificates: what they say, that they are whole, that nothing rewrites them.

Their stored form is tested in test_compare.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from html.parser import HTMLParser
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import pytest

from puma.errors import RegistryError
from puma.lineage.records import ModelRecord, read_model_records
from puma.project.workspace import Workspace
from puma.registry import creation as lineage
from puma.registry import (
    list_versions,
    missing,
    open_store,
    register_all,
    registration,
)
from puma.registry.certificate import build
from puma.registry.certificate.page import page
from puma.registry.versions import get_version
from tests.registry.projects import (
    DATA_DIGEST,
    DATASET,
    DELETION,
    write_audit,
    write_version,
)
from tests.registry.served import BUDGET, DRIFT, make_servable

NAME = f"puma-{DATASET}"


def text_of(workspace: Workspace, number: int, file: str = "certificate.json") -> str:
    client = open_store(workspace)
    run = client.get_model_version(NAME, str(number)).run_id
    return Path(client.download_artifacts(run, file)).read_text(encoding="utf-8")


def tags(workspace: Workspace, number: int) -> dict[str, str]:
    """Those on the version's page, and those that its run has for it."""
    return dict(get_version(open_store(workspace), DATASET, number).tags)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def everything(workspace: Workspace) -> dict[Path, bytes]:
    """Every file of every run."""
    files = (workspace.root / "mlruns").rglob("*")
    return {path: path.read_bytes() for path in files if path.is_file()}


def test_a_removal_s_certificate_says_what_was_done_and_found(workspace: Workspace) -> None:
    make_servable(workspace)
    found = json.loads(text_of(workspace, 3))
    original, _, receipt = read_model_records(workspace, DATASET)
    limits, environment, git = (found.pop(name) for name in ("limits", "environment", "git"))
    run = open_store(workspace).get_run(list_versions(open_store(workspace), DATASET)[2].run_id)
    registered = found.pop("registered")
    assert registered.endswith("+00:00")
    assert found == {
        "schema": 1,
        "dataset": DATASET,
        "fingerprint": receipt.fingerprint,
        "method": "puma",
        "seed": 7,
        "parameters": {"damping": "0.1", "budget": str(BUDGET)},
        "data_digest": DATA_DIGEST,
        "weights_digest": receipt.weights_digest,
        "parent": {
            "version": 1,
            "fingerprint": original.fingerprint,
            "weights_digest": original.weights_digest,
        },
        "parent_certificate": sha256(text_of(workspace, 1)),
        "replaces": None,
        "deletion": {"digest": DELETION, "rows": 3, "subjects": 2},
        "audit": {
            "verdict": "passed",
            "reason": "like retraining",
            "evidence": "retrain",
            "weights_digest": receipt.weights_digest,
            "deletion_digest": DELETION,
            "metrics": {
                "accuracy": 0.7,
                "attack_rate_before": 0.75,
                "criterion_drift": DRIFT,
                "retrain_seconds": 1.5,
                "runtime_seconds": 0.25,
                "speedup_vs_retrain": 6.0,
            },
            "unresolved": [],
        },
    }
    assert environment == {
        "python": ".".join(map(str, __import__("sys").version_info[:3])),
        "puma": installed_version("puma-unlearning"),
        "torch": installed_version("torch"),
        "mlflow": installed_version("mlflow"),
    }
    assert git == {
        "commit": None,
        "uncommitted_changes": None,
        "reason": "the project is in no git repository, or in one without a commit",
    }
    assert run.data.tags["puma.torch"] == environment["torch"]
    assert any("no proof that no trace" in limit for limit in limits)


def test_an_original_s_certificate_is_about_no_request(filled: Workspace) -> None:
    found = json.loads(text_of(filled, 1))
    nothing = ("parent", "parent_certificate", "replaces", "deletion", "audit")
    assert [found[name] for name in nothing] == [None] * 5
    assert found["method"] == "original"
    assert found["weights_digest"] == tags(filled, 1)["puma.weights_digest"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_version_names_its_certificate_as_sha256sum_does(filled: Workspace, number: int) -> None:
    text, shown = text_of(filled, number), text_of(filled, number, "certificate.html")
    assert tags(filled, number)["puma.certificate"] == sha256(text)
    assert tags(filled, number)["puma.certificate_page"] == sha256(shown)
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"  # canonical


def test_words_that_were_issued_are_not_changed() -> None:
    """Whoever edits the limits of a schema makes every certificate that was issued look forged."""
    words = "\n".join(build.LIMITS[1])
    assert sha256(words) == "c3d34cecb90fb0dea68bdfebef5cb25630a36a2c390afa865437c6d13ad8cac4"
    assert build.SCHEMA in build.LIMITS


@pytest.mark.slow
def test_registering_again_rewrites_nothing(registered: Workspace) -> None:
    before, rows = everything(registered), list_versions(open_store(registered), DATASET)
    stated = [tags(registered, number) for number in (1, 2, 3)]
    subprocess.run(["git", "init", "-q", registered.root], check=True)
    for _ in range(2):
        register_all(registered, progress=False)
    assert everything(registered) == before
    assert list_versions(open_store(registered), DATASET) == rows
    assert [tags(registered, number) for number in (1, 2, 3)] == stated


@pytest.mark.slow
def test_the_commit_is_the_project_s(workspace: Workspace) -> None:
    git = ["git", "-C", str(workspace.root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", workspace.root], check=True)
    for arguments in (["add", "params.yaml"], ["commit", "-q", "-m", "start"]):
        subprocess.run([*git, *arguments], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    register_all(workspace, progress=False)
    stated = {"commit": head.stdout.strip(), "uncommitted_changes": False, "reason": None}
    assert json.loads(text_of(workspace, 1))["git"] == stated

    with (workspace.root / "params.yaml").open("a") as stream:
        stream.write("# changed\n")
    original = ModelRecord.read(workspace.model_record(DATASET, "original"))
    write_version(workspace, "puma", weights_seed=9, parent=original, deletion=DELETION)
    register_all(workspace, progress=False)
    assert json.loads(text_of(workspace, 4))["git"] == {**stated, "uncommitted_changes": True}


# --- whole or absent ---


@pytest.mark.slow
@pytest.mark.parametrize("step", ["canonical", "page", "digest"])
def test_a_version_never_appears_without_its_certificate(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(build, step, fail)
        with pytest.raises(RegistryError, match="disk full"):
            register_all(workspace, progress=False)
    assert list_versions(open_store(workspace), DATASET) == []
    register_all(workspace, progress=False)
    assert [len(tags(workspace, number)["puma.certificate"]) for number in (1, 2, 3)] == [64] * 3


@pytest.mark.slow
def test_a_removal_waits_for_the_certificate_of_its_parent(workspace: Workspace) -> None:
    client = open_store(workspace)
    original, removal, _ = read_model_records(workspace, DATASET)
    lineage.create_version(client, workspace, lineage.pipeline_draft(workspace, original))
    client.delete_model_version_tag(NAME, "1", "puma.certificate")
    with pytest.raises(
        RegistryError, match=r"version 1 of puma-toy has no certificate .* to refer"
    ):
        lineage.create_version(client, workspace, lineage.pipeline_draft(workspace, removal))
    assert len(list_versions(client, DATASET)) == 1


@pytest.mark.slow
def test_versions_of_an_earlier_puma_get_theirs_by_registering(registered: Workspace) -> None:
    client = open_store(registered)
    rows = list_versions(client, DATASET)
    for row in rows:
        for name in ("certificate", "certificate_page"):
            client.delete_model_version_tag(NAME, str(row.version), f"puma.{name}")
        for name in ("python", "torch", "mlflow", "version", "git_reason"):
            client.delete_tag(row.run_id, f"puma.{name}")
    assert missing(registered) == "toy original: has no certificate"
    register_all(registered, progress=False)
    assert missing(registered) is None
    again = list_versions(client, DATASET)
    assert [row.to_dict() for row in again] == [row.to_dict() for row in rows]
    found = json.loads(text_of(registered, 3))
    # Nobody knows any more, and what is installed now need not be what it was made with.
    assert set(found["environment"].values()) == {None}
    assert found["git"]["reason"] == "was not recorded"
    assert found["parent_certificate"] == tags(registered, 1)["puma.certificate"]


# --- audited again ---


def test_an_audit_that_found_something_else_replaces_the_certificate(
    registered: Workspace,
) -> None:
    first, others = text_of(registered, 3), [tags(registered, number) for number in (1, 2)]
    write_audit(registered, "puma", verdict="passed", reason="better", attack_rate=0.125)
    register_all(registered, progress=False)
    text = text_of(registered, 3)
    found = json.loads(text)
    assert found["audit"]["verdict"] == "passed"
    assert found["audit"]["metrics"]["attack_rate"] == 0.125
    assert found["replaces"] == sha256(first)
    assert tags(registered, 3)["puma.certificate"] == sha256(text)
    assert text_of(registered, 3, f"certificates/{sha256(first)}.json") == first
    same = {**found, "replaces": None, "audit": json.loads(first)["audit"]}
    assert same == json.loads(first)
    assert [tags(registered, number) for number in (1, 2)] == others
    assert missing(registered) is None


@pytest.mark.slow
def test_an_original_audited_for_another_request_keeps_its_certificate(
    registered: Workspace,
) -> None:
    text, stated = text_of(registered, 1), tags(registered, 1)["puma.certificate"]
    write_audit(registered, "original", verdict="inconclusive", attack_rate=0.125)
    register_all(registered, progress=False)
    assert tags(registered, 1)["puma.verdict"] == "inconclusive"
    assert (text_of(registered, 1), tags(registered, 1)["puma.certificate"]) == (text, stated)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["verdict_tags", "log_metrics", "issue_certificate"])
def test_an_update_cut_short_is_completed_by_registering(
    registered: Workspace, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    first = sha256(text_of(registered, 3))
    write_audit(registered, "puma", verdict="passed", attack_rate=0.125)
    whole = getattr(registration, step)

    def fail(*arguments: Any) -> Any:
        if step == "verdict_tags" and "puma.certificate" in tags(registered, 3):
            return whole(*arguments)  # not yet under way
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(registration, step, fail)
        with pytest.raises(RegistryError, match="disk full"):
            register_all(registered, progress=False)
    assert "puma.certificate" not in tags(registered, 3)
    assert missing(registered) in {"toy puma: was measured again", "toy puma: has no certificate"}
    register_all(registered, progress=False)
    found = json.loads(text_of(registered, 3))
    assert (found["replaces"], found["audit"]["verdict"]) == (first, "passed")
    assert missing(registered) is None


# --- the page ---


class Reader(HTMLParser):
    """What a browser would show, and what it would run or load."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        if tag in {"script", "link", "img", "iframe", "object", "embed"}:
            self.loads.append(tag)
        self.loads += [name for name, _ in attrs if name in {"src", "href"} or name[:2] == "on"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_tells_every_leaf_and_loads_nothing(filled: Workspace) -> None:
    text = text_of(filled, 3)
    reader = Reader()
    reader.feed(text_of(filled, 3, "certificate.html"))
    assert (reader.open, reader.loads) == ([], [])
    shown = "\n".join(reader.text)
    for leaf in leaves(json.loads(text)):
        assert leaf in shown
    assert sha256(text) in shown
    assert "Removal: puma of toy" in shown
    assert "Audit: \nover_forgotten\n: as expected." in shown


def test_the_page_shows_markup_as_text(filled: Workspace) -> None:
    found = json.loads(text_of(filled, 3))
    found["method"] = found["audit"]["reason"] = "<script>alert('&')</script>"
    found["parameters"] = {"<b>": "<i>"}
    reader = Reader()
    reader.feed(page(found, "<img src=x>"))
    assert (reader.open, reader.loads) == ([], [])
    shown = "".join(reader.text)
    assert shown.count("<script>alert('&')</script>") == 4  # title, heading, method, reason
    assert "<b><i>" in shown
    assert "<img src=x>" in shown


def leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [leaf for name in value for leaf in leaves(value[name])]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [] if value is None else [str(value)]
