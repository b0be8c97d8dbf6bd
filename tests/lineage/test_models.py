from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from puma.audit import (
    AuditReport,
    PlotData,
    Population,
    ShadowAttack,
    Verdict,
    everybody,
    halves,
    without,
)
from puma.audit.evidence import evidence_source, predict_without, train_pool
from puma.data import Dataset, Examples
from puma.errors import AuditError, DataError, DeletionError, ModelError
from puma.lineage.audits import load_evidence, make_references, record_audit
from puma.lineage.models import (
    load_deletion_set,
    load_model,
    load_trained,
    record_original,
    record_removal,
)
from puma.lineage.records import AuditRecord, ModelRecord
from puma.models import build_model, mlp, save_weights, weights_digest
from puma.project.workspace import Workspace
from puma.removal import Removal, Retrain, Trained
from puma.requests.deletion_set import DeletionSet
from puma.settings import ModelSettings

PARAMS = """\
seed: 5
originals: [original]
methods: [retrain]
versions: [original, retrain]
model: {hidden: [4]}
training: {epochs: 2, learning_rate: 0.01, batch_size: 8}
pool: {models: 16, everybody: 3}
audit: {evidence: retrain, models: 3, shadow_models: 4, jobs: 1}
"""
OWNERS = ["zz-person-a", "zz-person-b", "zz-person-c"]


@dataclass(frozen=True)
class Project:
    """A project in which the train stage has run."""

    workspace: Workspace
    dataset: Dataset
    trained: Trained
    original: ModelRecord

    def remove(self, *subject_ids: str) -> Removal:
        deletion_set = DeletionSet.of(subject_ids, self.dataset)
        method = Retrain(training=self.workspace.settings.training, seed=5)
        return method.remove(self.trained, deletion_set, progress=False)


def rows(n: int, seed: int, prefix: str) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    ids = [f"zz-{prefix}-{row}" for row in range(n)]
    if prefix == "train":
        ids[:6] = OWNERS * 2  # the first three people own two rows each
    else:
        ids[0] = OWNERS[0]
    features = torch.randn(n, 3, generator=generator)
    return Examples.of(features, torch.arange(n) % 2, ids)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "params.yaml").write_text(PARAMS)
    workspace = Workspace(tmp_path)
    dataset = Dataset("toy", rows(30, 0, "train"), rows(11, 1, "test"), ("good", "bad"))
    dataset.save(workspace.data("toy"))
    settings = workspace.settings
    initial = build_model(settings.model, dataset, seed=settings.seed)
    method = Retrain(training=settings.training, seed=settings.seed)
    trained = method.fit(initial, dataset, progress=False)
    return Project(workspace, dataset, trained, record_original(workspace, trained))


def accuracy_by_hand(model: nn.Module, examples: Examples) -> tuple[float, str]:
    """Share of right guesses, and the framed SHA-256 of the guesses."""
    with torch.no_grad():
        guesses = model(examples.features).numpy().argmax(1).astype("<i8")
    content = guesses.tobytes()
    framed = len(content).to_bytes(8, "big") + content
    right = np.mean(guesses == examples.labels.numpy())
    return float(right), hashlib.sha256(framed).hexdigest()


def test_the_original_s_record_describes_it(project: Project) -> None:
    trained, record = project.trained, project.original
    accuracy, digest = accuracy_by_hand(trained.predictor, project.dataset.test)
    assert accuracy != accuracy_by_hand(trained.predictor, project.dataset.train)[0]
    assert trained.history is not None
    assert record == ModelRecord(
        dataset="toy",
        method="original",
        seed=5,
        data_digest=project.dataset.digest,
        weights_digest=weights_digest(trained.predictor),
        predictions_digest=digest,
        weights="artifacts/toy/originals/original/weights.pt",
        model=ModelSettings(hidden=(4,)),
        shape=(3,),
        classes=("good", "bad"),
        parameters={
            "epochs": 2,
            "learning_rate": 0.01,
            "learning_rate_schedule": "constant",
            "batch_size": 8,
            "weight_decay": 0.0,
        },
        metrics={"accuracy": accuracy, "runtime_seconds": trained.seconds},
        loss_curve=trained.history.loss,
    )
    assert ModelRecord.read(project.workspace.root / "lineage" / "toy" / "original.json") == record


def test_the_trained_model_comes_back_with_its_data_and_its_beginning(project: Project) -> None:
    found = load_trained(project.workspace, "toy")
    assert found.dataset.digest == project.dataset.digest
    assert weights_digest(found.predictor) == weights_digest(project.trained.predictor)
    assert weights_digest(found.initial) == weights_digest(project.trained.initial)
    assert weights_digest(found.initial) != weights_digest(found.predictor)
    assert not any(module.training for module in found.predictor.modules())


