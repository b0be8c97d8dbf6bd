"""The real pipeline, dvc.yaml and notebooks as they are, on real data with tiny parameters."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from dvc.utils.serialize import dumps_yaml, loads_yaml

from puma.audit import Population
from puma.data import Dataset
from puma.lineage.records import AuditRecord, ModelRecord
from puma.models import build_model, load_weights
from puma.project.workspace import Workspace
from puma.registry import open_store
from puma.requests.deletion_set import DeletionSet
from puma.requests.digest import project_key
from tests.command import completed

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
DATASET = "breast_cancer"  # its subjects are real identifiers
TINY = {
    "datasets": [DATASET],
    "originals": ["original"],
    "methods": ["puma"],
    "versions": ["original", "puma"],
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"epochs": 8, "batch_size": 64, "learning_rate": 0.01, "weight_decay": 0.0},
    "shadow": {
        "models": 2,
        "fraction": 0.09,
        "epochs": 5,
        "attack_hidden": [8],
        "attack_epochs": 5,
    },
    "pool": {"models": 16, "everybody": 3},
    "audit": {"evidence": "pool", "models": 3, "shadow_models": 4, "jobs": 1},
}
PICTURES = ["losses.png", "margins.png", "roc.png"]


def run(
    workspace: Workspace, *command: str, codes: tuple[int, ...] = (0,)
) -> subprocess.CompletedProcess[str]:
    binaries = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "DVC_NO_ANALYTICS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    done = completed(command, workspace.root, environment)
    assert done.returncode in codes, done.stdout + done.stderr
    return done


def stages_run(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The stages that `dvc repro` executed, without the dataset's name."""
    return set(re.findall(rf"Running stage '(\w+)(?:@{DATASET})?-?", done.stdout))


def versions(workspace: Workspace) -> list[dict]:
    return json.loads(run(workspace, "puma", "versions", DATASET, "--json").stdout)


def copy_project(root: Path, settings: dict[str, object]) -> Workspace:
    """A copy of the project as it is after a clone, with ``settings`` in its params.yaml."""
    for name in ("puma", "notebooks", "deletions", ".dvc"):
        ignored = shutil.ignore_patterns("__pycache__", "cache", "tmp", "*.csv.*")
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for name in ("dvc.yaml", ".dvcignore", ".gitignore"):
        shutil.copy(ROOT / name, root)
    for request in (root / "deletions").glob("*.csv"):
        request.unlink()
    stated = loads_yaml((ROOT / "params.yaml").read_text()) | settings
    (root / "params.yaml").write_text(dumps_yaml(stated))
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return Workspace(root)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Workspace:
    """A copy of the project in which `dvc repro` has run once."""
    workspace = copy_project(tmp_path_factory.mktemp("project"), TINY)
    run(workspace, "dvc", "repro")
    return workspace


@pytest.fixture(scope="module")
def registered(project) -> list[dict]:
    return versions(project)


def test_the_demonstration_runs_its_datasets_at_the_same_time(tmp_path):
    names = [DATASET, "german_credit"]
    workspace = copy_project(tmp_path / "project", TINY | {"datasets": names})
    shutil.copy(ROOT / "Makefile", workspace.root)
    binaries = f"BIN={Path(sys.executable).parent}"
    done = run(workspace, "make", "-o", "install", binaries, "demo")  # install: it is done
    ran = Counter(re.findall(r"Running stage '(\w+)", done.stdout))
    once = ["prepare", "request", "train", "shadow", "pool", "reference", "remove", "compare"]
    # source looks again before register; the original and puma are audited
    assert ran == dict.fromkeys(once, 2) | {"source": 4, "audit": 4, "register": 1}
    # Between a dataset's first notebook and its last audit: both compare after register.
    spans = []
    for name in names:
        reports = set(workspace.root.glob(f"reports/{name}-*.ipynb"))
        reports.remove(workspace.root / f"reports/{name}-compare.ipynb")
        runs = [json.loads(report.read_text())["metadata"]["papermill"] for report in reports]
        spans.append((min(run["start_time"] for run in runs), max(run["end_time"] for run in runs)))
    (one_started, one_ended), (other_started, other_ended) = spans
    assert max(one_started, other_started) < min(one_ended, other_ended)
    for name in names:
        assert f"puma-{name}" in done.stdout  # the comparison


