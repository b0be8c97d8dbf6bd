"""The notebooks as documents: clean, short, narrated; what they use is a DVC dependency."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def code_of(notebook: nbformat.NotebookNode) -> str:
    """The code cells, IPython's own commands left out."""
    lines = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return "\n".join(line for line in lines.splitlines() if not line.startswith("%"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request) -> nbformat.NotebookNode:
    return nbformat.read(request.param, as_version=4)


def test_there_is_one_notebook_per_stage_that_runs_one():
    run_by_stages = {
        word.split("/")[-1]
        for stage in STAGES.values()
        for word in stage["cmd"].split()
        if word.endswith(".ipynb") and "reports/" not in word
    }
    assert run_by_stages == {path.name for path in NOTEBOOKS}


def test_is_clean(notebook):
    nbformat.validate(notebook)
    assert "kernelspec" not in notebook.metadata
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None


def test_reads_as_a_narrated_document(notebook):
    assert len(notebook.cells) <= 25
    assert notebook.cells[0].cell_type == "markdown"
    assert "**Question:" in notebook.cells[0].source
    code = code_of(notebook)
    assert len(code.splitlines()) <= 120
    tree = ast.parse(code)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    last = ast.parse(notebook.cells[-1].source)
    assert any(isinstance(node, ast.Assert) for node in last.body), (
        "the last cell asserts the claim"
    )
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in notebook.cells) <= 1


def imports(source: str) -> set[Path]:
    """The project's own files that ``source`` imports, packages by their __init__.py.

    A module's packages are imported before it.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    found = set()
    for name in names:
        parts = name.split(".")
        if parts[0] != "puma":
            continue
        for length in range(2, len(parts) + 1):  # puma/__init__.py only forwards to its modules
            path = ROOT.joinpath(*parts[:length])
            files = (path.with_suffix(".py"), path / "__init__.py")
            found |= {file for file in files if file.exists()}
    return found


def transitive_imports(source: str) -> set[Path]:
    seen: set[Path] = set()
    waiting = imports(source)
    while waiting:
        path = waiting.pop()
        seen.add(path)
        waiting |= imports(path.read_text()) - seen
    return seen


@pytest.mark.parametrize("name", STAGES)
def test_dependencies_cover_everything_that_the_stage_runs(name):
    stage = STAGES[name]
    dependencies = [ROOT / dependency for dependency in stage["deps"]]
    written = [path for path in stage["deps"] if path.startswith(("puma/", "notebooks/"))]
    assert written
    assert all((ROOT / path).exists() for path in written)
    run = [path for path in NOTEBOOKS if f"/{path.name}" in stage["cmd"].split("reports/")[0]]
    for path in run:
        assert path in dependencies
        missing = {
            str(module.relative_to(ROOT))
            for module in transitive_imports(code_of(nbformat.read(path, as_version=4)))
            if not any(module == known or known in module.parents for known in dependencies)
        }
        assert not missing, f"stage {name} would not notice a change of {sorted(missing)}"
