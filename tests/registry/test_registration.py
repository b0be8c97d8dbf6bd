from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow
import pytest

from puma.errors import RegistryError
from puma.lineage.records import ModelRecord, read_model_records
from puma.project.workspace import Workspace
from puma.registry import (
    Registry,
    all_registered,
    find_fingerprint,
    list_versions,
    missing,
    open_store,
    register_all,
)
from puma.registry import creation as lineage
from puma.settings import ORIGINAL
from tests.registry.projects import (
    DATASET,
    METHODS,
    OTHER_DELETION,
    PICTURES,
    picture,
    start_python,
    write_audit,
    write_version,
)


def test_every_receipt_gets_one_version_in_order(workspace: Workspace) -> None:
    found = register_all(workspace, progress=False)
    assert [(item.version, item.method, item.parent_version, item.created) for item in found] == [
        (1, "original", None, True),
        (2, "retrain", 1, True),
        (3, "puma", 1, True),
    ]
    assert [item.aliases for item in found] == [("champion",), (), ("challenger",)]
    receipts = read_model_records(workspace, DATASET)
    assert [item.fingerprint for item in found] == [item.fingerprint for item in receipts]


def test_second_call_changes_nothing(
    registered: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    client = open_store(registered)
    rows = list_versions(client, DATASET)
    record = registered.registered.read_bytes()

    again = register_all(registered)

    assert [item.created for item in again] == [False, False, False]
    assert list_versions(client, DATASET) == rows
    assert registered.registered.read_bytes() == record
    assert len(client.search_runs([experiment(client)])) == 3
    assert "toy puma: version 3 in place" in capsys.readouterr().out


@pytest.mark.slow
def test_changed_deletion_adds_versions_and_moves_only_the_challenger(
    registered: Workspace,
) -> None:
    old = list_versions(open_store(registered), DATASET)
    rewrite_removals(registered)
    assert missing(registered) == "toy retrain: has no version"

    found = register_all(registered, progress=False)

    assert [item.version for item in found] == [1, 4, 5]
    rows = list_versions(open_store(registered), DATASET)
    assert [row.fingerprint for row in rows[:3]] == [row.fingerprint for row in old]
    assert [row.aliases for row in rows] == [("champion",), (), (), (), ("challenger",)]
    assert [row.parent_version for row in rows[3:]] == [1, 1]
    assert [row.deletion_digest for row in rows[3:]] == [OTHER_DELETION] * 2


def test_champion_moved_by_a_person_stays(registered: Workspace) -> None:
    client = open_store(registered)
    client.set_registered_model_alias("puma-toy", "champion", "3")
    assert not all_registered(registered)  # the record still names version 1

    found = register_all(registered, progress=False)

    assert [item.aliases for item in found] == [(), (), ("challenger", "champion")]
    assert all_registered(registered)


def test_metrics_measured_again_are_the_ones_shown(registered: Workspace) -> None:
    write_audit(registered, "puma", attack_rate=0.125)
    assert missing(registered) == "toy puma: was measured again"

    found = register_all(registered, progress=False)

    client = open_store(registered)
    row = list_versions(client, DATASET)[2]
    assert row.metrics["attack_rate"] == 0.125
    assert [item.created for item in found] == [False, False, False]
    history = [metric.value for metric in client.get_metric_history(row.run_id, "attack_rate")]
    assert history == [0.625, 0.125]
    assert "attack_rate: 0.125" in client.get_model_version("puma-toy", "3").description
    assert client.get_run(row.run_id).data.metrics["Headline/attack_rate"] == 0.125
    chart = Path(client.download_artifacts(row.run_id, "versions.svg")).read_text()
    assert "3 puma" in chart
    assert "0.125" in chart
    assert len(client.get_metric_history(row.run_id, "train_loss")) == 3
    assert all_registered(registered)


@pytest.mark.slow
def test_what_a_later_audit_cannot_tell_is_no_longer_listed(registered: Workspace) -> None:
    client = open_store(registered)
    assert "attack_rate" in list_versions(client, DATASET)[2].metrics
    write_audit(registered, "puma", unresolved=("attack_rate",))
    register_all(registered, progress=False)
    assert "attack_rate" not in list_versions(client, DATASET)[2].metrics
    assert all_registered(registered)

    write_audit(registered, "puma", attack_rate=0.125)
    register_all(registered, progress=False)
    assert list_versions(client, DATASET)[2].metrics["attack_rate"] == 0.125


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"reason": "for another reason"},
        {"verdict": "utility_lost", "reason": "it fell", "attack_rate": 0.25, "attack_auc": 0.75},
    ],
    ids=["reason", "all"],
)
def test_an_audit_that_found_something_else_is_the_one_shown(
    registered: Workspace, changed: dict[str, Any]
) -> None:
    client = open_store(registered)
    others = list_versions(client, DATASET)[:2]
    found = {"verdict": "over_forgotten", "reason": "as expected", "attack_rate": 0.625} | changed
    write_audit(registered, "puma", pictures="second", **found)
    assert missing(registered) == "toy puma: was measured again"

    again = register_all(registered, progress=False)

    assert [(item.version, item.created) for item in again] == [(1, False), (2, False), (3, False)]
    version = client.get_model_version("puma-toy", "3")
    assert version.tags["puma.verdict"] == found["verdict"]
    assert client.get_run(version.run_id).data.tags["puma.verdict_reason"] == found["reason"]
    shown = f"Audit, against retrained models: **{found['verdict']}**: {found['reason']}."
    assert shown in version.description
    assert f"- attack_rate: {found['attack_rate']}" in version.description
    assert ") of toy without 3 training rows" in version.description
    row = list_versions(client, DATASET)[2]
    assert row.verdict == found["verdict"]
    numbers = {name: value for name, value in found.items() if name.startswith("attack")}
    assert numbers.items() <= row.metrics.items()
    assert plot_data_of(client, row.run_id) == drawn("puma", "second")
    assert list_versions(client, DATASET)[:2] == others
    assert plot_data_of(client, others[0].run_id) == drawn("original", "first")
    record = json.loads(registered.registered.read_text())[DATASET][2]
    assert (record["verdict"], record["verdict_reason"]) == (found["verdict"], found["reason"])
    assert all_registered(registered)


