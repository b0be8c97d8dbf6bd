"""``puma source``: the file by which DVC sees a change of one's own data."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path

import pytest
from dvc.utils.serialize import dumps_yaml
from typer.testing import CliRunner

from puma.cli import app
from puma.data import DATASETS
from puma.project.own_data import source_digest
from puma.project.stage_code import stage_code
from puma.project.workspace import Workspace
from puma.settings import BUILT_IN_DATASETS

ROOT = Path(__file__).parents[2]
TABLE = {"path": "data/churn.csv", "target": "churned", "subject": "who"}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    settings = {"datasets": ["german_credit", "churn"], "sources": {"churn": TABLE}}
    (tmp_path / "params.yaml").write_text(dumps_yaml(settings))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "churn.csv").write_text("who,churned,x\n0815,yes,1\n")
    (tmp_path / "notebooks").symlink_to(ROOT / "notebooks")
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path)


def noted(workspace: Workspace, dataset: str) -> bytes:
    result = CliRunner().invoke(app, ["source", dataset])
    assert result.exit_code == 0, result.output
    assert f"artifacts/{dataset}/source.json" in result.stdout
    assert "0815" not in result.output
    return workspace.source_record(dataset).read_bytes()


def test_a_change_of_the_file_or_of_its_settings_is_a_change_of_its_note_alone(
    workspace: Workspace,
) -> None:
    first, built_in = noted(workspace, "churn"), noted(workspace, "german_credit")
    assert noted(workspace, "churn") == first
    content = json.loads(first)
    own = workspace.settings.sources["churn"]
    assert content["sha256"] == source_digest(own, workspace.root)
    assert content["source"]["target"] == "churned"
    path = workspace.root / "data" / "churn.csv"
    path.write_text(path.read_text() + "0816,no,2\n")
    second = noted(workspace, "churn")
    changed = workspace.root / "params.yaml"
    changed.write_text(changed.read_text().replace("target: churned", "target: x"))
    assert len({first, second, noted(workspace, "churn")}) == 3
    assert noted(workspace, "german_credit") == built_in
    assert json.loads(built_in) == {"sha256": None, "source": None}
    assert hashlib.md5(path.read_bytes()).hexdigest().encode() not in second


def test_the_code_of_every_stage_is_noted(workspace: Workspace) -> None:
    noted(workspace, "churn")
    folder = workspace.code_record("churn", "train").parent
    written = {path.stem: json.loads(path.read_bytes()) for path in folder.iterdir()}
    assert written == stage_code(workspace)


def test_a_dataset_s_settings_and_code_are_noted_for_it_alone(workspace: Workspace) -> None:
    def notes(dataset: str) -> dict[str, object]:
        noted(workspace, dataset)
        groups = ("model", "training", "retrain", "puma")
        return {
            group: json.loads(workspace.resolved(dataset, group).read_bytes()) for group in groups
        }

    path = workspace.root / "params.yaml"
    before, other = notes("churn"), notes("german_credit")
    assert before["training"] == {
        "settings": workspace.settings.training.model_dump(),
        "code": {},
    }
    code = workspace.root / "own_code_of_source.py"
    code.write_text("def fit(): pass")
    own = {"training": {"loop": "own_code_of_source:fit"}, "puma": {"budget": 0.5}}
    path.write_text(path.read_text() + dumps_yaml({"per_dataset": {"churn": own}}))
    after = notes("churn")
    assert {group for group in after if after[group] != before[group]} == {"training", "puma"}
    digest = hashlib.sha256(code.read_bytes()).hexdigest()
    assert after["training"]["code"] == {"own_code_of_source:fit": digest}
    code.write_text("def fit(): return")
    assert notes("churn")["training"] != after["training"]
    assert notes("german_credit") == other
    code.unlink()
    result = CliRunner().invoke(app, ["source", "churn"])
    assert (result.exit_code, "there is no module 'own_code_of_source'" in result.stderr) == (
        2,
        True,
    )


def test_another_group_is_a_change_of_the_groups_and_of_the_method_that_keeps_them(
    workspace: Workspace,
) -> None:
    """So that the data are prepared again, which stay what they are, and nothing is trained."""

    def files() -> dict[str, bytes]:
        noted(workspace, "churn")
        notes = sorted(workspace.resolved("churn", "groups").parent.iterdir())
        written = {path.name: path.read_bytes() for path in notes}
        return written | {"source.json": workspace.source_record("churn").read_bytes()}

    path = workspace.root / "params.yaml"
    before = files()
    assert json.loads(before["groups.json"]) == {"groups": []}
    kept = [
        {"criterion": "group_loss", "where": where, "budget": 0.1, "name": name}
        for name, where in (("a", "usage > 1"), ("b", "plan == 'x'"), ("c", "usage > 1"))
    ]
    path.write_text(path.read_text() + dumps_yaml({"puma": {"preserve": kept}}))
    after = files()
    assert json.loads(after["groups.json"]) == {"groups": ["usage > 1", "plan == 'x'"]}
    assert {name for name in after if after[name] != before[name]} == {"groups.json", "puma.json"}


def test_an_absent_file_is_refused_and_nothing_is_written(workspace: Workspace) -> None:
    (workspace.root / "data" / "churn.csv").unlink()
    result = CliRunner().invoke(app, ["source", "churn"])
    assert result.exit_code == 2
    assert "data/churn.csv: no such file; correct the path in params.yaml" in result.stderr
    assert not (workspace.root / "artifacts").exists()


@pytest.mark.parametrize(
    ("changed", "dataset", "message"),
    [
        (
            {"sources": {}},
            "churn",
            "unknown dataset 'churn'; choose one of breast_cancer, diabetes, digits",
        ),
        ({"sources": {"german_credit": TABLE}}, "german_credit", "a dataset that comes with PUMA"),
    ],
)
def test_a_dataset_has_one_source(
    workspace: Workspace, changed: dict[str, object], dataset: str, message: str
) -> None:
    path = workspace.root / "params.yaml"
    path.write_text(dumps_yaml({"datasets": ["german_credit", "churn"], **changed}))
    result = CliRunner().invoke(app, ["source", dataset])
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (workspace.root / "artifacts").exists()


def test_a_changed_request_is_seen_by_who_holds_the_key(workspace: Workspace) -> None:
    noted(workspace, "churn")
    note = workspace.request_record("churn")
    assert json.loads(note.read_text()) == {"request": None}
    path = workspace.request("churn")
    path.parent.mkdir()
    path.write_text("subject_id\n0815\n")
    noted(workspace, "churn")
    first = note.read_text()
    key = bytes.fromhex(workspace.key.read_text())
    content = b"".join(
        len(part).to_bytes(8, "big") + part
        for part in (b"request file", path.read_bytes().hex().encode())
    )
    assert json.loads(first) == {"request": hmac.new(key, content, "sha256").hexdigest()}
    noted(workspace, "churn")
    assert note.read_text() == first
    path.write_text("subject_id\n0816\n")
    noted(workspace, "churn")
    second = note.read_text()
    path.unlink()
    path.symlink_to("nowhere.csv")  # the stage `request` says what is wrong with it
    noted(workspace, "churn")
    assert len({first, second, note.read_text(), '{"request": null}'}) == 4
    (path.parent / "chrun.csv").touch()
    result = CliRunner().invoke(app, ["source", "churn"])
    assert (result.exit_code, "'chrun.csv' would go unread" in result.stderr) == (2, True)


def test_the_names_that_come_with_puma_are_those_of_its_datasets() -> None:
    assert sorted(DATASETS) == sorted(BUILT_IN_DATASETS)
