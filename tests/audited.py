"""A tiny project in which every stage has run, and of which the truth is known.

Labels are coin flips, so that a model can only know them from having seen them: an original
remembers the removed rows, and a model retrained without them cannot.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from puma import plots
from puma.audit import audit_removal, predict, train_shadow_attack
from puma.audit.evidence import WITH, WITHOUT, train_references, train_shadows
from puma.data import Dataset, Examples
from puma.lineage.audits import load_evidence, record_audit
from puma.lineage.models import load_model, load_trained, record_original, record_removal
from puma.models import build_model
from puma.project.workspace import Workspace
from puma.registry import register_all
from puma.removal import build_method, build_trainer
from puma.requests.deletion_set import DeletionSet
from puma.settings import original_of
from tests.registry.projects import copy_store

DATASET = "coins"
CLASSES = ("heads", "tails")
ORIGINALS = ("original", "sisa_original")
METHODS = ("sisa", "retrain")
VERSIONS = (*ORIGINALS, *METHODS)  # in the order of their numbers
PARAMS = """\
datasets: [coins]
originals: [original, sisa_original]
methods: [sisa, retrain]
versions: [original, sisa_original, sisa, retrain]
model: {hidden: [32]}
training: {epochs: 40, learning_rate: 0.01, batch_size: 16}
sisa: {shards: 2, slices: 2}
shadow: {models: 2, fraction: 0.3, epochs: 20, attack_hidden: [8], attack_epochs: 20}
puma: {reference_models: 1}
pool: {models: 16, everybody: 5}
audit:
  evidence: retrain
  models: 5
  shadow_models: 4
  jobs: 1
  max_accuracy_loss: 0.3 # test rows are coin flips, too
  max_balanced_accuracy_loss: 0.3
"""
N_TRAIN, N_TEST, N_REMOVED = 70, 40, 14


def make_audited(root: Path, template: Workspace) -> Workspace:
    """What the stages do, one after the other, with a copy of the ``template``'s store."""
    root.mkdir(parents=True)
    (root / "params.yaml").write_text(PARAMS)
    workspace = Workspace(root.resolve())
    settings = workspace.settings
    data = Dataset(DATASET, coin_flips(N_TRAIN, "train"), coin_flips(N_TEST, "test"), CLASSES)
    data.save(workspace.data(DATASET))
    deletion_set = DeletionSet.of(data.train.subject_ids[:N_REMOVED].tolist(), data)
    deletion_set.write(workspace.deletion_set(DATASET))

    initial = build_model(settings.model, data, seed=settings.seed)
    for original in ORIGINALS:
        records = workspace.records(DATASET, original)
        trainer = build_trainer(original, settings)
        record_original(workspace, trainer.fit(initial, data, records=records, progress=False))
        pair = train_references(data, deletion_set, original, settings, progress=False)
        for kind, population in zip((WITH, WITHOUT), pair, strict=True):
            population.save(workspace.reference(DATASET, original, kind))
    train_shadow_attack(
        data, settings.model, settings.training, settings.shadow, seed=settings.seed, progress=False
    ).save(workspace.attack(DATASET))
    train_shadows(data, settings, progress=False).save(workspace.shadows(DATASET))

    for method in METHODS:
        trained = load_trained(workspace, DATASET, original_of(method))
        removal = build_method(method, settings).remove(trained, deletion_set, progress=False)
        record_removal(workspace, removal)
    for version in VERSIONS:
        parent = original_of(version)
        audited, before = (load_model(workspace, DATASET, name) for name in (version, parent))
        predictions = predict(audited, data.train, data.test, parent=before)
        evidence = load_evidence(workspace, deletion_set, parent)
        report = audit_removal(predictions, data, deletion_set, evidence, settings.audit)
        record_audit(workspace, version, deletion_set, report)
        figures = plots.audit_figures(report.plot_data, (parent, version))
        plots.save(figures, workspace.figures(DATASET, version))
    copy_store(template, workspace)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        register_all(workspace, progress=False)
    return workspace


def copy_of(project: Workspace, root: Path) -> Workspace:
    """The project and its registry at another place, to be changed."""
    shutil.copytree(project.root, root, ignore=shutil.ignore_patterns("mlruns", "mlflow.db"))
    copied = Workspace(root.resolve())
    copy_store(project, copied)
    return copied


def coin_flips(n: int, kind: str) -> Examples:
    generator = torch.Generator().manual_seed(len(kind))
    features = torch.randn(n, 10, generator=generator)
    labels = torch.randint(2, (n,), generator=generator)
    return Examples.of(features, labels, [f"zz-{kind}-{row}" for row in range(n)])
