"""Adopting a model that somebody else trained: what is taken, what it becomes, what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import mlflow.pytorch
import numpy as np
import pytest
import torch
from dvc.utils.serialize import dumps_yaml
from scipy.stats import entropy
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error, r2_score
from torch import nn

from puma.data import Dataset, load_dataset
from puma.data.task import CLASSIFICATION, Task
from puma.erasure.erase import erase
from puma.errors import AbsentError, ModelError, RegistryError, SettingsError
from puma.models import build_model, weights_digest
from puma.models.training import train
from puma.project.workspace import Workspace
from puma.registry import Registry, open_store
from puma.registry.certificate.verify import verify_version
from puma.requests.archive import find_data
from puma.settings import ModelSettings
from puma.workflows.adopt import Adoption, adopt, fit_of
from tests.audited import DATASET as COINS
from tests.audited import copy_of
from tests.audited_fixtures import project
from tests.command import puma
from tests.registry.fixtures import _default_store, template
from tests.registry.projects import copy_store
from tests.registry.test_loading import Bomb
from tests.workflows.test_remove import respond

__all__ = ["_default_store", "project", "template"]

MOONS, THEIRS = "two_moons", "their-model"
NET = {"name": "mlp", "hidden": [16]}
SETTINGS = {
    "datasets": [MOONS],
    "model": NET,
    "training": {"epochs": 30, "learning_rate": 0.01},
}


@pytest.fixture
def workspace(template: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project with its data, and an empty store."""
    (tmp_path / "params.yaml").write_text(dumps_yaml(SETTINGS))
    made = Workspace(tmp_path)
    load_dataset(MOONS, seed=0).save(made.data(MOONS))
    copy_store(template, made)
    monkeypatch.chdir(tmp_path)
    return made


def amend(workspace: Workspace, **changes: Any) -> None:
    (workspace.root / "params.yaml").write_text(dumps_yaml(SETTINGS | changes))


def trained(workspace: Workspace, dataset: str = MOONS, seed: int = 3) -> nn.Module:
    """A model of the project's network, trained elsewhere."""
    data = Dataset.load(workspace.data(dataset))
    settings = workspace.settings
    model = build_model(settings.model, data, seed=seed)
    train(model, data.train, settings.training, seed=seed, progress=False)
    return model


def registered(workspace: Workspace, log: Callable[[], Any]) -> Any:
    """A version of their model, in the project's store."""
    client = open_store(workspace)
    if not client.search_registered_models(f"name='{THEIRS}'"):
        client.create_registered_model(THEIRS)
    with mlflow.start_run(experiment_id=_experiment(client)) as run:
        info = log()
    if info is None:
        return client.create_model_version(
            THEIRS, source=f"{run.info.artifact_uri}/model", run_id=run.info.run_id
        )
    return client.create_model_version(
        THEIRS, source=info.model_uri, run_id=run.info.run_id, model_id=info.model_id
    )


def _experiment(client: mlflow.MlflowClient) -> str:
    found = client.get_experiment_by_name("theirs")
    return found.experiment_id if found else client.create_experiment("theirs")


def graph(model: nn.Module, **options: Any) -> Callable[[], Any]:
    return lambda: mlflow.pytorch.log_model(
        model.eval(),
        name="model",
        serialization_format="pt2",
        input_example=np.zeros((2, 2), dtype=np.float32),
        pip_requirements=["torch"],
        **options,
    )


def state(content: Any) -> Callable[[], Any]:
    return lambda: mlflow.pytorch.log_state_dict(content, "model")


def pickled(model: nn.Module) -> Callable[[], Any]:
    return lambda: mlflow.pytorch.log_model(
        model, name="model", serialization_format="pickle", pip_requirements=["torch"]
    )


def take(workspace: Workspace, version: str = "1", **options: Any) -> Adoption:
    return adopt(workspace, MOONS, THEIRS, version, **options)


def refused(workspace: Workspace, kind: type[Exception], text: str, **options: Any) -> None:
    with pytest.raises(kind, match=text):
        take(workspace, **options)
    assert Registry.open(workspace).versions(MOONS) == []


# --- what it becomes ---


