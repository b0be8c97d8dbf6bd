from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import mlflow
import pytest
import torch

from puma.errors import RegistryError
from puma.project.workspace import Workspace
from puma.registry import (
    list_versions,
    load_predictor,
    missing,
    open_store,
    register_all,
    tracking_uri,
)
from tests.audited import copy_of
from tests.registry.projects import (
    DATASET,
    FEATURES,
    copy_store,
    execute,
    make_project,
    start_python,
)


def test_store_is_what_plain_mlflow_opens_in_the_root(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace.root / "mlflow.db").unlink()
    notebooks = workspace.root / "notebooks"
    notebooks.mkdir()
    monkeypatch.chdir(notebooks)

    client = open_store(workspace)

    assert tracking_uri(workspace) == f"sqlite:///{workspace.root}/mlflow.db"
    assert mlflow.get_tracking_uri() == mlflow.get_registry_uri() == tracking_uri(workspace)
    places = {item.name: item.artifact_location for item in client.search_experiments()}
    assert places["puma"] == (workspace.root / "mlruns" / "puma").as_uri()
    assert places["Default"] == f"{workspace.root}/mlruns/0"
    assert list(notebooks.iterdir()) == []
    assert [path.name for path in (workspace.root / ".puma").iterdir()] == ["mlflow.lock"]


@pytest.mark.slow
def test_second_project_of_a_process_has_its_own_store(
    workspace: Workspace, template: Workspace, tmp_path: Path
) -> None:
    other = make_project(tmp_path / "other")
    copy_store(template, other)
    register_all(other, progress=False)

    assert list_versions(open_store(workspace), DATASET) == []
    assert "MLFLOW_TRACKING_URI" not in os.environ
    assert len(list_versions(open_store(other), DATASET)) == 3


