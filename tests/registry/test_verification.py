"""Verifying versions of a real store; the rules themselves are tested in test_compare."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from puma.cli.common import version_named
from puma.data import Dataset, Examples
from puma.lineage.records import ModelRecord
from puma.models import weights_digest
from puma.project.workspace import Workspace
from puma.registry import open_store, register_all
from puma.registry.certificate import verify
from puma.registry.certificate.build import canonical, digest, issue_certificate
from puma.registry.certificate.verify import check_project, verify_version
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
    execute,
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


def test_what_was_registered_holds_and_nobody_is_named(proven: Workspace) -> None:
    common = {"certificate", "fingerprint", "certificate.html", "data_digest"}
    common |= {"weights_digest", "graph_digest"}
    chained = {"deletion.digest", "parent_certificate"}
    names = {"1": {"alias champion"}, "2": chained, "models:/puma-toy@challenger": chained}
    for named, more in names.items():
        arguments = [named] if named.startswith("models:") else [DATASET, named]
        result = puma(proven.root, "verify", *arguments, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        found = json.loads(result.stdout)
        number = 3 if named.startswith("models:") else int(named)
        assert (found["version"], found["conclusion"]) == (number, "holds")
        assert {one["state"] for one in found["findings"]} == {"holds"}
        assert {one["field"] for one in found["findings"]} == common | more
        assert all(one["detail"] for one in found["findings"])
        texts = [
            artifact(proven, number, f"certificate.{kind}").read_text() for kind in ("json", "html")
        ]
        assert "person-" not in result.output + "".join(texts)


@pytest.mark.parametrize(
    "named",
    [["models:/puma-toy/3"], ["models:/puma-toy@3"], [DATASET, "3"]],
)
def test_a_version_may_be_named_as_mlflow_does(named: list[str]) -> None:
    assert version_named(*named) == (DATASET, "3")


@pytest.mark.parametrize(
    "named", [[DATASET], ["models:/puma-toy"], ["models:/other/3"], ["models:/puma-toy/3", "2"]]
)
def test_half_a_name_is_refused(proven: Workspace, named: list[str]) -> None:
    result = puma(proven.root, "verify", *named)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "name a version: DATASET VERSION" in result.stderr
    assert "None" not in result.stderr


def test_an_option_takes_a_version_by_its_uri_alone(proven: Workspace) -> None:
    result = puma(proven.root, "remove", "--model", DATASET, "--deletions", "x.csv")
    assert (result.exit_code, result.stderr) == (
        2,
        "puma: name a version: models:/puma-DATASET/VERSION or models:/puma-DATASET@ALIAS, "
        "got 'toy'\n",
    )


@pytest.mark.slow
def test_it_still_holds_after_promotions_and_after_another_audit(own: Workspace) -> None:
    promote(own, DATASET, 3)
    promote(own, DATASET, 1, force="a trial")
    write_audit(own, "puma", verdict="inconclusive", attack_rate=0.25)
    register_all(own, progress=False)
    for number in (1, 2, 3):
        assert set(checked(own, number).values()) == {"holds"}


@pytest.mark.slow
def test_a_chain_of_three_goes_up_to_the_original(own: Workspace) -> None:
    """Version 3 taken for a removal from version 2, whose certificate was replaced since."""
    parent = version_of(own, 2)
    set_tag(own, 3, "puma.parent_version", "2")
    open_store(own).delete_model_version_tag(NAME, "3", "puma.certificate")
    amend(own, "puma", {})
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


# --- what is changed in the files ---


def test_a_changed_field_is_named(own: Workspace) -> None:
    rewrite(own, 3, lambda certificate: certificate.update(seed=8))
    shown = puma(own.root, "verify", DATASET, "3")
    assert shown.exit_code == 1
    assert "certificate.json was changed after it was issued" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "puma-toy version 3 does not hold: seed"


@pytest.mark.slow
def test_every_file_is_checked(own: Workspace) -> None:
    """In one project: the model, its identity, the page, the parent's certificate."""
    shutil.rmtree(model_files(own, 3))
    shutil.copytree(model_files(own, 2), model_files(own, 3))
    identity, page = artifact(own, 3, "identity.json"), artifact(own, 3, "certificate.html")
    said = json.loads(identity.read_text())
    identity.write_text(json.dumps({**said, "seed": said["seed"] + 1}, sort_keys=True))
    page.write_text(page.read_text().replace("passed", "perfect"))
    rewrite(own, 1, lambda certificate: certificate.update(seed=8))
    result = verify_version(own, DATASET, 3)
    assert result.failed == (
        *("fingerprint", "certificate.html", "weights_digest", "parent_certificate"),
    )
    found = {one.field: one for one in result.findings}
    # make_project's seeds: 2 for puma, 1 for retrain
    assert found["weights_digest"].expected == weights_digest(make_model(2))
    assert found["weights_digest"].found == weights_digest(make_model(1))
    assert found["parent_certificate"].found == digest(artifact(own, 1).read_text())


