"""Audits of registered versions, from Python and from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import cross_entropy

from puma.audit import Population
from puma.audit.evidence import WITH, WITHOUT, train_references
from puma.data import Dataset
from puma.errors import AbsentError, AuditError, DataError, RegistryError
from puma.lineage.models import load_model
from puma.lineage.records import AuditRecord
from puma.project.workspace import Workspace
from puma.registry import list_versions, load_predictor, open_store
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key
from puma.workflows.audit import audit_version
from tests import command
from tests.audited import DATASET, N_REMOVED, VERSIONS
from tests.audited_fixtures import NUMBERS, own, project
from tests.registry.fixtures import _default_store, template

__all__ = ["_default_store", "own", "project", "template"]

pytestmark = pytest.mark.slow  # a whole project, trained, audited and registered
PARENTS = {"sisa": "sisa_original", "retrain": "original"}


def record(workspace: Workspace, version: str) -> AuditRecord:
    """What the pipeline's audit found."""
    return AuditRecord.model_validate_json(workspace.audit(DATASET, version).read_bytes())


def puma(folder: Path, *arguments: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        return command.puma(folder, *arguments)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_registered_version_is_found_to_be_what_the_pipeline_s_weights_are(
    project: Workspace, version: str
) -> None:
    row, report = audit_version(project, DATASET, NUMBERS[version])
    assert (row.version, row.method) == (NUMBERS[version], version)
    expected = record(project, version)
    assert report.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-5)
    assert report.unresolved == expected.unresolved
    assert report.verdict.name == expected.verdict
    assert report.verdict.name == row.verdict


@pytest.mark.parametrize("version", VERSIONS)
def test_its_numbers_are_those_of_its_own_and_its_parent_s_weights(
    project: Workspace, version: str
) -> None:
    _, report = audit_version(project, DATASET, NUMBERS[version])
    data = Dataset.load(project.data(DATASET))
    models = [
        load_model(project, DATASET, name) for name in (version, PARENTS.get(version)) if name
    ]
    with torch.no_grad():
        answers = [model(data.train.features).double() for model in models]
        unseen = [model(data.test.features).double() for model in models]
    hits = [(logits.argmax(1) == data.test.labels).double().mean().item() for logits in unseen]
    labels = data.train.labels[:N_REMOVED]
    loss = cross_entropy(answers[0][:N_REMOVED], labels, reduction="none")
    assert report.metrics["removed_loss"] == pytest.approx(loss.mean().item(), rel=1e-4)
    right = (answers[0][N_REMOVED:].argmax(1) == data.train.labels[N_REMOVED:]).double()
    assert report.metrics["retained_accuracy"] == pytest.approx(right.mean().item())
    assert report.metrics["accuracy_change"] == pytest.approx(hits[0] - hits[-1])

    def margins(logits: torch.Tensor, truth: torch.Tensor) -> np.ndarray:
        wrong = 1 - truth
        rows = torch.arange(len(truth))
        return (logits[rows, truth] - logits[rows, wrong]).numpy()

    falls = [
        margins(before[: len(truth)], truth) - margins(after[: len(truth)], truth)
        for before, after, truth in (
            (answers[-1], answers[0], labels),
            (unseen[-1], unseen[0], data.test.labels),
        )
    ]
    expected = roc_auc_score(np.repeat([1, 0], list(map(len, falls))), np.concatenate(falls))
    assert report.metrics["attack_auc_two_models"] == pytest.approx(expected, abs=1e-4)


def test_what_was_retrained_passes_and_what_was_not_does_not(project: Workspace) -> None:
    verdicts = {
        name: audit_version(project, DATASET, NUMBERS[name])[1].verdict.name
        for name in ("retrain", "original")
    }
    assert verdicts == {"retrain": "passed", "original": "forgetting_incomplete"}


@pytest.mark.parametrize(
    ("alias", "version"), [("champion", "original"), ("challenger", "retrain"), ("3", "sisa")]
)
def test_a_version_is_audited_by_its_alias_too(
    project: Workspace, alias: str, version: str
) -> None:
    row, report = audit_version(project, DATASET, alias)
    assert (row.version, row.method) == (NUMBERS[version], version)
    removed_loss = record(project, version).metrics["removed_loss"]
    assert report.metrics["removed_loss"] == pytest.approx(removed_loss, rel=1e-4)