def test_environment_overrides_the_store(
    workspace: Workspace, template: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(template.root / "mlflow.db", tmp_path / "elsewhere.db")
    (workspace.root / "mlflow.db").unlink()
    uri = f"sqlite:///{tmp_path}/elsewhere.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)

    client = open_store(workspace)

    assert client.tracking_uri == uri
    assert os.environ["MLFLOW_TRACKING_URI"] == uri
    assert not (workspace.root / "mlflow.db").exists()


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns"])
def test_file_store_as_override_is_refused(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(RegistryError, match=r"no model registry in plain files.*unset it"):
        open_store(workspace)


def test_password_of_an_override_is_not_shown(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"nonsense://me:secret@{tmp_path.name}/x")
    with pytest.raises(RegistryError, match=r"nonsense://\*\*\*@") as caught:
        open_store(workspace)
    assert "secret" not in str(caught.value)


def test_path_that_mlflow_cannot_load_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"has # in its path.*rename the folder"):
        open_store(make_project(tmp_path / "project #1"))


def test_leftover_of_the_file_store_is_named(workspace: Workspace) -> None:
    leftover = workspace.root / "mlruns" / "0" / "meta.yaml"
    leftover.parent.mkdir(parents=True)
    leftover.write_text("name: Default\n")
    with pytest.raises(RegistryError, match=r"mlruns/0/meta\.yaml: left by.*Move the folder"):
        open_store(workspace)
    shutil.rmtree(leftover.parent)
    assert open_store(workspace).get_experiment_by_name("puma") is not None


def test_interrupted_migration_is_named(workspace: Workspace) -> None:
    execute(workspace, "UPDATE alembic_version SET version_num = '76601a5f987d'")
    execute(workspace, "DROP TABLE logged_model_tags")
    with pytest.raises(RegistryError, match=r"db upgrade.*was interrupted: delete mlflow\.db"):
        open_store(workspace)


def test_database_of_an_older_mlflow_is_named(workspace: Workspace) -> None:
    execute(workspace, "UPDATE alembic_version SET version_num = '76601a5f987d'")
    with pytest.raises(RegistryError, match=r"76601a5f987d.*run `mlflow db upgrade"):
        open_store(workspace)


def test_database_of_a_newer_mlflow_is_left_alone(workspace: Workspace) -> None:
    execute(workspace, "UPDATE alembic_version SET version_num = 'ffffffffffff'")
    execute(workspace, "DROP TABLE logged_model_tags")
    before = (workspace.root / "mlflow.db").read_bytes()
    with pytest.raises(RegistryError, match=r"newer MLflow than the installed 3\."):
        open_store(workspace)
    assert (workspace.root / "mlflow.db").read_bytes() == before


def test_file_that_is_no_database_is_named(workspace: Workspace) -> None:
    (workspace.root / "mlflow.db").write_bytes(b"no database " * 100)
    with pytest.raises(RegistryError, match="not a usable database"):
        open_store(workspace)


def test_the_experiment_is_one_of_models(workspace: Workspace) -> None:
    """Of an earlier PUMA, too, unless somebody chose another kind."""
    client = open_store(workspace)

    def kind() -> str | None:
        return client.get_experiment_by_name("puma").tags.get("mlflow.experimentKind")

    assert kind() == "custom_model_development"
    number = client.get_experiment_by_name("puma").experiment_id
    client.delete_experiment_tag(number, "mlflow.experimentKind")
    open_store(workspace, create=False)
    assert kind() is None
    open_store(workspace)
    assert kind() == "custom_model_development"
    client.set_experiment_tag(number, "mlflow.experimentKind", "finetuning")
    open_store(workspace)
    assert kind() == "finetuning"


def test_deleted_experiment_is_named(workspace: Workspace) -> None:
    client = open_store(workspace)
    client.delete_experiment(client.get_experiment_by_name("puma").experiment_id)
    with pytest.raises(RegistryError, match=r"was deleted.*mlflow experiments restore"):
        open_store(workspace)


@pytest.mark.slow
def test_moved_project_is_named_and_a_deleted_store_is_rebuilt(registered: Workspace) -> None:
    before = list_versions(open_store(registered), DATASET)
    record = registered.registered.read_bytes()
    moved = Workspace(registered.root.rename(registered.root.with_name("moved")))

    with pytest.raises(RegistryError, match=r"was moved or copied.*delete mlflow\.db and mlruns"):
        register_all(moved, progress=False)

    (moved.root / "mlflow.db").unlink()
    assert missing(moved) == (
        f"{moved.root}/mlflow.db: there is no registry yet; run `dvc repro`, which makes it"
    )
    register_all(moved, progress=False)
    after = list_versions(open_store(moved), DATASET)
    assert [row.fingerprint for row in after] == [row.fingerprint for row in before]
    assert {row.run_id for row in after}.isdisjoint(row.run_id for row in before)
    assert moved.registered.read_bytes() == record
    assert load_predictor(moved, DATASET, "challenger")(torch.zeros(1, FEATURES)).shape == (1, 2)


@pytest.mark.slow
def test_two_processes_at_once_share_one_store(tmp_path: Path) -> None:
    workspace = make_project(tmp_path / "fresh")
    code = (
        "from puma.registry import open_store\nfrom puma.project.workspace import Workspace\n"
        "print(open_store(Workspace.find()).get_experiment_by_name('puma').experiment_id)"
    )
    processes = [start_python(code, workspace.root) for _ in range(2)]
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    assert answers == [("1\n", ""), ("1\n", "")]  # and not a word of MLflow's migrations


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("store", ["sqlite:///", "sqlite:////proc/x.db"])
def test_where_no_database_can_be_is_refused_at_once(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, store: str, create: bool
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    start = time.monotonic()
    with pytest.raises(RegistryError, match=r"unable to open database file|there is no registry"):
        open_store(workspace, create=create)
    assert time.monotonic() - start < 10  # MLflow would try again for two minutes


def test_a_relative_override_is_the_same_store_from_everywhere(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(workspace) == f"sqlite:///{workspace.root}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////elsewhere/m.db")
    assert tracking_uri(workspace) == "sqlite:////elsewhere/m.db"


def test_reading_writes_nothing(filled: Workspace, tmp_path: Path) -> None:
    """Somebody who may only read the folder can list and verify."""
    own = copy_of(filled, tmp_path / "own")
    shutil.rmtree(own.root / ".puma", ignore_errors=True)
    before = {path: path.stat().st_mtime_ns for path in own.root.rglob("*")}
    assert len(list_versions(open_store(own, create=False), DATASET)) == 3
    assert {path: path.stat().st_mtime_ns for path in own.root.rglob("*")} == before