@pytest.mark.slow
def test_a_graph_becomes_version_1_with_its_lineage(workspace: Workspace) -> None:
    model = trained(workspace)
    theirs = registered(workspace, graph(model))
    done = take(workspace)
    version = done.version
    assert (done.created, version.version, version.method) == (True, 1, "original")
    assert version.aliases == ("champion",)
    assert version.weights_digest == weights_digest(model)
    assert version.tags["puma.adopted_from"] == f"models:/{THEIRS}/1"
    assert version.tags["puma.adopted_run"] == theirs.run_id

    data = find_data(workspace, MOONS, version.data_digest)
    with torch.no_grad():
        found = model(data.test.features).argmax(1)
    assert done.test.value == accuracy_score(data.test.labels, found)
    assert version.metrics["accuracy"] == pytest.approx(done.test.value)
    assert done.notes == ()

    run = mlflow.MlflowClient().get_run(version.run_id)
    assert run.data.params["adopted_from"] == f"models:/{THEIRS}/1"
    assert run.data.params["epochs"] == "30"
    assert [each.model_id for each in run.inputs.model_inputs] == [theirs.source.split("/")[-1]]
    assert run.data.tags["mlflow.source.name"] == "puma adopt"
    page = mlflow.MlflowClient().get_model_version(version.name, "1").description
    assert f"Adopted from `models:/{THEIRS}/1`" in page
    registry = Registry.open(workspace)
    assert weights_digest(registry.load_module(version)) == weights_digest(model)
    assert not verify_version(workspace, MOONS, 1).failed

    again = take(workspace)
    assert (again.created, again.version.version) == (False, 1)
    assert len(registry.versions(MOONS)) == 1


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"model": s, "epoch": 3, "loss": 0.1}])
def test_weights_alone_are_taken_with_the_class_of_params_yaml(
    workspace: Workspace, wrap: Callable[[Any], Any]
) -> None:
    model = trained(workspace)
    theirs = registered(workspace, state(wrap(model.state_dict())))
    mlflow.MlflowClient().set_registered_model_alias(THEIRS, "best", "1")
    done = take(workspace, "best")
    assert done.version.weights_digest == weights_digest(model)
    assert done.origin == f"models:/{THEIRS}/1"
    assert done.version.tags["puma.adopted_run"] == theirs.run_id


@pytest.mark.slow
def test_the_command_prints_numbers_and_what_comes_next(workspace: Workspace) -> None:
    registered(workspace, graph(trained(workspace)))
    first = puma(workspace.root, "adopt", f"models:/{THEIRS}/1", "--dataset", MOONS)
    assert first.exit_code == 0, first.output
    assert f"puma-{MOONS} version 1, adopted from models:/{THEIRS}/1: registered" in first.stdout
    assert "train as params.yaml says (PUMA's own loop, 30 epochs)" in first.stdout
    assert f"dvc repro shadow@{MOONS} reference@{MOONS}-original" in first.stdout
    second = puma(workspace.root, "adopt", f"models:/{THEIRS}/1", "--dataset", MOONS, "--json")
    shown = json.loads(second.stdout)
    assert (shown["created"], shown["version"]["version"]) == (False, 1)
    assert puma(workspace.root, "adopt", THEIRS, "--dataset", MOONS).exit_code == 2


@pytest.mark.slow
def test_a_champion_keeps_serving(workspace: Workspace) -> None:
    for seed in (3, 4):
        registered(workspace, graph(trained(workspace, seed=seed)))
    assert [take(workspace, each).version.aliases for each in "12"] == [("champion",), ()]


@pytest.mark.slow
def test_removals_and_audits_work_on_it(project: Workspace, tmp_path: Path) -> None:
    own = copy_of(project, tmp_path / "own")
    data = Dataset.load(own.data(COINS))
    model = trained(own, COINS, seed=11)
    client = open_store(own)
    client.create_registered_model(THEIRS)
    with mlflow.start_run(experiment_id=_experiment(client)):
        mlflow.pytorch.log_state_dict(model.state_dict(), "model")
        source = f"{mlflow.get_artifact_uri()}/model"
    client.create_model_version(THEIRS, source=source)
    version = adopt(own, COINS, THEIRS, "1").version
    assert version.version == 5
    audited = puma(own.root, "audit", COINS, "5")
    assert audited.exit_code in (0, 1), audited.output
    removal = respond(own, 5, range(20, 26))
    assert (removal.version.parent_version, removal.version.n_removed) == (5, 6)
    retrained = respond(own, 5, range(20, 26), method="retrain")
    assert retrained.version.verdict is not None
    rows = data.train.features[20:26]
    before, after = (
        Registry.open(own).load_module(each)(rows).detach() for each in (version, removal.version)
    )
    assert not torch.allclose(before, after)
    assert not verify_version(own, COINS, removal.version.version).failed
    champion = next(each for each in Registry.open(own).versions(COINS) if each.aliases)
    assert champion.version == 1


# --- what is not read ---