@pytest.mark.slow
def test_every_version_is_compared_with_models_trained_as_its_original_was(own: Workspace) -> None:
    """Evidence of one kind of original has no say about the other."""
    expected = {name: record(own, name).metrics["remaining_influence"] for name in VERSIONS}
    for kind in ("with", "without"):
        path = own.reference(DATASET, "sisa_original", kind)
        known = Population.load(path)
        shift = 5.0 if kind == "with" else 0.0
        Population(known.margins + shift, known.correct, known.member).save(path)
    for name in VERSIONS:
        found = audit_version(own, DATASET, NUMBERS[name])[1].metrics["remaining_influence"]
        same = found == pytest.approx(expected[name], rel=1e-4, abs=1e-5)
        assert same == ("sisa" not in name), name


@pytest.mark.slow
def test_the_parent_is_the_registered_one_whatever_lies_on_disk(own: Workspace) -> None:
    before = audit_version(own, DATASET, NUMBERS["retrain"])[1].metrics
    for version in VERSIONS:
        own.weights(DATASET, version).unlink()
        own.model_record(DATASET, version).unlink()
        own.audit(DATASET, version).unlink()
    assert audit_version(own, DATASET, NUMBERS["retrain"])[1].metrics == before


def test_an_audit_changes_neither_the_project_nor_the_registry(own: Workspace) -> None:
    # MLflow notes beside a model that it was loaded.
    passing = {"registered_model_meta", "mlflow.lock"}

    def state() -> dict[Path, bytes]:
        files = [path for path in own.root.rglob("*") if path.is_file()]
        return {path: path.read_bytes() for path in files if path.name not in passing}

    rows = list_versions(open_store(own), DATASET)
    before = state()
    audit_version(own, DATASET, "challenger")
    assert state() == before
    assert list_versions(open_store(own), DATASET) == rows


# --- what cannot be audited ---


@pytest.mark.slow
def test_a_version_trained_on_other_data_is_refused(own: Workspace) -> None:
    data = Dataset.load(own.data(DATASET))
    labels = data.train.labels.clone()
    labels[-1] = 1 - labels[-1]
    replace(data, train=replace(data.train, labels=labels)).save(own.data(DATASET))
    for version in VERSIONS:
        with pytest.raises(DataError, match=r"dataset\.npz holds other data than this version was"):
            audit_version(own, DATASET, NUMBERS[version])


def test_a_removal_made_for_another_request_is_refused(own: Workspace) -> None:
    data = Dataset.load(own.data(DATASET))
    other = data.train.subject_ids[1 : N_REMOVED + 1].tolist()
    DeletionSet.of(other, data).write(own.deletion_set(DATASET))
    for version in PARENTS:
        with pytest.raises(DataError, match=r"deletion_set\.csv: another request, or .*\.key"):
            audit_version(own, DATASET, NUMBERS[version])


@pytest.mark.slow
def test_an_original_is_audited_for_whatever_request_is_the_current_one(own: Workspace) -> None:
    """The models without these rows, which the reference stage did not train, are trained."""
    data = Dataset.load(own.data(DATASET))
    other = DeletionSet.of(data.train.subject_ids[1 : N_REMOVED + 1].tolist(), data)
    other.write(own.deletion_set(DATASET))
    _, report = audit_version(own, DATASET, "champion")
    pair = train_references(data, other, "original", own.settings, progress=False)
    for kind, population in zip((WITH, WITHOUT), pair, strict=True):
        population.save(own.reference(DATASET, "original", kind))
    _, again = audit_version(own, DATASET, "champion")
    assert report.metrics == again.metrics


def test_another_key_is_another_request(own: Workspace) -> None:
    own.key.unlink()
    with pytest.raises(AbsentError, match=r"deletion\.key is not here"):
        audit_version(own, DATASET, "challenger")
    assert not own.key.exists()
    project_key(own.key)
    with pytest.raises(DataError, match=r"deletion\.key another key, than this version"):
        audit_version(own, DATASET, "challenger")


def test_a_version_made_by_hand_is_refused(own: Workspace) -> None:
    client = open_store(own)
    source = client.get_model_version(f"puma-{DATASET}", "1").source
    made = client.create_model_version(f"puma-{DATASET}", source=source)
    message = (
        rf"version {made.version} of 'coins' was not registered by PUMA.*`puma versions coins`"
    )
    with pytest.raises(AuditError, match=message):
        audit_version(own, DATASET, made.version)


@pytest.mark.parametrize("wanted", ["nobody", 5, "0"])
def test_an_unknown_version_names_the_known_ones(project: Workspace, wanted: str | int) -> None:
    with pytest.raises(RegistryError, match=r"choose one of 1, 2, 3, 4, challenger, champion$"):
        audit_version(project, DATASET, wanted)


@pytest.mark.slow
def test_a_version_whose_parent_is_gone_is_refused(own: Workspace) -> None:
    client = open_store(own)
    client.delete_model_version(f"puma-{DATASET}", str(NUMBERS["sisa_original"]))
    with pytest.raises(AuditError, match="parent, version 2, is not registered any more"):
        audit_version(own, DATASET, NUMBERS["sisa"])
    load_predictor(own, DATASET, NUMBERS["sisa"])  # the version itself is there
    audit_version(own, DATASET, NUMBERS["retrain"])