def test_every_method_is_a_version_with_its_lineage(project, registered):
    by_method = {row["method"]: row for row in registered}
    assert list(by_method) == TINY["versions"]
    original, puma = by_method["original"], by_method["puma"]
    assert original["aliases"] == ["champion"]
    assert puma["aliases"] == ["challenger"]

    dataset = Dataset.load(project.data(DATASET))
    deletion = DeletionSet.read(project.deletion_set(DATASET), dataset)
    assert puma["parent_version"] == original["version"]
    assert puma["deletion_digest"] == deletion.digest(project_key(project.key))
    assert puma["n_removed"] == len(deletion.rows)
    for name in ("accuracy", "attack_rate", "runtime_seconds"):
        assert all(name in row["metrics"] for row in registered)


def test_registered_accuracy_is_that_of_the_registered_model(project, registered):
    """In a fresh process, with pickles forbidden, from the registry alone."""
    script = f"""
import json, torch, mlflow
from puma.data import Dataset
from puma.registry import load_predictor
from puma.project.workspace import Workspace
workspace = Workspace.find()
test = Dataset.load(workspace.data("{DATASET}")).test
predictions = {{}}
for version in {[row["version"] for row in registered]}:
    logits = load_predictor(workspace, "{DATASET}", str(version))(test.features)
    predictions[version] = logits.tolist()
print(json.dumps(predictions))
"""
    environment = os.environ | {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project.root, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    predictions = json.loads(done.stdout.strip().splitlines()[-1])
    dataset = Dataset.load(project.data(DATASET))
    for row in registered:
        record = ModelRecord.read(project.model_record(DATASET, row["method"]))
        logits = torch.tensor(predictions[str(row["version"])])
        model = load_weights(
            build_model(record.model, dataset, seed=0), project.root / record.weights
        )
        with torch.no_grad():
            torch.testing.assert_close(logits, model(dataset.test.features))
        accuracy = (logits.argmax(1) == dataset.test.labels).double().mean().item()
        assert row["metrics"]["accuracy"] == pytest.approx(accuracy, abs=1e-9)


def test_every_version_carries_its_audit(project, registered, monkeypatch):
    """The stored verdict, pictures and numbers are those of the audit stage."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = open_store(project)
    for row in registered:
        audit = AuditRecord.model_validate_json(project.audit(DATASET, row["method"]).read_bytes())
        assert row["verdict"] == audit.verdict
        tags = client.get_run(row["run_id"]).data.tags
        assert tags["puma.verdict_reason"] == audit.verdict_reason
        assert audit.metrics.items() <= row["metrics"].items()
        assert not audit.unresolved.keys() & row["metrics"].keys()
        folder = project.figures(DATASET, row["method"])
        assert sorted(path.name for path in folder.iterdir()) == PICTURES
        shown = Path(client.download_artifacts(row["run_id"], "audit"))
        assert sorted(path.name for path in shown.iterdir()) == PICTURES
        for name in PICTURES:
            assert (shown / name).read_bytes() == (folder / name).read_bytes()


def test_reference_models_are_with_and_without_the_request(project):
    dataset = Dataset.load(project.data(DATASET))
    asked = {*DeletionSet.read(project.deletion_set(DATASET), dataset).subject_ids}
    removed = np.isin(dataset.train.subject_ids, list(asked))
    tested = np.zeros(len(dataset.test), dtype=bool)
    for kind, seen, count in (("with", np.ones_like(removed), 3), ("without", ~removed, 8)):
        population = Population.load(project.reference(DATASET, "original", kind))
        assert (population.member == np.concatenate([seen, tested])).all()
        assert len(population) == count
        assert len(np.unique(population.margins, axis=0)) == len(population)
    shadows = Population.load(project.shadows(DATASET)).member
    assert len(shadows) == TINY["audit"]["shadow_models"]
    assert (shadows.sum(0) == 2).all()


def test_a_registered_version_can_be_audited_again(project, registered):
    done = run(project, "puma", "audit", DATASET, "challenger", "--json", codes=(0, 1))
    found, row = json.loads(done.stdout), registered[-1]
    assert (found["version"], found["verdict"]) == (row["version"], row["verdict"])
    assert done.returncode == (found["verdict"] not in ("passed", "indistinguishable"))
    expected = {name: row["metrics"][name] for name in found["metrics"]}
    assert found["metrics"] == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_puma_keeps_its_budget(project, registered):
    puma = next(row for row in registered if row["method"] == "puma")
    assert abs(puma["metrics"]["criterion_drift"]) <= project.settings.puma.budget


def test_no_subject_or_row_is_in_the_registry_or_the_executed_notebooks(project):
    dataset = Dataset.load(project.data(DATASET))
    ids = {*dataset.train.subject_ids.tolist(), *dataset.test.subject_ids.tolist()}
    known = re.compile(rb"(?<![\d.])\d{5,8}(?![\d.])")
    # Ids of runs and digests are random: now and then their digits are somebody's id.
    random_names = re.compile(rb"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32,64}")
    searched = 0
    for path in (
        project.root / "mlflow.db",
        *(project.root / "mlruns").rglob("*"),
        *(project.root / "reports").rglob("*.ipynb"),
        *(project.root / "lineage").rglob("*.json"),
        *(project.root / "metrics").rglob("*.json"),
    ):
        if path.is_file():
            searched += 1
            found = {
                match.decode() for match in known.findall(random_names.sub(b" ", path.read_bytes()))
            } & ids
            assert not found, f"{path} holds {len(found)} subject ids"
    assert searched > 15
    raw = (ROOT / "puma/data/files/breast_cancer_wisconsin_original.csv").read_text().splitlines()
    rows = {line.split(",", 1)[1].rsplit(",", 1)[0] for line in raw[1:]}
    for path in (project.root / "reports").rglob("*.ipynb"):
        text = re.sub(r"\s", "", path.read_text())
        assert not [row for row in rows if row in text]


def test_running_again_changes_nothing(project, registered):
    done = run(project, "dvc", "repro")
    assert "Executing notebook" not in done.stdout + done.stderr
    assert versions(project) == registered


def test_notebooks_that_a_person_runs_leave_the_pipeline_alone(project, registered):
    folders = ("artifacts", "lineage", "metrics", "plots")
    outputs = [path for name in folders for path in (project.root / name).rglob("*")]
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in outputs}
    for name in ("prepare", "train", "shadow", "reference", "remove", "audit", "register"):
        done = run(
            project, "papermill", "-k", "python3", "--cwd", "notebooks", "--log-output",
            f"notebooks/{name}.ipynb", "looked.ipynb",
            *(() if name == "register" else ("-p", "dataset", DATASET)),
        )  # fmt: skip
        assert re.search("Nothing is (recorded|registered)", done.stderr), name
    found = [path for name in folders for path in (project.root / name).rglob("*")]
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in found} == before
    assert versions(project) == registered
    assert not list((project.root / ".puma" / "interactive").iterdir())


def test_lost_outputs_and_a_lost_registry_come_back(project, registered):
    for folder in ("artifacts", "lineage", "metrics", "plots", "reports"):
        shutil.rmtree(project.root / folder)
    (project.root / "mlflow.db").unlink()
    done = run(project, "dvc", "repro")
    executed = (done.stdout + done.stderr).count("Executing notebook")
    assert executed == 1, "all but the register stage come from DVC's cache"
    rebuilt = versions(project)
    for row, before in zip(rebuilt, registered, strict=True):
        for name in ("version", "method", "fingerprint", "aliases", "parent_version", "metrics"):
            assert row[name] == before[name]


def test_a_request_of_ones_own_becomes_a_new_version(project, registered):
    dataset = Dataset.load(project.data(DATASET))
    asked = dataset.train.subject_ids[:5].tolist()
    request = project.request(DATASET)
    request.write_text("\n".join(["subject_id", *asked, asked[0]]) + "\n")
    done = run(project, "dvc", "repro", "register")
    assert stages_run(done) == {"source", "request", "reference", "remove", "audit", "register"}
    after = versions(project)
    assert len(after) == len(registered) + len(TINY["methods"])
    newest = after[-1]
    expected = DeletionSet.of(asked, dataset)
    assert newest["n_removed"] == len(expected.rows)
    assert newest["deletion_digest"] == expected.digest(project_key(project.key))
    assert newest["aliases"] == ["challenger"]
    lock = (project.root / "dvc.lock").read_text()
    expected.write(project.root / "guessed.csv", reason=f"request in deletions/{DATASET}.csv")
    for guess in (request, project.root / "guessed.csv"):
        assert hashlib.md5(guess.read_bytes()).hexdigest() not in lock
    assert hashlib.md5(project.deletion_set(DATASET).read_bytes()).hexdigest() in lock
    retrained = Population.load(project.reference(DATASET, "original", "without"))
    assert (~retrained.member[0, : len(dataset.train)]).nonzero()[0].tolist() == (
        expected.rows.tolist()
    )
    original = next(row for row in after if row["method"] == "original")
    audit = AuditRecord.model_validate_json(project.audit(DATASET, "original").read_bytes())
    assert audit.deletion_digest == newest["deletion_digest"]
    assert original["verdict"] == audit.verdict
    assert audit.metrics.items() <= original["metrics"].items()
    assert next(row for row in after if "champion" in row["aliases"])["method"] == "original"
