"""What may be loaded from the registry: nothing that runs by being loaded."""

from __future__ import annotations

import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pytorch
import mlflow.sklearn
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from puma.errors import RegistryError
from puma.lineage.records import ModelRecord
from puma.models import load_weights, weights_digest
from puma.project.workspace import Workspace
from puma.registry import load_predictor, open_store, register_all
from puma.registry.certificate.verify import verify_version
from puma.registry.loading import load_graph, load_identity, load_module
from puma.registry.promotion import promote
from puma.settings import ModelSettings
from tests.registry.projects import (
    CLASSES,
    DATASET,
    DELETION,
    FEATURES,
    OTHER_DELETION,
    exported_model,
    make_model,
    write_version,
)
from tests.registry.served import answer

NAME = f"puma-{DATASET}"


class Bomb(nn.Module):
    """Its pickle leaves a mark where it is loaded."""

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.write_text, (self.mark, "ran"))


def add_version(workspace: Workspace, log: Callable[[], Any]) -> Any:
    """A version that somebody registered by hand."""
    client = open_store(workspace)
    with mlflow.start_run(experiment_id=client.get_experiment_by_name("puma").experiment_id):
        info = log()
    return client.create_model_version(NAME, source=info.model_uri, model_id=info.model_id)


def pickled(model: nn.Module) -> Callable[[], Any]:
    return lambda: mlflow.pytorch.log_model(
        model, name="model", serialization_format="pickle", pip_requirements=["torch"]
    )


def artifacts(workspace: Workspace, version: str) -> Path:
    found = open_store(workspace).get_model_version(NAME, version)
    model_id = found.source.removeprefix("models:/")
    return workspace.root / "mlruns" / "puma" / "models" / model_id / "artifacts"