def test_an_update_without_pictures_changes_nothing(registered: Workspace) -> None:
    client = open_store(registered)
    rows, page = list_versions(client, DATASET), client.get_model_version("puma-toy", "3")
    write_audit(registered, "puma", verdict="passed", attack_rate=0.125)
    shutil.rmtree(registered.figures(DATASET, "puma"))

    with pytest.raises(RegistryError, match=r"plots/toy/puma: has no plot of the audit of"):
        register_all(registered, progress=False)

    assert list_versions(client, DATASET) == rows
    assert client.get_model_version("puma-toy", "3").description == page.description
    assert missing(registered) == "toy puma: was measured again"


@pytest.mark.slow
def test_a_version_without_pictures_is_refused_and_leaves_no_half(workspace: Workspace) -> None:
    folder = workspace.figures(DATASET, "retrain")
    for path in folder.iterdir():
        path.rename(path.with_suffix(".svg"))

    with pytest.raises(RegistryError, match=r"plots/toy/retrain: has no plot .*`dvc repro`"):
        register_all(workspace, progress=False)

    client = open_store(workspace)
    assert [row.method for row in list_versions(client, DATASET)] == ["original"]
    runs = client.search_runs([experiment(client)], order_by=["start_time"])
    assert [run.info.status for run in runs] == ["FINISHED", "FAILED"]
    assert not workspace.registered.exists()
    for path in folder.iterdir():
        path.rename(path.with_suffix(".png"))
    found = register_all(workspace, progress=False)
    assert [(item.version, item.created) for item in found] == [(1, False), (2, True), (3, True)]