@pytest.mark.slow
def test_a_pickle_is_opened_only_by_the_number_of_its_version(
    workspace: Workspace, tmp_path: Path
) -> None:
    model = trained(workspace)
    registered(workspace, pickled(model))
    registered(workspace, pickled(Bomb(tmp_path / "mark")))
    registered(workspace, state({"model": model.state_dict(), "by": Bomb(tmp_path / "mark")}))
    mlflow.MlflowClient().set_registered_model_alias(THEIRS, "best", "1")
    text = r"is a pickle \(data/model.pth\).*format='pt2'.*--allow-pickle"
    refused(workspace, RegistryError, text)
    for version, words in (("2", "is a pickle"), ("3", "more than tensors by name")):
        with pytest.raises(RegistryError, match=rf"{THEIRS}/{version}.*{words}"):
            take(workspace, version)
    with pytest.raises(SettingsError, match=r"by the number of its version alone, got 'best'"):
        take(workspace, "best", allow_pickle=True)
    assert not (tmp_path / "mark").exists()
    done = take(workspace, "1", allow_pickle=True)
    assert done.version.weights_digest == weights_digest(model)


@pytest.mark.slow
def test_code_that_lies_beside_a_graph_is_left_alone(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "colorsys.py").write_text("raise SystemExit")
    registered(workspace, graph(trained(workspace), code_paths=[str(tmp_path / "evil")]))
    before = list(sys.path)
    take(workspace)
    assert sys.path == before


# --- what is refused ---


def test_an_untrained_model_is_refused_with_the_numbers(workspace: Workspace) -> None:
    data = Dataset.load(workspace.data(MOONS))
    model = build_model(ModelSettings.model_validate(NET), data, seed=3)
    with torch.no_grad():
        model[-1].weight.zero_()
    registered(workspace, graph(model))
    share = data.train.labels.double().mean().item()
    text = (
        rf"{THEIRS}/1 makes no sense of the training rows of {MOONS}: accuracy 0\.\d+ and mean "
        rf"loss 0\.\d+ nats, where .* have {max(share, 1 - share):.3f} and 0\.69"
    )
    refused(workspace, ModelError, text)


def test_classes_in_another_order_are_named(workspace: Workspace) -> None:
    model = trained(workspace)
    with torch.no_grad():
        for parameter in (model[-1].weight, model[-1].bias):
            parameter.copy_(parameter.flip(0))
    registered(workspace, state(model.state_dict()))
    first, second = Dataset.load(workspace.data(MOONS)).classes
    text = rf"if they stood for {second}, {first}, in this order: here they stand for {first}, "
    refused(workspace, ModelError, text)


@pytest.mark.slow
def test_weights_of_another_network_are_refused_by_name(workspace: Workspace) -> None:
    registered(workspace, graph(trained(workspace)))
    amend(workspace, model={"name": "mlp", "hidden": [8]})
    refused(workspace, ModelError, r"does not fit 'mlp'.*\(16, 2\).*, not \(8, 2\)")
    amend(workspace, model={"name": "linear"})
    refused(workspace, ModelError, r"the network has no .*; name the class.*Rows of .*\(2,\)")


def test_probabilities_are_refused(workspace: Workspace) -> None:
    code = "from torch import nn\ndef Net(shape, classes):\n"
    code += "    return nn.Sequential(nn.Linear(*shape, classes), nn.Softmax(1))\n"
    (workspace.root / "adopted_net.py").write_text(code)
    amend(workspace, model={"name": "adopted_net:Net"})
    registered(workspace, state(nn.Sequential(nn.Linear(2, 2)).state_dict()))
    refused(
        workspace, ModelError, r"'adopted_net:Net' returned probabilities, which sum to 1 .*logits"
    )


@pytest.mark.slow
def test_a_class_that_computes_something_else_is_refused(workspace: Workspace) -> None:
    code = "from torch import nn\ndef Net(shape, classes):\n"
    code += "    return nn.Sequential(nn.Linear(*shape, 16), nn.Tanh(), nn.Linear(16, classes))\n"
    (workspace.root / "adopted_tanh.py").write_text(code)
    model = trained(workspace)
    amend(workspace, model={"name": "adopted_tanh:Net"})
    names = dict(zip(("0", "2"), (model[-3], model[-1]), strict=True))
    other = nn.Sequential(names["0"], nn.ReLU(), names["2"])
    registered(workspace, graph(other))
    text = r"'adopted_tanh:Net' with the weights of .* does not give what was registered: up to \d"
    refused(workspace, ModelError, text)


@pytest.mark.slow
def test_what_cannot_be_trained_here_is_refused(workspace: Workspace) -> None:
    registered(workspace, graph(trained(workspace)))
    (workspace.root / "adopted_loop.py").write_text(
        "def fit(model, features, labels, settings, seed): pass\n"
    )
    amend(workspace, training={"epochs": 3, "loop": "adopted_loop:fit"})
    text = r"cannot be trained as params.yaml says.*left the weights as they were"
    refused(workspace, ModelError, text)


