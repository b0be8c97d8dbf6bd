"""paper/dvc.yaml: both profiles make stages whose commands, options and notebooks exist."""

from __future__ import annotations

import ast
import shlex
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from dvc.repo import Repo
from typer.main import get_command

from benchmarks import __main__ as benchmarks
from benchmarks.paper_report import DEMONSTRATIONS

ROOT = Path(__file__).parents[1]
PROFILES = {"quick": Path("paper/results/quick"), "full": Path("docs/results")}


@pytest.fixture(scope="module", params=PROFILES)
def profile(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def stages(profile: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """As DVC itself reads them."""
    project = tmp_path_factory.mktemp(profile)
    (project / "paper").mkdir()
    shutil.copy(ROOT / "paper" / "dvc.yaml", project / "paper")
    text = (ROOT / "paper" / "params.yaml").read_text()
    assert text.count("profile: *quick") == 1
    (project / "paper" / "params.yaml").write_text(
        text.replace("profile: *quick", f"profile: *{profile}")
    )
    repo = Repo.init(str(project), no_scm=True)
    return {stage.name: stage for stage in repo.stage.load_all(str(project / "paper" / "dvc.yaml"))}


def outs(stage: Any) -> set[Path]:
    return {Path(out.fs_path).relative_to(stage.repo.root_dir) for out in stage.outs}


def deps(stage: Any) -> set[Path]:
    found = (Path(dep.fs_path) for dep in stage.deps if dep.fs_path)
    return {path.relative_to(stage.repo.root_dir) for path in found}


def calls(stage: Any, *start: str) -> list[list[str]]:
    """What follows ``start`` in the stage's commands."""
    found = []
    for command in stage.cmd.split("&&"):
        words = [word for word in shlex.split(command) if not word.startswith("OMP_NUM_THREADS=")]
        if words[: len(start)] == [*start]:
            found.append(words[len(start) :])
    return found


def test_benchmarks_know_every_option_and_write_what_the_stage_says(
    stages: dict[str, Any],
) -> None:
    commands = get_command(benchmarks.app).commands  # type: ignore[attr-defined]
    made = set()
    for stage in stages.values():
        for name, *arguments in calls(stage, "python", "-m", "benchmarks"):
            read = commands[name].make_context(name, arguments)  # parses; runs nothing
            output = read.params.get("output")
            if output is not None:
                assert output in outs(stage)
                assert read.params.get("seeds", 2) >= 2  # a deviation needs two
            made.add(name)
    assert made == {
        "removals", "step-size", "label-errors", "label-errors-runtime", "calibration",
        "figures", "paper",
    }  # fmt: skip


def test_notebooks_are_there_and_take_these_parameters(stages: dict[str, Any]) -> None:
    run = set()
    for stage in stages.values():
        for words in calls(stage, "papermill", "-k", "python3"):
            source, target = Path(words[0]), Path(words[1])
            assert source in deps(stage)
            notebook = nbformat.read(ROOT / source, as_version=4)
            (cell,) = (
                cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
            )
            known = {
                name.id
                for node in ast.walk(ast.parse(cell.source))
                if isinstance(node, ast.Assign)
                for name in node.targets
                if isinstance(name, ast.Name)
            }
            given = dict(zip(words[3::3], words[4::3], strict=True))
            assert words[2::3] == ["-p"] * len(given)
            assert given.keys() <= known
            assert given.get("quick", "True") in ("True", "False")  # others are texts to papermill
            assert target.parent in {Path(given.get("demonstrations", target.parent))}
            run.add(source)
    assert {path.stem for path in run} == {*DEMONSTRATIONS, "report"}
    assert run == {path.relative_to(ROOT) for path in (ROOT / "notebooks/paper").glob("*.ipynb")}


def test_what_a_stage_needs_is_made_by_another_or_lies_in_the_project(
    stages: dict[str, Any],
) -> None:
    made = {path for stage in stages.values() for path in outs(stage)}
    for stage in stages.values():
        for path in deps(stage) - made:
            assert (ROOT / path).exists(), path
    final = stages["report"]
    waiting, reached = [final], {final.name}
    while waiting:  # every stage serves the report, or is its own end
        needed = deps(waiting.pop())
        for name, stage in stages.items():
            if name not in reached and outs(stage) & needed:
                reached.add(name)
                waiting.append(stage)
    assert reached == set(stages)


def test_each_profile_writes_where_it_says(stages: dict[str, Any], profile: str) -> None:
    made = {path for stage in stages.values() for path in outs(stage)}
    folder = PROFILES[profile]
    assert folder / "paper.html" in made
    if profile == "quick":
        assert all(folder in path.parents for path in made)
    else:  # what is committed, or is ignored by git
        kept = {path for path in made if Path("paper/results/full") not in path.parents}
        assert {path for path in kept if not (ROOT / path).exists()} == set()
    cached = [out for stage in stages.values() for out in stage.outs if out.use_cache]
    assert not cached


def test_the_pipeline_of_the_project_is_another() -> None:
    """`dvc repro` runs that of the folder it is called in alone."""
    assert "paper/" not in (ROOT / "dvc.yaml").read_text()
