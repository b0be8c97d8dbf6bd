from __future__ import annotations

from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from puma.errors import RegistryError
from puma.lineage.records import ModelRecord
from puma.project.workspace import Workspace
from puma.registry import list_versions, load_predictor, missing, open_store, register_all
from puma.registry.certificate.verify import verify_version
from puma.registry.concurrency import (
    create_model,
    create_next,
    delete_duplicates,
    follow,
    keep_first,
)
from puma.registry.creation import create_version, pipeline_draft
from puma.registry.deletion import find_run
from puma.registry.versions import FINGERPRINT
from tests.registry.projects import DATASET

MODEL = f"puma-{DATASET}"


def copy_of(client: MlflowClient, version: str, **changed: Any) -> ModelVersion:
    """The same once more, as somebody else would register it at the same time."""
    found = client.get_model_version(MODEL, version)
    run = client.create_run(client.get_run(found.run_id).info.experiment_id)
    return client.create_model_version(
        MODEL,
        **{"source": found.source, "run_id": run.info.run_id, "tags": found.tags, **changed},
    )


def numbers(workspace: Workspace) -> list[int]:
    return [row.version for row in list_versions(open_store(workspace), DATASET)]


def test_the_later_of_two_gives_way_with_its_run_and_its_model(registered: Workspace) -> None:
    client = open_store(registered)
    first = client.get_model_version(MODEL, "3")
    receipt = ModelRecord.read(registered.model_record(DATASET, "puma"))
    found = create_version(client, registered, pipeline_draft(registered, receipt))

    assert found.version == first.version
    assert numbers(registered) == [1, 2, 3]
    ids = [client.get_experiment_by_name("puma").experiment_id]
    assert len(client.search_runs(ids, run_view_type=ViewType.ALL)) == 3
    assert len(client.search_logged_models(ids)) == 3
    assert len(list(registered.root.rglob("model.pt2"))) == 3  # nothing of it is left on the disk
    assert verify_version(registered, DATASET, 3).conclusion == "holds"
    assert missing(registered) is None


def test_the_earlier_of_two_stays_whatever_was_made_later(registered: Workspace) -> None:
    client = open_store(registered)
    first = client.get_model_version(MODEL, "3")
    copy_of(client, "3")  # its maker has not looked yet
    kept = keep_first(client, DATASET, FINGERPRINT, first.tags[FINGERPRINT], first)
    assert kept.version == first.version
    assert numbers(registered) == [1, 2, 3, 4]


def test_a_request_that_was_sent_twice_keeps_run_and_model(registered: Workspace) -> None:
    """When the answer is lost, MLflow's client sends the request again."""
    client = open_store(registered)
    first = client.get_model_version(MODEL, "3")
    again = copy_of(client, "3", run_id=first.run_id)
    kept = keep_first(client, DATASET, FINGERPRINT, first.tags[FINGERPRINT], again)
    assert kept.version == first.version
    assert numbers(registered) == [1, 2, 3]
    assert client.get_run(first.run_id).info.lifecycle_stage == "active"
    assert verify_version(registered, DATASET, 3).conclusion == "holds"
    load_predictor(registered, DATASET, 3)


def test_what_a_dead_process_left_twice_is_swept_by_the_next(registered: Workspace) -> None:
    client = open_store(registered)
    left = copy_of(client, "3")
    register_all(registered, progress=False)
    assert numbers(registered) == [1, 2, 3]
    assert find_run(client, left.run_id) is None
    assert missing(registered) is None


def test_a_twin_that_somebody_chose_stays(registered: Workspace) -> None:
    client = open_store(registered)
    served, parent = copy_of(client, "3"), copy_of(client, "1")
    client.set_registered_model_alias(MODEL, "canary", served.version)
    copy_of(client, "2", tags={"puma.parent_version": str(parent.version)})
    for version in ("1", "3"):
        value = client.get_model_version(MODEL, version).tags[FINGERPRINT]
        assert delete_duplicates(client, DATASET, FINGERPRINT, value).version == int(version)
    assert numbers(registered) == [1, 2, 3, 4, 5, 6]


def test_nothing_is_swept_where_there_is_nothing(registered: Workspace) -> None:
    assert delete_duplicates(open_store(registered), DATASET, FINGERPRINT, "0" * 64) is None


def test_both_delete_the_same(registered: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maker and whoever sweeps: the second one finds it gone, and that is all right."""
    client = open_store(registered)
    first, twin = client.get_model_version(MODEL, "3"), copy_of(client, "3")
    delete = client.delete_model_version

    def quicker(name: str, version: str) -> None:
        delete(name, version)
        delete(name, version)

    monkeypatch.setattr(client, "delete_model_version", quicker)
    keep_first(client, DATASET, FINGERPRINT, first.tags[FINGERPRINT], twin)
    assert numbers(registered) == [1, 2, 3]


def test_the_model_may_be_created_by_somebody_else(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_store(workspace)
    monkeypatch.setattr(client, "search_registered_models", lambda _: [])  # both looked before
    create_model(client, DATASET, "first")
    create_model(client, DATASET, "second")
    assert client.get_registered_model(MODEL).description == "first"


def test_numbers_that_others_take_are_asked_for_again(
    registered: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_store(registered)
    source = client.get_model_version(MODEL, "3").source
    create, lost = client.create_model_version, []

    def busy(*arguments: Any, **named: Any) -> ModelVersion:
        if len(lost) < most:
            lost.append(1)
            raise MlflowException("Model Version creation error. Giving up after 3 attempts.")
        return create(*arguments, **named)

    monkeypatch.setattr(client, "create_model_version", busy)
    most = 4
    assert create_next(client, DATASET, source=source).version == 4
    most = 1000
    with pytest.raises(RegistryError, match=r"others wrote.*10 times.*run the same command"):
        create_next(client, DATASET, source=source)
    monkeypatch.undo()
    with pytest.raises(MlflowException, match="source"):
        create_next(client, DATASET, source="models:/m-nothing")
    assert numbers(registered) == [1, 2, 3, 4]


def test_an_alias_follows_what_is_made_meanwhile(registered: Workspace) -> None:
    client = open_store(registered)
    client.set_registered_model_alias(MODEL, "challenger", "2")
    seen = []

    def newest() -> int:
        found = numbers(registered)[-1]
        if not seen:  # somebody registers between the look and the alias
            seen.append(found)
            copy_of(client, "3", tags={})
        return found

    follow(client, DATASET, "challenger", newest)
    assert seen == [3]
    assert client.get_model_version_by_alias(MODEL, "challenger").version == 4
