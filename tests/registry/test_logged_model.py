"""A removal's logged model: the parent's graph where it can be trusted, else one of its own."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import mlflow.pytorch
import pytest
import torch
from torch import nn

from puma.lineage.records import ModelRecord
from puma.project.workspace import Workspace
from puma.registry import Registry, load_predictor, register_all
from puma.registry.creation import pipeline_draft
from puma.registry.logged_model import graph_digest
from puma.registry.versions import GRAPH, RegisteredVersion
from puma.settings import ModelSettings
from tests.registry.projects import (
    DATASET,
    DELETION,
    FEATURES,
    OTHER_DELETION,
    make_model,
    run_python,
    write_version,
)

ROWS = torch.eye(FEATURES)


def files(workspace: Workspace, version: RegisteredVersion) -> Path:
    model_id = version.source.removeprefix("models:/")
    return workspace.root / "mlruns" / "puma" / "models" / model_id / "artifacts"


def remove(workspace: Workspace) -> RegisteredVersion:
    """Register another removal from version 1."""
    original = ModelRecord.read(workspace.model_record(DATASET, "original"))
    record = write_version(
        workspace,
        "puma",
        weights_seed=9,
        parent=original,
        deletion=OTHER_DELETION,
        architecture=original.model,
    )
    made, _ = Registry.open(workspace).register_removal(pipeline_draft(workspace, record), "a key")
    return made


def archive_entries(folder: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(folder / "data" / "model.pt2") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_removal_has_its_parents_graph_and_its_own_weights(registered: Workspace) -> None:
    made = remove(registered)
    parent = Registry.open(registered).version(DATASET, "1")
    model = make_model(9).eval()
    folder = files(registered, made)
    assert torch.equal(mlflow.pytorch.load_model(str(folder))(ROWS), model(ROWS))
    assert torch.equal(load_predictor(registered, DATASET, made.version)(ROWS), model(ROWS))
    assert graph_digest(folder) == made.tags[GRAPH] == parent.tags[GRAPH]
    ours, theirs = archive_entries(folder), archive_entries(files(registered, parent))
    assert {name for name in ours if ours[name] != theirs[name]} == {
        f"archive/data/weights/weight_{place}" for place in range(4)
    }
    described = mlflow.models.Model.load(str(folder))
    assert (described.model_id, described.run_id) == (folder.parent.name, made.run_id)
    assert described.signature == mlflow.models.Model.load(str(files(registered, parent))).signature
    assert {each.name for each in folder.iterdir()} == {
        each.name for each in files(registered, parent).iterdir()
    }


@pytest.mark.parametrize("changed", ["MLmodel", "conda.yaml", "graph", "more", "gone"])
def test_a_changed_graph_is_not_taken_over(registered: Workspace, changed: str) -> None:
    parent = Registry.open(registered).version(DATASET, "1")
    folder = files(registered, parent)
    if changed == "graph":
        network = make_model(0).eval()
        network[1] = nn.Tanh()  # type: ignore[operator]
        archive = io.BytesIO()
        torch.export.save(torch.export.export(network, (torch.zeros(2, FEATURES),)), archive)
        (folder / "data" / "model.pt2").write_bytes(archive.getvalue())
    elif changed == "more":
        (folder / "sitecustomize.py").write_text("raise SystemExit")
    elif changed == "gone":
        (folder / "MLmodel").unlink()
    else:
        text = (folder / changed).read_text()
        (folder / changed).write_text(text.replace("mlflow", "mlflaw"))
        assert (folder / changed).read_text() != text
    made = remove(registered)
    assert made.tags[GRAPH] == parent.tags[GRAPH]  # an export of the same network says the same
    assert graph_digest(files(registered, made)) == made.tags[GRAPH]
    predict = load_predictor(registered, DATASET, made.version)
    assert torch.equal(predict(ROWS), make_model(9)(ROWS).detach())


def test_a_network_of_ones_own_is_exported_as_its_code_is_now(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "changing_networks.py"
    text = (
        "from torch import nn\n\ndef small(shape, classes):\n"
        "    return nn.Sequential(nn.Linear(shape[0], 8), nn.ReLU(), nn.Linear(8, classes))\n"
    )
    code.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ModelSettings(name="changing_networks:small")
    original = write_version(workspace, "original", weights_seed=0, architecture=own)
    for seed, method in enumerate(("retrain", "puma"), start=1):
        write_version(
            workspace,
            method,
            weights_seed=seed,
            parent=original,
            deletion=DELETION,
            architecture=own,
        )
    register_all(workspace, progress=False)
    code.write_text(text.replace("ReLU", "Sigmoid"))
    del sys.modules["changing_networks"]
    made = remove(workspace)
    network = make_model(9).eval()
    network[1] = nn.Sigmoid()  # type: ignore[operator]
    found = load_predictor(workspace, DATASET, made.version)(ROWS)
    assert torch.equal(found, network(ROWS).detach())


@pytest.mark.slow
def test_a_removal_is_registered_without_pytorch_s_compiler(registered: Workspace) -> None:
    """Two seconds of imports, for each request."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom puma.project.workspace import Workspace\n"
        "from tests.registry.test_logged_model import remove\n"
        "made = remove(Workspace(Path.cwd()))\n"
        "print(made.version, 'torch._dynamo' in sys.modules)"
    )
    root = str(Path(__file__).parents[2])
    assert run_python(code, registered.root, PYTHONPATH=root) == "4 False\n"