def test_the_model_is_built_as_it_was_trained_whatever_params_say_now(project: Project) -> None:
    changed = PARAMS.replace("hidden: [4]", "hidden: [9]").replace("seed: 5", "seed: 6")
    (project.workspace.root / "params.yaml").write_text(changed)
    found = load_trained(project.workspace, "toy")
    assert weights_digest(found.predictor) == weights_digest(project.trained.predictor)
    assert weights_digest(found.initial) == weights_digest(project.trained.initial)


def test_exchanged_weights_are_refused(project: Project) -> None:
    path = project.workspace.weights("toy", "original")
    with torch.no_grad():
        next(project.trained.predictor.parameters()).view(-1)[0] += 1e-3
    save_weights(project.trained.predictor, path)
    message = r"original/weights\.pt is not what its model record describes; run `dvc repro`"
    with pytest.raises(ModelError, match=message):
        load_trained(project.workspace, "toy")
    with pytest.raises(ModelError, match=message):
        load_model(project.workspace, "toy", "original")
    path.unlink()
    with pytest.raises(ModelError, match=r"original/weights\.pt: no such weights"):
        load_model(project.workspace, "toy", "original")


@pytest.mark.parametrize("part", ["train", "test"])
def test_changed_data_are_refused(project: Project, part: str) -> None:
    examples: Examples = getattr(project.dataset, part)
    labels = examples.labels.clone()
    labels[0] = 1 - labels[0]
    other = replace(project.dataset, **{part: replace(examples, labels=labels)})
    other.save(project.workspace.data("toy"))
    with pytest.raises(DataError, match=r"dataset\.npz holds other data than this"):
        load_trained(project.workspace, "toy")


def test_a_dataset_that_was_never_trained_on_names_the_remedy(project: Project) -> None:
    with pytest.raises(DataError, match=r"lineage/wine/original\.json: no such model record; run"):
        load_trained(project.workspace, "wine")
    with pytest.raises(DataError, match=r"lineage/toy/puma\.json: no such model record"):
        load_model(project.workspace, "toy", "puma")


def test_a_removal_s_record_leads_to_its_parent_and_its_set(project: Project) -> None:
    removal = project.remove(OWNERS[2], OWNERS[0], "zz-train-9")
    removal = replace(removal, diagnostics={"solver_iterations": 4.0})
    record = record_removal(project.workspace, removal)

    key = bytes.fromhex((project.workspace.root / ".puma" / "deletion.key").read_text())
    parts = (b"toy", b"zz-person-a", b"zz-person-c", b"zz-train-9")
    message = b"".join(bytes(7) + bytes([len(part)]) + part for part in parts)
    accuracy, digest = accuracy_by_hand(removal.predictor, project.dataset.test)
    assert removal.history is not None
    assert record == ModelRecord(
        dataset="toy",
        method="retrain",
        seed=5,
        data_digest=project.dataset.digest,
        weights_digest=weights_digest(removal.predictor),
        predictions_digest=digest,
        weights="artifacts/toy/retrain.pt",
        model=ModelSettings(hidden=(4,)),
        shape=(3,),
        classes=("good", "bad"),
        parent=project.original.fingerprint,
        deletion_digest=hmac.new(key, message, hashlib.sha256).hexdigest(),
        n_removed=5,
        n_subjects=3,
        parameters={"schedule": "equal_epochs", "epochs": 2, "steps": 8},
        metrics={
            "accuracy": accuracy,
            "runtime_seconds": removal.seconds,
            "criterion_before": removal.criterion_before,
            "criterion_after": removal.criterion_after,
            "criterion_drift": removal.criterion_after - removal.criterion_before,
            "solver_iterations": 4.0,
        },
        loss_curve=removal.history.loss,
    )
    assert ModelRecord.read(project.workspace.model_record("toy", "retrain")) == record
    loaded = load_model(project.workspace, "toy", "retrain")
    assert weights_digest(loaded) == weights_digest(removal.predictor)
    assert not loaded.training
    assert weights_digest(load_trained(project.workspace, "toy").predictor) != weights_digest(
        loaded
    )