@pytest.mark.slow
def test_other_timings_alone_change_nothing(registered: Workspace) -> None:
    before = list_versions(open_store(registered), DATASET)
    for method in ("original", "retrain", "puma"):
        path = registered.model_record(DATASET, method)
        receipt = ModelRecord.read(path)
        metrics = {**receipt.metrics, "runtime_seconds": receipt.metrics["runtime_seconds"] + 1}
        receipt.model_copy(update={"metrics": metrics}).write(path)

    assert all_registered(registered)
    register_all(registered, progress=False)
    assert list_versions(open_store(registered), DATASET) == before

    write_audit(registered, "puma", attack_rate=0.125)
    register_all(registered, progress=False)
    row = list_versions(open_store(registered), DATASET)[2]
    assert row.metrics["attack_rate"] == 0.125
    assert row.metrics["runtime_seconds"] == before[2].metrics["runtime_seconds"]
    assert all_registered(registered)


@pytest.mark.slow
def test_all_registered_sees_every_gap(workspace: Workspace) -> None:
    assert missing(workspace) == "toy original: has no version"
    register_all(workspace, progress=False)
    assert all_registered(workspace)

    client = open_store(workspace)
    client.set_registered_model_alias("puma-toy", "challenger", "2")
    assert missing(workspace) == "toy: alias challenger is not in place"
    client.set_registered_model_alias("puma-toy", "challenger", "3")
    assert all_registered(workspace)

    record = workspace.registered.read_text()
    workspace.registered.write_text(record.replace("0.25", "0.75"))
    assert "is out of date" in str(missing(workspace))
    workspace.registered.unlink()
    assert "is absent" in str(missing(workspace))
    workspace.registered.write_text(record)
    assert all_registered(workspace)

    workspace.model_record(DATASET, "puma").unlink()
    assert "no such model record" in str(missing(workspace))


def test_record_holds_no_times(filled: Workspace) -> None:
    (rows,) = json.loads(filled.registered.read_text()).values()
    assert rows[2] == {
        "version": 3,
        "method": "puma",
        "fingerprint": read_model_records(filled, DATASET)[2].fingerprint,
        "aliases": ["challenger"],
        "parent_version": 1,
        "n_removed": 3,
        "deletion_digest": "e1" * 32,
        "verdict": "over_forgotten",
        "verdict_reason": "as expected",
        "metrics": {
            "accuracy": 0.7,
            "attack_rate": 0.625,
            "attack_rate_before": 0.75,
            "retrain_seconds": 1.5,
            "runtime_seconds": 0.25,
            "speedup_vs_retrain": 6.0,
        },
    }


@pytest.mark.slow
def test_two_calls_at_once_create_each_version_once(workspace: Workspace) -> None:
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(register_all, workspace, progress=False) for _ in range(2)]
        created = [sum(item.created for item in call.result()) for call in calls]
    assert sorted(created) == [0, 3]
    assert len(list_versions(open_store(workspace), DATASET)) == 3