def test_what_is_computed_with_the_weights_is_checked(own: Workspace) -> None:
    """The weights are as they were; MLflow would run another loader on them."""
    path = model_files(own, 3) / "MLmodel"
    path.write_text(
        path.read_text().replace("loader_module: mlflow.pytorch", "loader_module: evil")
    )
    assert verify_version(own, DATASET, 3).failed == ("graph_digest",)


def test_what_cannot_be_read_cannot_be_checked(own: Workspace) -> None:
    (archive,) = model_files(own, 3).rglob("*.pt2")
    archive.write_bytes(archive.read_bytes()[:-100])
    artifact(own, 3, "identity.json").unlink()
    result = puma(own.root, "verify", DATASET, "3")
    assert result.exit_code == 2
    unknown = "fingerprint, weights_digest, graph_digest"
    wanted = f"puma-toy version 3 cannot be checked: {unknown}"
    assert result.stdout.splitlines()[-1] == wanted
    set_tag(own, 3, "puma.verdict", "over_forgotten")  # a failure goes before what is unknown
    assert puma(own.root, "verify", DATASET, "3").exit_code == 1


# --- what cannot be checked, and what need not be ---


@pytest.mark.slow
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


def test_what_is_lost_cannot_be_checked(own: Workspace) -> None:
    def lost() -> str:
        result = puma(own.root, "verify", DATASET, "3")
        assert result.exit_code == 2
        assert "restore mlruns/ and mlflow.db from a backup" in result.stdout
        return str(result.stdout)

    path = artifact(own, 3)
    text = path.read_text()
    path.unlink()
    assert "certificate.json cannot be read" in lost()
    path.write_text(text)
    open_store(own).delete_model_version(NAME, "1")
    assert "has lost its parent, version 1" in lost()
    execute(own, "UPDATE model_versions SET run_id = 'gone' WHERE version = 3")
    assert "certificate.json cannot be read" in lost()


@pytest.fixture
def project(proven: Workspace, tmp_path: Path) -> Workspace:
    """The data, the request and the key, without a registry."""
    root = tmp_path / "project"
    ignored = shutil.ignore_patterns("mlruns", "mlflow.db")
    shutil.copytree(proven.root, root, ignore=ignored)
    return Workspace(root.resolve())


@pytest.fixture(scope="module")
def certificate(proven: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(artifact(proven, 3).read_text())
    return found


def in_project(workspace: Workspace, certificate: dict[str, Any]) -> dict[str, str]:
    return {one.field: one.state for one in check_project(workspace, DATASET, certificate)}


def test_data_and_key_need_not_be_here(project: Workspace, certificate: dict[str, Any]) -> None:
    holds = {"data_digest": "holds", "deletion.digest": "holds"}
    assert in_project(project, certificate) == holds
    project.key.unlink()
    assert in_project(project, certificate)["deletion.digest"] == "skipped"
    assert not project.key.exists()  # checking makes none
    project.data(DATASET).unlink()
    assert in_project(project, certificate) == dict.fromkeys(holds, "skipped")
    original = {**certificate, "deletion": None}
    assert in_project(project, original) == {"data_digest": "skipped"}


def test_other_data_another_request_and_another_key_cannot_be_checked(
    project: Workspace, certificate: dict[str, Any]
) -> None:
    data = Dataset.load(project.data(DATASET))
    DeletionSet.of([REMOVED[0]], data).write(project.deletion_set(DATASET))
    assert in_project(project, certificate)["deletion.digest"] == "unknown"
    DeletionSet.of([*REMOVED, "person-7"], data).write(project.deletion_set(DATASET))
    assert in_project(project, certificate)["deletion.digest"] == "holds"
    miscounted = {**certificate, "deletion": {**certificate["deletion"], "rows": 99}}
    assert in_project(project, miscounted)["deletion.rows"] == "fails"
    project.key.write_text("ab" * 32)
    assert in_project(project, certificate)["deletion.digest"] == "unknown"
    Dataset(DATASET, data.train, data.train.without(torch.tensor([0])), data.classes).save(
        project.data(DATASET)
    )
    (finding,) = check_project(project, DATASET, certificate)
    assert (finding.field, finding.state) == ("data_digest", "unknown")
    assert "holds other data than this version was made from" in finding.detail


def test_a_crash_is_no_answer(proven: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr(verify, "compare", crash)
    result = puma(proven.root, "verify", DATASET, "3")
    assert result.exit_code == 2
    assert "ZeroDivisionError: by accident" in result.stderr
