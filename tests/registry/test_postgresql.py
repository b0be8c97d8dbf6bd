"""A registry that a team shares: on PostgreSQL, and behind MLflow's server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from puma.errors import RegistryError
from puma.registry import list_versions, load_predictor, missing, open_store, register_all
from puma.registry.promotion import promote
from puma.registry.verification import verify_version
from puma.workspace import Workspace
from tests.registry.projects import CLASSES, DATASET, FEATURES, make_model, make_project
from tests.registry.racing import PEOPLE, ROUNDS, connect_at_once, race
from tests.registry.servers import PASSWORD, Cluster, cluster, free_port, tracking_server
from tests.registry.served import make_servable

__all__ = ["cluster"]


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
