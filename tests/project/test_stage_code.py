"""The code that a stage runs, against import-linter's graph of imports."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import grimp
import pytest

from puma.errors import SettingsError
from puma.project.stage_code import COMMAND_STAGES, NOTEBOOK_STAGES, PACKAGE, stage_code
from puma.project.workspace import Workspace

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    """Nothing but the notebooks."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    return Workspace(tmp_path)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of PUMA's code."""
    left_out = shutil.ignore_patterns("__pycache__", "template")
    return shutil.copytree(PACKAGE, tmp_path / "installed" / "puma", ignore=left_out)


def named_by(stage: str) -> set[str]:
    """What a notebook's import statements name, those that are modules among them."""
    notebook = json.loads((ROOT / "notebooks" / f"{stage}.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    lines = [line for line in "\n".join(cells).splitlines() if not line.startswith("%")]
    found = [
        node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.ImportFrom)
    ]
    return {
        name
        for node in found
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    }


def test_the_modules_are_those_of_import_linter_s_graph(project: Workspace) -> None:
    graph = grimp.build_graph("puma", exclude_type_checking_imports=True, cache_dir=None)
    found = stage_code(project)
    assert [*found] == [*COMMAND_STAGES, *NOTEBOOK_STAGES]
    for stage in NOTEBOOK_STAGES:
        expected = {name for name in named_by(stage) if name in graph.modules}
        while more := {
            other
            for name in expected
            for other in (*graph.find_modules_directly_imported_by(name), name.rpartition(".")[0])
        } - {*expected, ""}:
            expected |= more
        files = {name for name in found[stage] if name.endswith(".csv")}
        assert {*found[stage]} - files == expected - {"puma"}, stage
        assert files == {path.name for path in (PACKAGE / "data" / "files").glob("*.csv")}
    # What only draws is not in what the request's people are chosen by.
    assert "puma.plots.audits" in found["audit"]
    assert not [name for name in found["request"] if name.startswith("puma.plots")]


def test_a_comment_a_docstring_or_the_layout_is_no_change(
    project: Workspace, package: Path
) -> None:
    before = stage_code(project, package)
    for path in package.rglob("*.py"):
        path.write_text(f"# a comment\n\n{path.read_text()}\n\n# another\n")
    module = package / "plots" / "style.py"
    docstring = ast.get_docstring(ast.parse(module.read_text()), clean=False)
    module.write_text(module.read_text().replace(docstring, "Other words."))
    assert stage_code(project, package) == before


def test_a_change_is_one_of_the_stages_that_run_the_module(
    project: Workspace, package: Path
) -> None:
    before = stage_code(project, package)
    for module, stages in {
        "audit/verdict.py": {"shadow", "pool", "reference", "audit"},
        "lineage/audits.py": {"reference", "audit"},
        "data/splitting.py": {*COMMAND_STAGES, *NOTEBOOK_STAGES},
        "cli/main.py": set(),
    }.items():
        path = package / module
        content = path.read_text()
        path.write_text(content + "\nANOTHER = 1\n")
        after = stage_code(project, package)
        assert {stage for stage in before if after[stage] != before[stage]} == stages, module
        path.write_text(content)
    assert stage_code(project, package) == before
    (package / "data" / "files" / "german_credit.csv").write_text("another table")
    assert stage_code(project, package)["prepare"] != before["prepare"]


def test_a_change_of_any_module_of_the_settings_is_one_of_every_stage(
    project: Workspace, package: Path
) -> None:
    before = stage_code(project, package)
    paths = [path for path in (package / "settings").glob("*.py") if path.stem != "__init__"]
    modules = {"puma.settings", *(f"puma.settings.{path.stem}" for path in paths)}
    assert len(modules) > 1
    for path in (package / "settings").glob("*.py"):
        path.write_text(path.read_text() + "\nANOTHER = 1\n")
    after = stage_code(project, package)
    for stage, digests in before.items():
        changed = {module for module in digests if after[stage][module] != digests[module]}
        assert changed == modules, stage


def test_the_project_s_own_modules_count_where_a_notebook_imports_them(project: Workspace) -> None:
    path = project.root / "notebooks" / "train.ipynb"
    notebook = json.loads(path.read_text())
    notebook["cells"][-1]["source"] = "%matplotlib inline\nimport helpers\nassert helpers"
    path.write_text(json.dumps(notebook))
    (project.root / "helpers.py").write_text("x = 1")
    before = stage_code(project)
    (project.root / "helpers.py").write_text("x = 2")
    after = stage_code(project)
    assert {stage for stage in before if after[stage] != before[stage]} == {"train"}
    (project.root / "helpers.py").write_text("x = ")
    with pytest.raises(SettingsError, match=r"helpers\.py: is no Python .*; correct it"):
        stage_code(project)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"train\.ipynb: cannot be read \(No such file.*put it back"),
        ("{", r"train\.ipynb: is no notebook"),
        ("{}", r"train\.ipynb: is no notebook"),
        (
            '{"cells": [{"cell_type": "code", "source": ["x ="]}]}',
            r"train\.ipynb: is no Python \(invalid syntax",
        ),
    ],
)
def test_a_broken_notebook_is_named(project: Workspace, content: str | None, message: str) -> None:
    path = project.root / "notebooks" / "train.ipynb"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=message):
        stage_code(project)


def test_a_damaged_cache_is_made_anew(project: Workspace) -> None:
    before = stage_code(project)
    for damaged in ("", "[1]", "{"):
        (project.root / ".puma" / "modules.json").write_text(damaged)
        assert stage_code(project) == before
