from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from puma.errors import SettingsError
from puma.project.files import write_text
from puma.project.workspace import Workspace


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = (tmp_path / "project").resolve()
    (root / "notebooks" / "deep").mkdir(parents=True)
    (root / "params.yaml").write_text("seed: 5\n")
    return root


@pytest.mark.parametrize("start", [".", "notebooks", "notebooks/deep", "notebooks/../notebooks"])
def test_the_root_is_found_from_every_folder_below_it(project: Path, start: str) -> None:
    assert Workspace.find(project / start).root == project


def test_the_default_start_is_the_working_directory(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project / "notebooks")
    found = Workspace.find()
    monkeypatch.chdir("/")
    assert found.root == project
    assert found.settings.seed == 5


def test_a_relative_start_gives_an_absolute_root(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    assert Workspace.find(Path("notebooks")).root == project


def test_the_nearest_project_wins(project: Path) -> None:
    inner = project / "notebooks"
    (inner / "params.yaml").write_text("seed: 6\n")
    assert Workspace.find(inner / "deep").settings.seed == 6


def test_a_folder_named_params_yaml_is_no_project(project: Path) -> None:
    (project / "notebooks" / "params.yaml").mkdir()
    assert Workspace.find(project / "notebooks" / "deep").root == project


def test_a_folder_outside_any_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"no params.yaml in {re.escape(str(tmp_path))} or"):
        Workspace.find(tmp_path)


def test_every_path_lies_where_the_pipeline_declares_it(project: Path) -> None:
    workspace = Workspace(project)
    paths = {
        workspace.key: ".puma/deletion.key",
        workspace.request("wine"): "deletions/wine.csv",
        workspace.artifacts("wine"): "artifacts/wine",
        workspace.source_record("wine"): "artifacts/wine/source.json",
        workspace.data("wine"): "artifacts/wine/dataset.npz",
        workspace.deletion_set("wine"): "artifacts/wine/deletion_set.csv",
        workspace.weights("wine", "puma"): "artifacts/wine/puma.pt",
        workspace.weights("wine", "original"): "artifacts/wine/originals/original/weights.pt",
        workspace.weights("wine", "sisa"): "artifacts/wine/sisa.pt",
        workspace.weights("wine", "sisa_original"): (
            "artifacts/wine/originals/sisa_original/weights.pt"
        ),
        workspace.records("wine", "sisa_original"): (
            "artifacts/wine/originals/sisa_original/records"
        ),
        workspace.identity("wine", "original"): "artifacts/wine/originals/original/fingerprint",
        workspace.attack("wine"): "artifacts/wine/attack.pt",
        workspace.shadows("wine"): "artifacts/wine/shadows.npz",
        workspace.reference("wine", "sisa_original", "without"): (
            "artifacts/wine/references/sisa_original/without.npz"
        ),
        workspace.model_record("wine", "puma"): "lineage/wine/puma.json",
        workspace.audit("wine", "puma"): "lineage/wine/puma.audit.json",
        workspace.metrics("wine", "puma"): "metrics/wine/puma.json",
        workspace.plots("wine", "loss"): "plots/wine/loss.csv",
        workspace.figures("wine", "puma"): "plots/wine/puma",
        workspace.registered: "artifacts/registered.json",
    }
    for path, expected in paths.items():
        assert path == project / expected


@pytest.mark.parametrize(
    ("stated", "expected"),
    [("", None), ("folder: sets/raw", "sets/raw"), ("folder: /mnt/sets", "/mnt/sets")],
)
def test_a_data_folder_is_seen_from_the_root(
    project: Path, monkeypatch: pytest.MonkeyPatch, stated: str, expected: str | None
) -> None:
    (project / "params.yaml").write_text(f"data: {{{stated}}}")
    monkeypatch.chdir(project / "notebooks")
    found = Workspace.find().source_folder
    assert found == (None if expected is None else project / expected)


