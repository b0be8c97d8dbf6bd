"""A registry that a team shares: on PostgreSQL, and behind MLflow's server."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from puma.errors import RegistryError
from puma.project.workspace import Workspace
from puma.registry import list_versions, load_predictor, missing, open_store, register_all
from puma.registry.certificate.verify import verify_version
from puma.registry.promotion import promote
from tests.registry.forked import start
from tests.registry.killing import migrate_until
from tests.registry.projects import DATASET, FEATURES, make_model, make_project
from tests.registry.racing import PEOPLE, ROUNDS, connect_at_once, race
from tests.registry.served import make_servable
from tests.registry.servers import PASSWORD, Cluster, cluster, free_port, tracking_server

__all__ = ["cluster"]
pytestmark = pytest.mark.slow  # starts PostgreSQL and servers


@pytest.fixture(scope="module", params=["PostgreSQL", "a server on PostgreSQL"])
def team(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """The addresses of a store and of its database."""
    address = cluster.create()
    if request.param == "PostgreSQL":
        yield address, address
        return
    named = address.replace("postgresql:", "postgresql+psycopg2:")  # MLflow names no driver
    with tracking_server(named, tmp_path_factory.mktemp("server") / "server") as (url, _):
        yield url, address


@pytest.fixture
def store(team: tuple[str, str], cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty store, which is the one in use."""
    url, database = team
    cluster.empty(database)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    return url


def test_from_registering_to_serving(store: str, tmp_path: Path) -> None:
    workspace = make_project(tmp_path / "project")
    make_servable(workspace)

    assert missing(workspace) is None
    assert not [one for one in register_all(workspace, progress=False) if one.created]
    rows = list_versions(open_store(workspace), DATASET)
    assert [row.method for row in rows] == ["original", "retrain", "puma"]
    for row in rows:
        assert verify_version(workspace, DATASET, row.version).conclusion == "holds"
    assert promote(workspace, DATASET, "challenger").moved
    features = torch.linspace(-1, 1, 3 * FEATURES).reshape(3, FEATURES)
    served = load_predictor(workspace, DATASET, "champion")(features)
    assert torch.equal(served, make_model(seed=2).eval()(features))  # as make_project has it
    assert not (workspace.root / "mlflow.db").exists()
    if store.startswith("http"):
        assert not (workspace.root / "mlruns").exists()


def test_the_same_removal_by_two_people_is_one_version(store: str, tmp_path: Path) -> None:
    clones = race(tmp_path, store, same=True)
    rows = _checked(clones)
    assert len(rows) == 1 + 2 * ROUNDS  # the original, and a round's two removals


def test_of_different_removals_none_is_lost(store: str, tmp_path: Path) -> None:
    clones = race(tmp_path, store, same=False)
    rows = _checked(clones)
    assert len(rows) == 1 + 2 * ROUNDS * PEOPLE


def _checked(clones: tuple[Workspace, ...]) -> list:
    client = open_store(clones[0])
    rows = list_versions(client, DATASET)
    assert len({row.version for row in rows}) == len({row.fingerprint for row in rows}) == len(rows)
    assert {row.parent_version for row in rows} == {None, rows[0].version}
    assert [row.version for row in rows if "champion" in row.aliases] == [rows[0].version]
    assert [row.version for row in rows if "challenger" in row.aliases] == [rows[-1].version]
    return rows


def test_first_connections_at_once_to_an_empty_database(cluster: Cluster, tmp_path: Path) -> None:
    for number in range(2):
        address = cluster.create(migrated=False)
        assert connect_at_once(tmp_path / str(number), address) == ["1\n"] * PEOPLE


@pytest.mark.parametrize("wrong", ["password", "database", "port"])
def test_a_database_that_cannot_be_opened_is_named_without_the_password(
    cluster: Cluster, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    closed = Cluster(free_port())
    addresses = {
        "password": (cluster.address("migrated", f"{PASSWORD}/x"), "authentication failed"),
        "database": (cluster.address("nowhere"), 'database "nowhere" does not exist'),
        "port": (closed.address("migrated"), "Connection refused"),
    }
    address, why = addresses[wrong]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    started = time.monotonic()
    with pytest.raises(RegistryError, match=f"{why}.*check the address in MLFLOW_TRACK") as caught:
        open_store(workspace)
    assert time.monotonic() - started < 5
    assert "//***@127.0.0.1" in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_a_driver_that_is_not_installed_is_named(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+pg8000://puma:secret@127.0.0.1/puma")
    with pytest.raises(RegistryError, match=r"pg8000.*pip install 'puma-unlearning\[postgresql\]'"):
        open_store(workspace)


def test_another_mlflow_s_database_is_named(
    cluster: Cluster, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = cluster.create()
    name = address.rpartition("/")[2]
    cluster.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'", name)
    before = cluster.execute("SELECT count(*) FROM information_schema.tables", name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    with pytest.raises(RegistryError, match=r"ffffffffffff.*mlflow db upgrade.*install that") as e:
        open_store(workspace)
    assert PASSWORD not in str(e.value)
    assert cluster.execute("SELECT count(*) FROM information_schema.tables", name) == before


def test_a_first_connection_that_was_cut_short_is_made_good(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow makes the first tables in one transaction, and migrates them in a second one."""
    complete = cluster.create(migrated=True)
    address = cluster.create(migrated=False)
    workspace = make_project(tmp_path / "project")
    log = tmp_path / "log"
    killed = start(migrate_until, workspace, 20, log=log, MLFLOW_TRACKING_URI=address)
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL, log.read_text()
    name = address.rpartition("/")[2]
    tables = "SELECT table_name FROM information_schema.tables ORDER BY table_name"
    half = cluster.execute(tables, name)
    assert ("experiments",) in half
    assert ("logged_models",) not in half

    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    open_store(workspace)
    assert cluster.execute(tables, name) == cluster.execute(tables, complete.rpartition("/")[2])


def test_the_files_of_a_database_s_models_must_be_here(
    cluster: Cluster, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", cluster.create())
    elsewhere = make_project(tmp_path / "elsewhere")
    open_store(elsewhere)
    open_store(workspace)
    shutil.rmtree(elsewhere.root)  # as on another machine
    with pytest.raises(RegistryError, match=r"elsewhere/mlruns/puma.*is not here.*mlflow server"):
        open_store(workspace)