def test_the_same_removal_twice_is_the_same_version(project: Project) -> None:
    first, second = (
        record_removal(project.workspace, removal)
        for removal in (project.remove(OWNERS[0]), project.remove(OWNERS[0]))
    )
    assert first.metrics["runtime_seconds"] != second.metrics["runtime_seconds"]
    assert first.fingerprint == second.fingerprint
    other = record_removal(project.workspace, project.remove(OWNERS[1]))
    assert other.fingerprint != first.fingerprint
    assert other.parent == first.parent == project.original.fingerprint


def test_the_pipeline_s_request_is_read_with_the_project_s_settings(project: Project) -> None:
    workspace, dataset = project.workspace, project.dataset
    bad = {
        name
        for name, label in zip(dataset.train.subject_ids, dataset.train.labels, strict=True)
        if label == 1
    }
    DeletionSet.of(bad, dataset, allow_class_removal=True).write(workspace.deletion_set("toy"))
    with pytest.raises(DeletionError, match="every training row of class bad"):
        load_deletion_set(workspace, dataset)
    with (workspace.root / "params.yaml").open("a") as stream:
        stream.write("deletion: {allow_class_removal: true}\n")
    assert set(load_deletion_set(workspace, dataset).subject_ids) == bad


def report(**changed: object) -> AuditReport:
    found = {
        "verdict": Verdict("inconclusive", "nothing was found, of 4 rows"),
        "metrics": {"attack_rate": 0.1 + 0.2, "accuracy_change": -0.25},
        "unresolved": {"attack_tpr_at_1pct_fpr": "needs at least 100 unseen rows, there are 10"},
        "evidence": "pool",
        "plot_data": PlotData({}, {}, {}, [], np.empty((0, 3))),
    }
    return AuditReport(**found | changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["original", "retrain"])
def test_an_audit_s_record_says_what_the_report_says(project: Project, version: str) -> None:
    workspace = project.workspace
    record = record_removal(workspace, project.remove(OWNERS[0], OWNERS[1]))
    audited = ModelRecord.read(workspace.model_record("toy", version))
    deletion_set = DeletionSet.of(OWNERS[:2], project.dataset)

    record_audit(workspace, version, deletion_set, report())

    written = (workspace.root / "lineage" / "toy" / f"{version}.audit.json").read_bytes()
    assert AuditRecord.model_validate_json(written) == AuditRecord(
        weights_digest=audited.weights_digest,
        deletion_digest=str(record.deletion_digest),
        verdict="inconclusive",
        verdict_reason="nothing was found, of 4 rows",
        metrics={"attack_rate": 0.1 + 0.2, "accuracy_change": -0.25},
        evidence="pool",
        unresolved={"attack_tpr_at_1pct_fpr": "needs at least 100 unseen rows, there are 10"},
    )
    shown = json.loads((workspace.root / "metrics" / "toy" / f"{version}.json").read_text())
    assert shown == {
        "verdict": "inconclusive",
        "attack_rate": 0.1 + 0.2,
        **{name: audited.metrics[name] for name in ("accuracy", "runtime_seconds")},
    }
    assert ModelRecord.read(workspace.model_record("toy", version)) == audited


def test_an_audit_for_another_request_is_refused_and_not_written(project: Project) -> None:
    workspace = project.workspace
    record_removal(workspace, project.remove(OWNERS[0]))
    asked, other = (DeletionSet.of([name], project.dataset) for name in OWNERS[:2])

    with pytest.raises(DataError, match=r"toy: retrain answers another request .*`dvc repro`"):
        record_audit(workspace, "retrain", other, report())

    assert not workspace.audit("toy", "retrain").exists()
    assert not workspace.metrics("toy", "retrain").exists()
    record_audit(workspace, "retrain", asked, report())
    record_audit(workspace, "original", other, report())  # an original was made for none
    assert workspace.audit("toy", "retrain").exists()
    assert workspace.audit("toy", "original").exists()