def test_a_data_folder_may_start_at_home(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (project / "params.yaml").write_text("data: {folder: ~/sets}")
    assert Workspace.find(project).source_folder == tmp_path / "sets"


def test_a_scratch_project_reads_all_and_writes_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = Workspace(project)
    made = [
        workspace.data("wine"),
        workspace.weights("wine", "original"),
        workspace.model_record("wine", "puma"),
        workspace.metrics("wine", "puma"),
        workspace.plots("wine", "loss"),
    ]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("pipeline")
        path.chmod(0o444)  # as DVC leaves what is linked to its cache
    scratch = workspace.scratch()
    assert scratch.root == project
    assert (scratch.settings, scratch.key) == (workspace.settings, workspace.key)
    for path in made:
        copy = scratch.stages / path.relative_to(project)
        assert copy.read_text() == "pipeline"
        write_text(copy, "looked")
    assert scratch.data("wine").read_text() == "looked"
    assert scratch.weights("wine", "original").read_text() == "looked"
    assert scratch.model_record("wine", "puma").read_text() == "looked"
    assert scratch.metrics("wine", "puma").read_text() == "looked"
    assert scratch.plots("wine", "loss").read_text() == "looked"
    assert {path.read_text() for path in made} == {"pipeline"}
    assert scratch.stages.is_relative_to(project / ".puma")
    assert scratch.scratch().stages != scratch.stages
    printed = capsys.readouterr().out.splitlines()
    assert re.match("Nothing is recorded: .* set record = True .*`dvc repro`", printed[0])


@pytest.mark.parametrize("given", [{"budget": 0.02}, "{budget: 0.02}", '{"budget": 0.02}'])
def test_overrides_of_a_notebook_count_in_its_scratch_project_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch, given: Any
) -> None:
    own = "datasets: [wine]\nper_dataset: {wine: {puma: {budget: 0.5, steps: 3}}}"
    (project / "params.yaml").write_text(own)
    monkeypatch.chdir(project / "notebooks")
    tried = Workspace.for_notebook("puma", given, record=False)
    assert tried.stages is not None
    for settings in (tried.settings, tried.settings.for_dataset("wine")):
        assert settings.puma.budget == 0.02
    assert tried.settings.for_dataset("wine").puma.steps == 3  # what is not overridden stays
    assert tried.settings.audit == Workspace.find().settings.audit
    assert Workspace.find().settings.for_dataset("wine").puma.budget == 0.5
    assert Workspace.for_notebook("puma", {}, record=True) == Workspace.find()
    assert Workspace.for_notebook("puma", "{}", record=False).settings == Workspace.find().settings


@pytest.mark.parametrize(
    ("group", "given", "record", "message"),
    [
        ("puma", {"budgett": 1}, False, r"puma\.budgett: Extra .*settings of puma are .*budget,"),
        ("puma", {"budget": -1}, False, r"puma\.budget: .*greater than 0 \(got -1\)"),
        ("nobody", {"budget": 1}, False, "'nobody' is no group of settings"),
        ("seed", {"budget": 1}, False, "'seed' is no group of settings"),
        ("puma", "budget", False, r"overrides must be settings by name, .*got 'budget'"),
        ("puma", {3: 4}, False, "overrides must be settings by name"),
        ("puma", "{budget: ", False, "overrides: not valid YAML"),
        ("puma", {"budget": 0.02}, True, r"budget, and record is True: .*Change puma there"),
    ],
)
def test_overrides_that_cannot_count_are_refused_before_anything_is_copied(
    project: Path, monkeypatch: pytest.MonkeyPatch, group: str, given: Any, record: bool,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(project / "notebooks")
    with pytest.raises(SettingsError, match=message):
        Workspace.for_notebook(group, given, record=record)
    assert not (project / ".puma" / "interactive").exists()


def test_a_scratch_project_ends_with_its_process(project: Path) -> None:
    (project / "artifacts").mkdir()
    (project / "artifacts" / "registered.json").touch()
    script = """
from puma.project.workspace import Workspace
print(Workspace.find().scratch().registered.exists())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=project, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "True"
    assert list((project / ".puma" / "interactive").iterdir()) == []


@pytest.mark.parametrize("record", [True, False])
def test_a_notebook_of_an_unknown_dataset_names_the_known_ones(
    project: Path, monkeypatch: pytest.MonkeyPatch, record: bool
) -> None:
    (project / "params.yaml").write_text("datasets: [wine]")
    monkeypatch.chdir(project / "notebooks")
    assert Workspace.of("wine") == Workspace.find()
    with pytest.raises(SettingsError, match=r"unknown dataset 'wein'; .*params\.yaml names wine$"):
        Workspace.for_notebook("puma", {}, record=record, dataset="wein")
    assert not (project / ".puma" / "interactive").exists()  # nothing was copied