def test_absent_data_models_and_files_are_named(workspace: Workspace) -> None:
    client = open_store(workspace)
    refused(workspace, RegistryError, r"no version or alias '1' of 'their-model'.*\(none\)")
    empty = workspace.root / "empty"
    empty.mkdir()
    (empty / "notes.txt").write_text("no weights")
    client.create_registered_model(THEIRS)
    client.create_model_version(THEIRS, source=empty.as_uri())
    refused(workspace, RegistryError, r"holds notes.txt, and no file of weights")
    workspace.data(MOONS).unlink()
    refused(workspace, AbsentError, rf"run `dvc repro prepare@{MOONS}`")


@pytest.mark.slow
def test_what_was_erased_is_not_adopted_again(workspace: Workspace) -> None:
    first, second = (trained(workspace, seed=seed).state_dict() for seed in (3, 4))
    registered(workspace, state(first))
    theirs = registered(workspace, state(second))
    for version in "12":
        take(workspace, version)
    # Their copy has the same weights: it is named, and the erasure is not done while it is there.
    file = Path(theirs.source) / "state_dict.pth"
    dry = erase(workspace, MOONS, 2, progress=False).out_of_reach
    assert any(line.startswith(f"models:/{THEIRS}/2, which it was adopted from") for line in dry)
    left = erase(workspace, MOONS, 2, act=True, progress=False).left
    assert any("theirs" in line or theirs.run_id in line for line in left)
    file.unlink()
    assert not erase(workspace, MOONS, 2, act=True, progress=False).left
    registered(workspace, state(second))
    with pytest.raises(RegistryError, match="version 2, which was erased on"):
        take(workspace, "3")
    assert [each.version for each in Registry.open(workspace).versions(MOONS)] == [1]


# --- the measure ---


def test_the_fit_is_scikit_learn_s() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (50,), generator=generator)
    fit, shares = fit_of(logits, labels, CLASSIFICATION), labels.bincount() / 50
    assert fit.loss == pytest.approx(log_loss(labels, logits.softmax(1)))
    assert fit.value == accuracy_score(labels, logits.argmax(1))
    assert fit.constant_loss == pytest.approx(entropy(shares))
    weights = 1 / labels.bincount()[labels]
    expected = log_loss(labels, logits.softmax(1), sample_weight=weights)
    assert fit.balanced_loss == pytest.approx(expected)
    assert fit.balanced_constant_loss == pytest.approx(np.log(3))


def test_a_rare_class_with_equal_weight_makes_sense_where_the_plain_loss_does_not() -> None:
    labels = torch.tensor([0] * 98 + [1] * 2)
    surer = torch.where(labels == 1, 0.7, -0.7)  # as if the classes were equally frequent
    fit = fit_of(torch.stack([-surer / 2, surer / 2], 1), labels, CLASSIFICATION)
    assert fit.loss > fit.constant_loss
    assert fit.makes_sense
    assert not fit_of(torch.zeros(100, 2), labels, CLASSIFICATION).makes_sense


def test_the_fit_of_numbers_and_of_one_logit() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(50, generator=generator, dtype=torch.float64)
    outputs = truth[:, None] + 0.3 * torch.randn(50, 1, generator=generator, dtype=torch.float64)
    fit = fit_of(outputs, truth, Task("regression"))
    assert (fit.metric, fit.value) == ("r2", pytest.approx(r2_score(truth, outputs)))
    assert fit.loss == pytest.approx(mean_squared_error(truth, outputs) / 2)
    assert fit.constant_loss == pytest.approx(np.var(truth.numpy()) / 2)
    assert fit.makes_sense
    assert not fit_of(outputs.flip(0), truth, Task("regression")).makes_sense
    labels = (truth > 0).long()
    fit = fit_of(outputs, labels, Task("binary"))
    assert fit.loss == pytest.approx(log_loss(labels, outputs.sigmoid()[:, 0]))
    assert fit.value == accuracy_score(labels, outputs[:, 0] > 0)


def test_a_regression_in_the_target_s_own_unit_is_told_so(workspace: Workspace) -> None:
    amend(workspace, datasets=["diabetes"], training={"epochs": 5, "learning_rate": 0.01})
    load_dataset("diabetes", seed=0).save(workspace.data("diabetes"))
    model, data = trained(workspace, "diabetes"), Dataset.load(workspace.data("diabetes"))
    registered(workspace, state(model.state_dict()))
    done = adopt(workspace, "diabetes", THEIRS, "1")
    with torch.no_grad():
        expected = r2_score(data.test.labels, model(data.test.features))
        model[-1].weight.mul_(data.task.scale)
        model[-1].bias.mul_(data.task.scale).add_(data.task.centre)
    assert done.test.value == pytest.approx(expected)
    registered(workspace, state(model.state_dict()))
    text = rf"r2 -.*let the class return \(y - {data.task.centre:.6g}\) / {data.task.scale:.6g}"
    with pytest.raises(ModelError, match=text):
        adopt(workspace, "diabetes", THEIRS, "2")
