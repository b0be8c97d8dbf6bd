"""Versions that an earlier PUMA registered still load, verify, and can be removed from.

``previous_version.tar.xz`` is a small project with its registry, made by commit 09decc0: 60 rows of
coin flips; versions 1 original, 2 retrain and 3 puma by the pipeline's functions, 4 by `puma
remove` from version 3. Its paths in mlflow.db start with ``/previous``.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import torch

from puma.models import weights_digest
from puma.project.workspace import Workspace
from puma.registry import Registry, all_registered, register_all
from puma.registry.certificate.verify import verify_version
from puma.workflows.remove import remove_request
from tests.registry.projects import move_store

PACK = Path(__file__).with_name("previous_version.tar.xz")
DATASET = "coins"
FINGERPRINTS = {  # as commit 09decc0 computed them
    1: "6bedf5db98308e030aabe9f1fab8daa929f9e34d145c17efb5fc5858d858450e",
    2: "f64302f8303a6cc2c7def06e63b29f2e293201ad6b4dbd6a05468c4cff917fb4",
    3: "ba679c2c2cbe7a429a9e3216703de24c6ca361488776f48d9ba9a41f239d7ba2",
    4: "2af8fa6ddd78f57749c1e9190bb1a3686040dfbbf660540b5af6141f85df082c",
}
LOGITS = {  # of version -> of LINE, as commit 09decc0 computed them
    1: [[-0.005387366, 0.177384377], [0.158971727, 0.080178678]],
    2: [[-0.091323234, 0.257100791], [0.079497345, 0.121552929]],
    3: [[-0.008699939, 0.172123045], [0.168132097, 0.079018205]],
    4: [[-0.003400862, 0.157955825], [0.184684277, 0.072795153]],
}
LINE = torch.linspace(-1, 1, 20).reshape(2, 10)


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return Registry.open(unpack(tmp_path_factory.mktemp("previous")))


def unpack(folder: Path) -> Workspace:
    with tarfile.open(PACK) as pack:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from 3.11.4
        pack.extractall(folder, **safely)
    workspace = Workspace(folder.resolve())
    move_store(workspace, "file:///previous")
    return workspace


def test_every_version_is_listed_with_its_parent_and_its_aliases(previous: Registry) -> None:
    versions = previous.versions(DATASET)
    assert {each.version: each.fingerprint for each in versions} == FINGERPRINTS
    assert [each.method for each in versions] == ["original", "retrain", "puma", "puma"]
    assert [each.parent_version for each in versions] == [None, 1, 1, 3]
    assert [each.n_removed for each in versions] == [0, 6, 6, 9]
    aliases = [each.aliases for each in versions]
    assert aliases == [("champion",), (), (), ("challenger",)]


def test_the_pipeline_finds_its_versions_in_place(previous: Registry) -> None:
    found = register_all(previous.workspace, progress=False)
    assert [(each.version, each.created) for each in found] == [(1, False), (2, False), (3, False)]
    assert all_registered(previous.workspace)


@pytest.mark.parametrize("number", FINGERPRINTS)
def test_a_version_loads_and_verifies(previous: Registry, number: int) -> None:
    version = previous.version(DATASET, number)
    logits = previous.load_predictor(version)(LINE)
    assert torch.allclose(logits, torch.tensor(LOGITS[number]), rtol=0, atol=1e-6)
    module = previous.load_module(version)
    assert weights_digest(module) == version.weights_digest
    assert torch.allclose(module(LINE), logits, rtol=0, atol=1e-6)
    assert previous.identity(version).fingerprint == FINGERPRINTS[number]
    verified = verify_version(previous.workspace, DATASET, number)
    assert {each.field: each.state for each in verified.findings if each.state != "holds"} == {}


def retrain_for_evidence(workspace: Workspace) -> None:
    params = workspace.root / "params.yaml"
    text = params.read_text().replace("audit: {", "audit: {evidence: retrain, ")
    params.write_text(f"{text}puma: {{reference_models: 1}}\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 4])
def test_a_removal_from_an_old_version(tmp_path: Path, number: int) -> None:
    workspace = unpack(tmp_path)
    retrain_for_evidence(workspace)  # commit 09decc0 trained no pool
    request = tmp_path / "request.csv"
    request.write_text("subject_id\nzz-train-30\nzz-train-31\n")
    remove_request(workspace, DATASET, number, request, progress=False)
    made = Registry.open(workspace).version(DATASET, "challenger")
    assert (made.version, made.parent_version) == (5, number)
    assert made.n_removed == {1: 2, 4: 11}[number]
    assert verify_version(workspace, DATASET, 5).conclusion == "holds"