def test_a_pickle_is_refused_unread(registered: Workspace, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    found = add_version(registered, pickled(Bomb(mark)))
    with pytest.raises(RegistryError, match=rf"{NAME}/4 is no exported graph.*by name: load_pred"):
        load_predictor(registered, DATASET, 4)
    with pytest.raises(RegistryError, match="no exported graph"):
        load_predictor(registered, DATASET, 4, allow_pickle=[f"{NAME}/3", "4", NAME])
    with pytest.raises(RegistryError, match="no exported graph"):
        load_graph(found)
    assert not mark.exists()


def test_a_pickle_that_is_allowed_by_name_is_loaded(registered: Workspace) -> None:
    model = make_model(5)
    add_version(registered, pickled(model))
    rows = torch.eye(FEATURES)
    predict = load_predictor(registered, DATASET, 4, allow_pickle=[f"{NAME}/4"])
    assert torch.equal(predict(rows), model(rows).detach())


def test_another_library_s_pickle_is_refused(registered: Workspace) -> None:
    model = LogisticRegression().fit(torch.eye(2).numpy(), [0, 1])
    add_version(
        registered,
        lambda: mlflow.sklearn.log_model(
            model, name="model", pip_requirements=["scikit-learn"], serialization_format="pickle"
        ),
    )
    with pytest.raises(RegistryError, match=rf"{NAME}/4 is no exported graph"):
        load_predictor(registered, DATASET, 4)


def test_a_pickle_beside_the_archive_is_not_read(registered: Workspace, tmp_path: Path) -> None:
    """MLflow prefers model.pth where a folder holds both."""
    mark = tmp_path / "mark"
    folder = artifacts(registered, "3") / "data"
    torch.save(Bomb(mark), folder / "model.pth")
    (folder / "pickle_module_info.txt").write_text("pickle")
    with pytest.raises(RegistryError, match=rf"{NAME}/3 cannot be loaded"):
        load_predictor(registered, DATASET, 3)
    assert not mark.exists()


def test_files_that_are_gone_are_no_pickle(registered: Workspace) -> None:
    shutil.rmtree(artifacts(registered, "3"))
    with pytest.raises(RegistryError, match=rf"{NAME}/3 cannot be loaded.*restore mlruns/"):
        load_predictor(registered, DATASET, 3)


@pytest.mark.slow
def test_the_default_path_unpickles_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the receipts to a version that serves and was checked."""
    register_all(workspace, progress=False)  # imports and caches what they like

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    answer(workspace, OTHER_DELETION, n_removed=5, seed=8)
    client = open_store(workspace)
    found = client.get_model_version(NAME, "5")
    load_module(client, found, workspace)
    load_predictor(workspace, DATASET, 5)(torch.eye(FEATURES))
    assert promote(workspace, DATASET, 5).moved
    assert not verify_version(workspace, DATASET, 5).failed


def test_nothing_fetched_stays_behind(filled: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be weights that no erasure finds."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        predict = load_predictor(filled, DATASET, 3)
        assert list(Path(folder).iterdir()) == []
        expected = load_weights(make_model(99), filled.weights(DATASET, "puma"))
        rows = torch.eye(FEATURES)
        assert torch.equal(predict(rows), expected(rows).detach())


# --- a module again ---


@pytest.mark.parametrize("version", ["1", "3"])
def test_a_version_is_a_module_again(filled: Workspace, version: str) -> None:
    client = open_store(filled)
    found = client.get_model_version(NAME, version)
    module = load_module(client, found, filled)
    own = load_weights(
        make_model(99), filled.weights(DATASET, {"1": "original", "3": "puma"}[version])
    )
    assert weights_digest(module) == weights_digest(own)
    assert [type(layer) for layer in module] == [nn.Linear, nn.ReLU, nn.Linear]  # type: ignore[attr-defined]
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert not module.training


def test_the_identity_is_the_receipt_s_and_names_nothing_else(filled: Workspace) -> None:
    client = open_store(filled)
    identity = load_identity(client, client.get_model_version(NAME, "3"))
    receipt = ModelRecord.read(filled.model_record(DATASET, "puma"))
    assert identity.identity == receipt.identity
    assert identity.fingerprint == receipt.fingerprint
    assert identity.classes == CLASSES


def rewrite(workspace: Workspace, version: str, change: Callable[[str], str]) -> None:
    run_id = open_store(workspace).get_model_version(NAME, version).run_id
    path = workspace.root / "mlruns" / "puma" / run_id / "artifacts" / "identity.json"
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"seed": 7', '"seed": 8'), "they do not agree; restore"),
        (lambda text: text.replace('"seed": 7', '"seed": 7, "more": 1'), "was changed"),
        (lambda _: "{", "was changed"),
    ],
)
def test_a_changed_identity_is_refused(
    registered: Workspace, change: Callable[[str], str], message: str
) -> None:
    rewrite(registered, "3", change)
    client = open_store(registered)
    with pytest.raises(RegistryError, match=rf"identity\.json of {NAME}/3.*{message}"):
        load_module(client, client.get_model_version(NAME, "3"), registered)


def test_no_predictor_has_other_weights_than_were_registered(registered: Workspace) -> None:
    client = open_store(registered)
    other, archive = (exported_model(client, NAME, number) for number in ("1", "3"))
    archive.write_bytes(other.read_bytes())
    with pytest.raises(RegistryError, match=r"3 has other weights than were registered; restore"):
        load_predictor(registered, DATASET, 3)


def test_other_weights_than_were_registered_are_refused(registered: Workspace) -> None:
    shutil.rmtree(artifacts(registered, "3"))
    shutil.copytree(artifacts(registered, "2"), artifacts(registered, "3"))
    client = open_store(registered)
    with pytest.raises(RegistryError, match=rf"{NAME}/3 has other weights than were registered"):
        load_module(client, client.get_model_version(NAME, "3"), registered)


def test_a_version_made_by_hand_is_no_module(registered: Workspace) -> None:
    client = open_store(registered)
    source = client.get_model_version(NAME, "1").source
    made = client.create_model_version(NAME, source=source)
    with pytest.raises(RegistryError, match=rf"{NAME}/4 has no identity\.json"):
        load_module(client, made, registered)


def test_code_is_run_only_by_the_name_of_params_yaml(workspace: Workspace, tmp_path: Path) -> None:
    """A registry that others write to must not choose what this process imports."""
    module = tmp_path / "somebodys_models.py"
    mark = tmp_path / "mark"
    module.write_text(
        f"from pathlib import Path\nPath({str(mark)!r}).write_text('ran')\n"
        "from puma.models import mlp\n\ndef small(shape, classes):\n"
        "    return mlp(shape[0], classes, (8,))\n"
    )
    own = ModelSettings(name="somebodys_models:small")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        original = write_version(workspace, "original", weights_seed=0, architecture=own)
        for seed, method in enumerate(("retrain", "puma"), start=1):
            write_version(workspace, method, weights_seed=seed, parent=original, deletion=DELETION)
        register_all(workspace, progress=False)
        client = open_store(workspace)
        found = client.get_model_version(NAME, "1")
        mark.unlink()
        del sys.modules["somebodys_models"]
        with pytest.raises(RegistryError, match=r"code is run only by the name that params\.yaml"):
            load_module(client, found, workspace)
        assert not mark.exists()
        with (workspace.root / "params.yaml").open("a") as params:
            params.write("model: {name: 'somebodys_models:small'}\n")
        assert weights_digest(load_module(client, found, workspace)) == weights_digest(
            make_model(0)
        )
