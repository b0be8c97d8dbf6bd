"""Planted tampering: whatever is changed in a registry, its field is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from puma.data import Dataset, Examples
from puma.lineage.records import ModelRecord
from puma.models import weights_digest
from puma.project.workspace import Workspace
from puma.registry import open_store, register_all
from puma.registry.certificate import verify as verification
from puma.registry.certificate.build import canonical, digest
from puma.registry.certificate.findings import differences
from puma.registry.certificate.verify import verify_version
from puma.registry.promotion import promote
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key
from tests.command import puma
from tests.registry.fixtures import _default_store, template
from tests.registry.projects import (
    DATASET,
    FEATURES,
    METHODS,
    copy_store,
    make_model,
    make_project,
    write_audit,
)
from tests.registry.served import make_servable

__all__ = ["_default_store", "template"]
NAME = f"puma-{DATASET}"
REMOVED = ("person-0", "person-1")


@pytest.fixture(scope="module")
def proven(template: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A project with its data, its request and its key. Shared: read it only."""
    workspace = make_project(tmp_path_factory.mktemp("proven") / "project")
    copy_store(template, workspace)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9, FEATURES, generator=generator)
    owners = [f"person-{min(row, 7)}" if row else "person-1" for row in range(9)]
    train = Examples.of(features, torch.arange(9) % 2, ["person-0", *owners[1:]])
    data = Dataset(DATASET, train, train, ("bad", "good"))
    data.save(workspace.data(DATASET))
    request = DeletionSet.of([*REMOVED, "person-7"], data)
    request.write(workspace.deletion_set(DATASET))
    stated = {"data_digest": data.digest}
    original = amend(workspace, "original", stated)
    stated |= {
        "parent": original.fingerprint,
        "deletion_digest": request.digest(project_key(workspace.key)),
        "n_removed": len(request),
        "n_subjects": 3,
    }
    for method in METHODS:
        amend(workspace, method, stated)
    for version in ("original", *METHODS):
        write_audit(workspace, version, deletion=stated["deletion_digest"], attack_rate=0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        for method in METHODS:
            write_audit(workspace, method, verdict="passed", attack_rate=0.5)
        make_servable(workspace)
    return workspace


def amend(workspace: Workspace, method: str, update: dict[str, Any]) -> ModelRecord:
    path = workspace.model_record(DATASET, method)
    amended = ModelRecord.read(path).model_copy(update=update)
    amended.write(path)
    return amended


@pytest.fixture
def own(proven: Workspace, tmp_path: Path) -> Workspace:
    root = tmp_path / "own"
    shutil.copytree(proven.root, root, ignore=shutil.ignore_patterns("mlruns", "mlflow.db"))
    copied = Workspace(root.resolve())
    copy_store(proven, copied)
    return copied


def version_of(workspace: Workspace, number: int) -> Any:
    return open_store(workspace).get_model_version(NAME, str(number))


def artifact(workspace: Workspace, number: int, name: str = "certificate.json") -> Path:
    """The stored file itself."""
    run = version_of(workspace, number).run_id
    return workspace.root / "mlruns/puma" / run / "artifacts" / name


def model_files(workspace: Workspace, number: int) -> Path:
    source = version_of(workspace, number).source.removeprefix("models:/")
    return workspace.root / "mlruns/puma/models" / source / "artifacts"


def rewrite(workspace: Workspace, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    path = artifact(workspace, number)
    certificate = json.loads(path.read_text())
    change(certificate)
    path.write_text(canonical(certificate))


def set_tag(workspace: Workspace, number: int, name: str, value: str) -> None:
    open_store(workspace).set_model_version_tag(NAME, str(number), name, value)


def checked(workspace: Workspace, number: int) -> dict[str, str]:
    """Field -> state, the worst of it."""
    result = verify_version(workspace, DATASET, number)
    order = ["holds", "skipped", "unknown", "fails"]
    worst: dict[str, str] = {}
    for one in result.findings:
        worst[one.field] = max(worst.get(one.field, "holds"), one.state, key=order.index)
    return worst


# --- what holds ---


@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_was_registered_holds(own: Workspace, number: int) -> None:
    found = checked(own, number)
    assert set(found.values()) == {"holds"}
    expected = {"certificate", "fingerprint", "certificate.html", "weights_digest", "data_digest"}
    expected |= {"alias champion"} if number == 1 else {"deletion.digest", "parent_certificate"}
    assert found.keys() == expected
    result = puma(own.root, "verify", DATASET, str(number))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == f"puma-toy version {number} holds"


@pytest.mark.parametrize(
    "named", ["models:/puma-toy/3", "models:/puma-toy@challenger", f"{DATASET} challenger"]
)
def test_a_version_may_be_named_as_mlflow_does(proven: Workspace, named: str) -> None:
    result = puma(proven.root, "verify", *named.split(), "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["version"], found["conclusion"]) == (3, "holds")


@pytest.mark.parametrize(
    "named", [[DATASET], ["models:/puma-toy"], ["models:/other/3"], ["models:/puma-toy/3", "2"]]
)
def test_half_a_name_is_refused(proven: Workspace, named: list[str]) -> None:
    result = puma(proven.root, "verify", *named)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "name a version: DATASET VERSION" in result.stderr


def test_it_still_holds_after_promotions_and_after_another_audit(own: Workspace) -> None:
    promote(own, DATASET, 3)
    promote(own, DATASET, 1, force="a trial")
    write_audit(own, "puma", verdict="inconclusive", attack_rate=0.25)
    register_all(own, progress=False)
    for number in (1, 2, 3):
        assert set(checked(own, number).values()) == {"holds"}


def test_a_chain_of_three_goes_up_to_the_original(own: Workspace) -> None:
    """Version 3 taken for a removal from version 2, whose certificate was replaced since."""
    parent = version_of(own, 2)
    set_tag(own, 3, "puma.parent_version", "2")
    set_tag(own, 3, "puma.parent_fingerprint", parent.tags["puma.fingerprint"])
    open_store(own).delete_model_version_tag(NAME, "3", "puma.certificate")
    amend(own, "puma", {})
    from puma.registry.certificate.build import issue_certificate

    issue_certificate(open_store(own), DATASET, version_of(own, 3))
    first = json.loads(artifact(own, 3).read_text())["parent_certificate"]
    assert first == parent.tags["puma.certificate"]
    write_audit(own, "retrain", verdict="inconclusive", attack_rate=0.25)
    register_all(own, progress=False)
    assert version_of(own, 2).tags["puma.certificate"] != first
    assert set(checked(own, 3).values()) == {"holds"}

    rewrite(own, 1, lambda certificate: certificate.update(seed=8))
    found = verify_version(own, DATASET, 3)
    assert found.failed == ("version 2: parent_certificate",)
    assert found.findings[-1].found == digest(artifact(own, 1).read_text())
    artifact(own, 2, f"certificates/{first}.json").unlink()
    assert verify_version(own, DATASET, 3).failed == ("parent_certificate",)


# --- every field of a certificate ---


def changes() -> dict[str, Callable[[dict[str, Any]], None]]:
    """Path -> a change of it alone."""

    def at(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
        *above, last = path.split(".")

        def change(certificate: dict[str, Any]) -> None:
            place = certificate
            for name in above:
                place = place[name]
            assert place[last] != value
            place[last] = value

        return change

    values = {
        "schema": 2,
        "dataset": "other",
        "fingerprint": "0" * 64,
        "registered": "2026-01-01T00:00:00+00:00",
        "method": "retrain",
        "seed": 8,
        "parameters.damping": "0.2",
        "parameters.budget": "0.02",
        "data_digest": "0" * 64,
        "weights_digest": "0" * 64,
        "parent.version": 2,
        "parent.fingerprint": "0" * 64,
        "parent.weights_digest": "0" * 64,
        "parent_certificate": "0" * 64,
        "replaces": "0" * 64,
        "deletion.digest": "0" * 64,
        "deletion.rows": 99,
        "deletion.subjects": 99,
        "audit.verdict": "over_forgotten",
        "audit.reason": "because",
        "audit.weights_digest": "0" * 64,
        "audit.deletion_digest": "0" * 64,
        "audit.unresolved": ["accuracy"],
        "audit.metrics.accuracy": 0.99,
        "audit.metrics.criterion_drift": 0.0,
        "environment.python": "2.7",
        "environment.torch": "0.1",
        "environment.puma": "9",
        "environment.mlflow": "9",
        "git.commit": "f" * 40,
        "git.uncommitted_changes": True,
        "git.reason": "because",
        "limits": [],
    }
    return {path: at(path, value) for path, value in values.items()}


@pytest.mark.parametrize("path", changes())
def test_a_changed_field_is_named_and_no_other(own: Workspace, path: str) -> None:
    before = json.loads(artifact(own, 3).read_text())
    rewrite(own, 3, changes()[path])
    ((leaf, expected, found),) = differences(before, json.loads(artifact(own, 3).read_text()))
    result = verify_version(own, DATASET, 3)
    assert result.failed == (path,) == (leaf,)
    (finding,) = (one for one in result.findings if one.state == "fails")
    assert (finding.expected, finding.found) == (expected, found)
    assert "certificate.json was changed after it was issued" in finding.detail
    shown = puma(own.root, "verify", DATASET, "3")
    assert shown.exit_code == 1
    assert shown.stdout.splitlines()[-1] == f"puma-toy version 3 does not hold: {path}"


def test_every_field_has_been_tampered_with(proven: Workspace) -> None:
    certificate = json.loads(artifact(proven, 3).read_text())
    metrics = {f"audit.metrics.{name}" for name in certificate["audit"]["metrics"]}
    leaves = {path for path, _, _ in differences(certificate, {})}
    assert leaves == certificate.keys() - {"replaces"}  # an absent one is None, as it is here

    def inner(value: dict[str, Any], path: str = "") -> set[str]:
        found = set()
        for name, below in value.items():
            found |= inner(below, f"{path}{name}.") if isinstance(below, dict) else {path + name}
        return found

    assert inner(certificate) - metrics <= changes().keys()


def test_a_field_added_or_left_out_is_named(own: Workspace) -> None:
    rewrite(own, 3, lambda certificate: certificate.update(approved_by="nobody"))
    assert verify_version(own, DATASET, 3).failed == ("approved_by",)
    rewrite(own, 3, lambda certificate: certificate.pop("approved_by"))
    rewrite(own, 3, lambda certificate: certificate["audit"]["metrics"].pop("accuracy"))
    assert verify_version(own, DATASET, 3).failed == ("audit.metrics.accuracy",)


def test_the_file_written_otherwise_is_not_the_one_issued(own: Workspace) -> None:
    path = artifact(own, 3)
    path.write_text(path.read_text() + "\n")
    assert verify_version(own, DATASET, 3).failed == ("certificate.json",)
    path.write_text("{")
    assert verify_version(own, DATASET, 3).failed == ("certificate.json",)


# --- the registry around it ---


@pytest.mark.parametrize(
    ("tag", "value", "field"),
    [
        ("verdict", "over_forgotten", "audit.verdict"),
        ("weights_digest", "0" * 64, "weights_digest"),
        ("data_digest", "0" * 64, "data_digest"),
        ("deletion_digest", "0" * 64, "deletion.digest"),
        ("n_removed", "many", "deletion.rows"),
        ("method", "sisa", "method"),
        ("fingerprint", "0" * 64, "fingerprint"),
        ("parent_version", "2", "parent.fingerprint"),
        ("certificate", "0" * 64, "certificate.json"),
        ("certificate_page", "0" * 64, "certificate.html"),
    ],
)
def test_a_tag_changed_by_hand_is_named(own: Workspace, tag: str, value: str, field: str) -> None:
    stated = version_of(own, 3).tags[f"puma.{tag}"]
    set_tag(own, 3, f"puma.{tag}", value)
    result = verify_version(own, DATASET, 3)
    assert field in result.failed
    if tag != "parent_version":
        assert result.failed == (field,)
    if tag == "verdict":
        (finding,) = (one for one in result.findings if one.state == "fails")
        assert (finding.expected, finding.found) == (stated, value)
        assert "the registry was changed after it was issued" in finding.detail


@pytest.mark.parametrize("tag", ["verdict", "verdict_reason", "seed", "audited_weights"])
def test_a_tag_taken_away_is_named(own: Workspace, tag: str) -> None:
    fields = {"verdict": "audit.verdict", "verdict_reason": "audit.reason"}
    fields |= {"audited_weights": "audit.weights_digest"}
    open_store(own).delete_model_version_tag(NAME, "3", f"puma.{tag}")
    assert verify_version(own, DATASET, 3).failed == (fields.get(tag, tag),)


def test_a_metric_logged_later_is_named(own: Workspace) -> None:
    run = version_of(own, 3).run_id
    open_store(own).log_metric(run, "attack_auc", 0.5)
    assert verify_version(own, DATASET, 3).failed == ("audit.metrics.attack_auc",)


def test_weights_exchanged_are_found_in_the_model_itself(own: Workspace) -> None:
    shutil.rmtree(model_files(own, 3))
    shutil.copytree(model_files(own, 2), model_files(own, 3))
    result = verify_version(own, DATASET, 3)
    assert result.failed == ("weights_digest",)
    (finding,) = (one for one in result.findings if one.state == "fails")
    # make_project's seeds: 2 for puma, 1 for retrain
    assert finding.expected == weights_digest(make_model(2))
    assert finding.found == weights_digest(make_model(1))
    assert verify_version(own, DATASET, 2).failed == ()


def test_an_identity_changed_by_hand_is_named(own: Workspace) -> None:
    path = artifact(own, 3, "identity.json")
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "seed": said["seed"] + 1}, sort_keys=True))
    assert verify_version(own, DATASET, 3).failed == ("fingerprint",)
    path.unlink()
    found = verify_version(own, DATASET, 3)
    assert (found.failed, found.unknown) == ((), ("fingerprint",))


def test_a_model_with_broken_files_cannot_be_checked(own: Workspace) -> None:
    (archive,) = model_files(own, 3).rglob("*.pt2")
    archive.write_bytes(archive.read_bytes()[:-100])
    assert checked(own, 3)["weights_digest"] == "unknown"
    assert puma(own.root, "verify", DATASET, "3").exit_code == 2


def test_a_changed_page_is_named(own: Workspace) -> None:
    path = artifact(own, 3, "certificate.html")
    path.write_text(path.read_text().replace("passed", "perfect"))
    assert verify_version(own, DATASET, 3).failed == ("certificate.html",)
    path.unlink()
    assert verify_version(own, DATASET, 3).failed == ("certificate.html",)


def test_a_changed_certificate_of_the_parent_breaks_the_chain(own: Workspace) -> None:
    stated = version_of(own, 1).tags["puma.certificate"]
    rewrite(own, 1, lambda certificate: certificate.update(seed=8))
    result = verify_version(own, DATASET, 3)
    assert result.failed == ("parent_certificate",)
    (finding,) = (one for one in result.findings if one.state == "fails")
    changed = digest(artifact(own, 1).read_text())
    assert (finding.expected, finding.found) == (stated, changed)
    assert verify_version(own, DATASET, 1).failed == ("seed",)
    set_tag(own, 1, "puma.certificate", changed)  # vouched for, it is still not what 3 refers to
    assert verify_version(own, DATASET, 3).failed == ("parent_certificate",)


def test_an_alias_moved_by_hand_is_found_from_either_side(own: Workspace) -> None:
    client = open_store(own)
    client.set_registered_model_alias(NAME, "champion", "2")
    for number in (1, 2):  # before any promotion, the first original serves
        found = verify_version(own, DATASET, number)
        assert found.failed == ("alias champion",)
        assert (found.findings[-1].expected, found.findings[-1].found) == (1, 2)
    assert verify_version(own, DATASET, 3).failed == ()

    client.set_registered_model_alias(NAME, "champion", "1")
    promote(own, DATASET, 3)
    assert checked(own, 3)["alias champion"] == "holds"
    client.set_registered_model_alias(NAME, "champion", "1")
    for number in (1, 3):
        found = verify_version(own, DATASET, number)
        assert found.failed == ("alias champion",)
        assert (found.findings[-1].expected, found.findings[-1].found) == (3, 1)
    client.delete_registered_model_alias(NAME, "champion")
    assert verify_version(own, DATASET, 3).findings[-1].found is None


# --- what cannot be checked, and what need not be ---


def test_a_version_without_a_certificate_says_how_to_get_one(own: Workspace) -> None:
    client = open_store(own)
    for number in ("1", "3"):
        client.delete_model_version_tag(NAME, number, "puma.certificate")
    result = puma(own.root, "verify", DATASET, "3")
    assert result.exit_code == 2
    assert "has no certificate: it was registered by an earlier PUMA" in result.stdout
    assert "run `dvc repro`" in result.stdout
    assert checked(own, 2)["parent_certificate"] == "unknown"
    register_all(own, progress=False)
    for number in (1, 3):
        assert set(checked(own, number).values()) == {"holds"}


def test_a_version_made_by_hand_cannot_be_checked(own: Workspace) -> None:
    made = open_store(own).create_model_version(NAME, source=version_of(own, 3).source)
    result = puma(own.root, "verify", DATASET, str(made.version))
    assert result.exit_code == 2
    assert "was not registered by PUMA" in result.stdout


@pytest.mark.parametrize("gone", ["certificate.json", "parent", "run"])
def test_what_is_lost_cannot_be_checked(own: Workspace, gone: str) -> None:
    client = open_store(own)
    if gone == "parent":
        client.delete_model_version(NAME, "1")
    elif gone == "run":
        set_run = "UPDATE model_versions SET run_id = 'gone' WHERE version = 3"
        from tests.registry.projects import execute

        execute(own, set_run)
    else:
        artifact(own, 3).unlink()
    result = puma(own.root, "verify", DATASET, "3")
    assert result.exit_code == 2
    assert "restore mlruns/ and mlflow.db from a backup" in result.stdout


def test_data_and_key_need_not_be_here(own: Workspace) -> None:
    own.key.unlink()
    assert checked(own, 3)["deletion.digest"] == "skipped"
    assert not own.key.exists()  # checking makes none
    own.data(DATASET).unlink()
    found = checked(own, 3)
    assert (found["data_digest"], found["deletion.digest"]) == ("skipped", "skipped")
    assert puma(own.root, "verify", DATASET, "3").exit_code == 0


def test_other_data_another_request_and_another_key_cannot_be_checked(own: Workspace) -> None:
    data = Dataset.load(own.data(DATASET))
    DeletionSet.of([REMOVED[0]], data).write(own.deletion_set(DATASET))
    assert checked(own, 3)["deletion.digest"] == "unknown"
    assert verify_version(own, DATASET, 3).unknown == ("deletion.digest",)
    DeletionSet.of([*REMOVED, "person-7"], data).write(own.deletion_set(DATASET))
    assert checked(own, 3)["deletion.digest"] == "holds"
    own.key.write_text("ab" * 32)
    assert checked(own, 3)["deletion.digest"] == "unknown"
    Dataset(DATASET, data.train, data.train.without(torch.tensor([0])), data.classes).save(
        own.data(DATASET)
    )
    result = puma(own.root, "verify", DATASET, "3")
    assert result.exit_code == 2
    assert "holds other data than this version was made from" in result.stdout


def test_a_failure_is_told_before_what_is_unknown(own: Workspace) -> None:
    own.key.write_text("ab" * 32)
    set_tag(own, 3, "puma.verdict", "over_forgotten")
    assert puma(own.root, "verify", DATASET, "3").exit_code == 1


def test_a_crash_is_no_answer(own: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr(verification, "build", crash)
    result = puma(own.root, "verify", DATASET, "3")
    assert result.exit_code == 2
    assert "ZeroDivisionError: by accident" in result.stderr


def test_neither_certificate_nor_answer_names_anybody(proven: Workspace) -> None:
    for number in (1, 2, 3):
        result = puma(proven.root, "verify", DATASET, str(number), "--json")
        texts = [
            artifact(proven, number, f"certificate.{kind}").read_text() for kind in ("json", "html")
        ]
        assert "person-" not in result.output + "".join(texts)