@pytest.mark.slow
def test_failure_at_any_step_leaves_no_version_and_a_failed_run(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_store(workspace)
    steps = ["log_model", "_log_inputs", "_params", "log_metrics", "_log_curve"]
    steps += ["log_figures", "_tags"]
    for attempt, step in enumerate(steps, start=1):
        with monkeypatch.context() as patch:
            patch.setattr(lineage, step, fail)
            with pytest.raises(RegistryError, match=r"disk full.*run the same command again"):
                register_all(workspace, progress=False)
        assert list_versions(client, DATASET) == [], step
        states = [run.info.status for run in client.search_runs([experiment(client)])]
        assert states == ["FAILED"] * attempt, step
        assert not workspace.registered.exists()
        assert mlflow.active_run() is None

    assert [item.version for item in register_all(workspace, progress=False)] == [1, 2, 3]


@pytest.mark.slow
def test_killed_process_leaves_no_version(workspace: Workspace) -> None:
    # The model is left out, because importing PyTorch is most of the time this would take.
    code = (
        "import os\nfrom puma.registry import creation as lineage, register_all\n"
        "from puma.project.workspace import Workspace\n"
        "lineage.rebuild_model = lambda *_: 'none'\n"
        "lineage.log_model = lambda *_: ('none', {})\n"
        "lineage._params = lambda *_: os._exit(9)\n"
        "register_all(Workspace.find(), progress=False)"
    )
    process = start_python(code, workspace.root)
    process.communicate(timeout=120)
    assert process.returncode == 9
    client = open_store(workspace)
    assert [run.info.status for run in client.search_runs([experiment(client)])] == ["RUNNING"]
    assert list_versions(client, DATASET) == []

    found = register_all(workspace, progress=False)
    assert [(item.version, item.created) for item in found] == [(1, True), (2, True), (3, True)]


@pytest.mark.slow
def test_weights_other_than_recorded_are_refused(workspace: Workspace) -> None:
    shutil.copy(workspace.weights(DATASET, "retrain"), workspace.weights(DATASET, "puma"))
    with pytest.raises(RegistryError, match=r"puma\.pt: weights .*model record .*`dvc repro`"):
        register_all(workspace, progress=False)
    client = open_store(workspace)
    assert [row.method for row in list_versions(client, DATASET)] == ["original", "retrain"]
    assert len(client.search_runs([experiment(client)])) == 2  # nothing was logged of it


def test_parent_that_is_not_registered_is_named(workspace: Workspace) -> None:
    client = open_store(workspace)
    removal = read_model_records(workspace, DATASET)[2]
    with pytest.raises(RegistryError, match=r"its parent, fingerprint .* is not registered"):
        lineage.create_version(client, workspace, lineage.pipeline_draft(workspace, removal))
    assert find_fingerprint(client, DATASET, removal.fingerprint) is None


def test_active_run_is_not_taken_over(workspace: Workspace) -> None:
    open_store(workspace)
    with (
        mlflow.start_run(),
        pytest.raises(RegistryError, match=r"run is active.*mlflow\.end_run"),
    ):
        register_all(workspace, progress=False)


def rewrite_removals(workspace: Workspace) -> None:
    original = ModelRecord.read(workspace.model_record(DATASET, ORIGINAL))
    for seed, method in enumerate(METHODS, start=3):
        write_version(
            workspace, method, weights_seed=seed, parent=original, deletion=OTHER_DELETION
        )
    write_audit(workspace, ORIGINAL, deletion=OTHER_DELETION, attack_rate=0.75)


def plot_data_of(client: Any, run_id: str) -> dict[str, bytes]:
    """What the run's page shows beside the model, by name."""
    found = [artifact.path for artifact in client.list_artifacts(run_id, "audit")]
    return {path: Path(client.download_artifacts(run_id, path)).read_bytes() for path in found}


def drawn(method: str, shown: str) -> dict[str, bytes]:
    return {f"audit/{name}.png": picture(method, name, shown) for name in PICTURES}


def experiment(client: Any) -> str:
    return str(client.get_experiment_by_name("puma").experiment_id)


def fail(*_: object, **__: object) -> None:
    raise OSError("disk full")


def test_registry_folder_is_private(workspace: Workspace) -> None:
    open_store(workspace)
    assert (workspace.root / ".puma").stat().st_mode & 0o077 == 0


def test_a_removal_is_registered_once_and_names_its_command(registered: Workspace) -> None:
    record = write_version(
        registered,
        "puma",
        weights_seed=9,
        parent=ModelRecord.read(registered.model_record(DATASET, "original")),
        deletion=OTHER_DELETION,
    )
    registry = Registry.open(registered)
    assert registry.find_removal(DATASET, "a key") is None
    draft = lineage.pipeline_draft(registered, record)
    made, created = registry.register_removal(draft, "a key")
    assert created
    assert (made.version, made.parent_version, made.aliases) == (4, 1, ("challenger",))
    assert made.fingerprint == record.fingerprint
    tags = registry.client.get_run(made.run_id).data.tags
    assert tags["mlflow.source.name"] == "puma remove"
    assert tags["mlflow.source.type"] == "LOCAL"
    assert registry.find_removal(DATASET, "a key") == made
    assert registry.register_removal(draft, "a key") == (made, False)