@pytest.mark.parametrize(
    ("place", "error", "message"),
    [
        (lambda w: w.data(DATASET), DataError, " is not here"),
        (lambda w: w.deletion_set(DATASET), DataError, " is here; put that version's request"),
        (lambda w: w.attack(DATASET), AuditError, ": no such attack"),
        (lambda w: w.shadows(DATASET), AuditError, ": no such models"),
        (lambda w: w.reference(DATASET, "original", "with"), AuditError, ": no such models"),
        (lambda w: w.reference(DATASET, "original", "without"), AuditError, ": no such models"),
    ],
    ids=["data", "request", "attack", "shadows", "with", "without"],
)
@pytest.mark.slow
def test_what_the_audit_needs_and_has_not_is_named(
    own: Workspace, place: Any, error: type[Exception], message: str
) -> None:
    place(own).unlink()
    with pytest.raises(error, match=rf"{place(own).name}{message}"):
        audit_version(own, DATASET, "challenger")
    result = puma(own.root, "audit", DATASET, "challenger")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{place(own).name}{message}" in result.stderr


# --- the command ---


@pytest.mark.parametrize(
    ("version", "code", "verdict"),
    [("retrain", 0, "passed"), ("original", 1, "forgetting_incomplete")],
)
def test_the_exit_code_tells_whether_it_passed(
    project: Workspace, version: str, code: int, verdict: str
) -> None:
    number = str(NUMBERS[version])
    result = puma(project.root, "audit", DATASET, number)
    assert (result.exit_code, result.stderr) == (code, "")
    expected = record(project, version)
    assert result.stdout.splitlines()[-1] == f"{verdict}: {expected.verdict_reason}"
    as_json = puma(project.root / "lineage", "audit", DATASET, number, "--json")
    assert (as_json.exit_code, as_json.stderr) == (code, "")
    assert json.loads(as_json.stdout)["verdict"] == verdict


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.slow
def test_as_json_it_is_all_that_is_printed(project: Workspace, version: str) -> None:
    result = puma(project.root, "audit", DATASET, str(NUMBERS[version]), "--json")
    found = json.loads(result.stdout)
    expected = record(project, version)
    metrics = found.pop("metrics")
    assert found == {
        "dataset": DATASET,
        "version": NUMBERS[version],
        "method": version,
        "verdict": expected.verdict,
        "reason": expected.verdict_reason,
        "unresolved": expected.unresolved,
    }
    assert metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-5)


def test_the_table_tells_every_number_and_why_some_are_missing(project: Workspace) -> None:
    result = puma(project.root, "audit", DATASET, "challenger")
    lines = result.stdout.splitlines()
    assert lines[0].rstrip() == "Audit of puma-coins version 4 (retrain)"
    expected = record(project, "retrain")
    shown = {words[0]: float(words[1]) for line in lines[1:] if len(words := line.split()) == 2}
    assert shown == pytest.approx(expected.metrics, abs=6e-4)
    assert set(expected.unresolved) == {"attack_tpr_at_1pct_fpr", "attack_tpr_at_0_1pct_fpr"}
    rows = {
        "attack_tpr_at_1pct_fpr": "1.0% needs at least 100",
        "attack_tpr_at_0_1pct_fpr": "0.1% needs at least 1000",
    }
    for name, needed in rows.items():
        reason = f"a false-positive rate of {needed} unseen rows, there are 40"
        assert f"{name} cannot be told: {reason}" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (DATASET, "nobody"),
            "no version 'nobody'; choose one of 1, 2, 3, 4, challenger, champion",
        ),
        (("dice", "1"), "unknown dataset 'dice'"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_audited_is_neither_passed_nor_failed(
    project: Workspace, arguments: tuple[str, str], message: str
) -> None:
    for options in ((), ("--json",)):
        result = puma(project.root, "audit", *arguments, *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr


def test_a_crash_is_no_verdict(project: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr("puma.workflows.audit.audit_version", crash)
    result = puma(project.root, "audit", DATASET, "1")
    assert result.exit_code == 2
    assert "ZeroDivisionError: by accident" in result.stderr


@pytest.mark.slow
def test_neither_the_table_nor_the_json_names_anybody(project: Workspace) -> None:
    for options in ((), ("--json",)):
        for version in NUMBERS.values():
            result = puma(project.root, "audit", DATASET, str(version), *options)
            assert "zz-" not in result.output
    data = Dataset.load(project.data(DATASET))
    assert all(name.startswith("zz-") for name in data.train.subject_ids)