def test_an_audit_whose_numbers_are_not_finite_is_not_written(project: Project) -> None:
    deletion_set = DeletionSet.of(OWNERS[:1], project.dataset)
    broken = report(metrics={"attack_auc": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        record_audit(project.workspace, "original", deletion_set, broken)
    assert not project.workspace.audit("toy", "original").exists()


def population(value: float, member: np.ndarray) -> Population:
    """Models whose margin is ``value`` for every row."""
    return Population(np.full(member.shape, value), ~member, member)


def test_evidence_is_that_of_the_original_and_the_request(project: Project) -> None:
    workspace, data = project.workspace, project.dataset
    deletion_set = DeletionSet.of(OWNERS[:1], data)
    network = mlp(4, 2, (3,))
    ShadowAttack(network, 2, "softmax_label", 0.75, 0.875).save(workspace.attack("toy"))
    shadows = population(0.5, halves(data, 4, seed=0))
    shadows.save(workspace.shadows("toy"))
    values = {"original": (1.0, 2.0), "sisa_original": (3.0, 4.0)}
    members = (everybody(data, 3), without(data, deletion_set, 3))
    for original, pair in values.items():
        for kind, value, member in zip(("with", "without"), pair, members, strict=True):
            population(value, member).save(workspace.reference("toy", original, kind))

    for original, (with_rows, without_rows) in values.items():
        found = load_evidence(workspace, deletion_set, original, progress=False)
        assert (found.with_rows.margins == with_rows).all()
        assert (found.without_rows.margins == without_rows).all()
        assert (found.lira.shadows.margins == 0.5).all()
        assert (found.lira.shadows.member == shadows.member).all()
        assert (found.shadow.quality, found.shadow.quality_auc) == (0.75, 0.875)
        assert weights_digest(found.shadow.network) == weights_digest(network)
    assert (load_evidence(workspace, deletion_set).with_rows.margins == 1.0).all()

    # Those without the rows of another request are trained; the others are not.
    other = DeletionSet.of(OWNERS[1:2], data)
    found = load_evidence(workspace, other, progress=False)
    assert (found.with_rows.margins == 1.0).all()
    assert (found.without_rows.member == without(data, other, 3)).all()
    assert len(np.unique(found.without_rows.margins)) > 3

    population(0.5, halves(data, 2 * 4, seed=0)).save(workspace.shadows("toy"))
    with pytest.raises(AuditError, match=r"3 models of everybody and 8 shadow models .* 3 and 4"):
        load_evidence(workspace, deletion_set)
    workspace.reference("toy", "original", "without").unlink()
    with pytest.raises(AuditError, match=r"original/without\.npz: no such models; run `dvc repro`"):
        load_evidence(workspace, deletion_set)


def test_the_pool_s_evidence_is_of_the_plain_original_alone(project: Project) -> None:
    workspace, data = project.workspace, project.dataset
    text = PARAMS.replace("evidence: retrain", "evidence: pool")
    (workspace.root / "params.yaml").write_text(text)
    first, other = (DeletionSet.of([name], data) for name in OWNERS[:2])
    with pytest.raises(AuditError, match=r"pool\.npz: no such pool; run `dvc repro`"):
        make_references(workspace, first, progress=False)
    pool = train_pool(data, workspace.settings, progress=False)
    pool.save(workspace.pool("toy"))
    ShadowAttack(mlp(4, 2, (3,)), 2, "softmax_label", 0.75, 0.875).save(workspace.attack("toy"))
    population(0.5, halves(data, 4, seed=0)).save(workspace.shadows("toy"))
    pair = make_references(workspace, first, progress=False)
    for kind, models in zip(("with", "without"), pair, strict=True):
        models.save(workspace.reference("toy", "original", kind))

    found = load_evidence(workspace, first, progress=False)
    assert found.source == "pool"
    np.testing.assert_array_equal(found.with_rows.margins, pool.everybody.margins)
    np.testing.assert_array_equal(found.without_rows.margins, pair[1].margins)
    expected = predict_without(pool, other, workspace.settings, progress=False)
    found = load_evidence(workspace, other, progress=False)
    np.testing.assert_allclose(found.without_rows.margins, expected.margins, atol=1e-3)
    assert (found.without_rows.member == without(data, other, 8)).all()
    assert evidence_source("sisa_original", workspace.settings) == "retrain"


def test_neither_records_nor_weights_name_anybody(project: Project) -> None:
    removal = project.remove(*OWNERS)
    record_removal(project.workspace, removal)
    record_audit(project.workspace, "retrain", removal.deletion_set, report())
    root = project.workspace.root
    written = {path.relative_to(root).as_posix(): path for path in root.rglob("*.json")}
    assert set(written) == {
        "lineage/toy/original.json",
        "lineage/toy/retrain.json",
        "lineage/toy/retrain.audit.json",
        "metrics/toy/retrain.json",
    }
    others = [*root.rglob("*.pt"), *root.rglob("*.key"), *root.rglob("fingerprint")]
    assert len(others) == 4
    for path in (*written.values(), *others):
        assert b"zz-" not in path.read_bytes()
    texts = json.dumps([json.loads(path.read_text()) for path in written.values()])
    plain = [hashlib.sha256(name.encode()).hexdigest() for name in OWNERS]
    plain += [hashlib.sha256("\n".join(["toy", *OWNERS]).encode()).hexdigest()]
    assert not any(digest in texts for digest in plain)
