"""The notebooks as documents: clean, short, narrated; what they use is a DVC dependency."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import papermill
import pytest
from dvc.utils.serialize import loads_yaml
from jupyter_server.services.contents.largefilemanager import LargeFileManager
from traitlets.config.loader import PyFileConfigLoader

from puma.data import two_moons
from puma.project.stage_code import COMMAND_STAGES, NOTEBOOK_STAGES

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DEMONSTRATIONS = sorted((ROOT / "notebooks" / "paper").glob("*.ipynb"))
STAGES = loads_yaml((ROOT / "dvc.yaml").read_text())["stages"]
INTERACTIVE = {"calibrate.ipynb", "debug_labels.ipynb", "tour.ipynb"}  # for a person


def code_of(notebook: nbformat.NotebookNode) -> str:
    """The code cells, IPython's own commands left out."""
    lines = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return "\n".join(line for line in lines.splitlines() if not line.startswith("%"))


def test_no_stage_depends_on_the_requests_themselves():
    """DVC would note their plain MD5 in dvc.lock, and a small request can be guessed from it."""
    assert "puma request" in STAGES["request"]["cmd"]
    assert STAGES["source"]["always_changed"]
    noted = "artifacts/${item.dataset}/request.json"
    assert noted in STAGES["source"]["outs"]
    assert noted in STAGES["request"]["deps"]
    for stage in STAGES.values():
        assert not [path for path in stage.get("deps", []) if path.startswith("deletions")]


@pytest.fixture(params=[*NOTEBOOKS, *DEMONSTRATIONS], ids=lambda path: path.stem)
def notebook(request) -> nbformat.NotebookNode:
    return nbformat.read(request.param, as_version=4)


def test_there_is_one_notebook_per_stage_that_runs_one():
    run_by_stages = {
        word.split("/")[-1]
        for stage in STAGES.values()
        for word in stage["cmd"].split()
        if word.endswith(".ipynb") and "reports/" not in word
    }
    assert not run_by_stages & INTERACTIVE
    assert run_by_stages | INTERACTIVE == {path.name for path in NOTEBOOKS}


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
    assert ast.unparse(last.body[-1]) == "print('The claim holds.')"  # and says so at its end
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in notebook.cells) <= 1


def test_a_notebook_records_only_where_a_stage_says_so():
    """A person who runs it in JupyterLab looks; the pipeline's outputs stay as they are."""
    for stage in STAGES.values():
        command = stage["cmd"]
        for path in NOTEBOOKS:
            if f"/{path.name}" not in command.split("reports/")[0] or path.stem == "compare":
                continue  # which only reads
            notebook = nbformat.read(path, as_version=4)
            (parameters,) = (
                cell.source
                for cell in notebook.cells
                if "parameters" in cell.metadata.get("tags", [])
            )
            assert re.search(r"^record = False\b", parameters, flags=re.MULTILINE), path
            assert "-p record True" in command, path
            rest = code_of(notebook).replace(parameters, "")
            if path.stem == "register":
                assert "if record:\n    registry.register_all(workspace)" in rest
                continue
            assert re.search(
                r"Workspace\.for_notebook\(.+, overrides, record=record, dataset=dataset\)", rest
            )
            assert re.search(r"^overrides = {}  #", parameters, flags=re.MULTILINE), path


def saved_by_jupyter(project: Path, name: str, content: dict[str, Any]) -> bytes:
    """The file that JupyterLab leaves of ``content``, with the configuration of `make install`."""
    config = PyFileConfigLoader(
        "jupyter_server_config.py", path=str(ROOT / "notebooks")
    ).load_config()
    manager = LargeFileManager(root_dir=str(project / "notebooks"), config=config)
    manager.save({"type": "notebook", "format": "json", "content": content}, name)
    return (project / "notebooks" / name).read_bytes()


def run_in_jupyter(path: Path) -> nbformat.NotebookNode:
    """As it is after a run: outputs, counts, the kernel's name, times and folded cells."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.kernelspec = {"name": "puma", "display_name": "Python (puma)"}
    notebook.metadata.language_info = {"name": "python", "version": "3.11.2"}
    for cell in notebook.cells:
        cell.metadata["jp-MarkdownHeadingCollapsed"] = True
        cell.metadata["execution"] = {"iopub.status.busy": "2026-11-28T10:00:00Z"}
        if cell.cell_type == "code":
            cell.execution_count = 3
            cell.outputs = [nbformat.v4.new_output("stream", text="accuracy 0.74")]
    return notebook


@pytest.mark.parametrize("path", [*NOTEBOOKS, *DEMONSTRATIONS], ids=lambda path: path.stem)
def test_saving_a_run_notebook_changes_no_byte(tmp_path: Path, path: Path) -> None:
    """So git sees no change, and DVC, which hashes the file, runs no stage again."""
    (tmp_path / "notebooks" / "paper").mkdir(parents=True)
    (tmp_path / "dvc.yaml").touch()
    content = run_in_jupyter(path)
    name = path.relative_to(ROOT / "notebooks").as_posix()
    assert saved_by_jupyter(tmp_path, name, content) == path.read_bytes()


def test_notebooks_of_other_folders_keep_their_outputs(tmp_path: Path) -> None:
    (tmp_path / "notebooks").mkdir()
    saved = saved_by_jupyter(tmp_path, "train.ipynb", run_in_jupyter(NOTEBOOKS[0]))
    assert b"accuracy 0.74" in saved


def test_a_stage_depends_on_its_notebook_and_on_the_code_that_it_runs() -> None:
    """Not on PUMA's files themselves, of which a comment would run it again."""
    for name, stage in STAGES.items():
        deps = stage.get("deps", [])
        run = [path for path in NOTEBOOKS if f"/{path.name}" in stage["cmd"].split("reports/")[0]]
        assert {f"notebooks/{path.name}" for path in run} <= {*deps}
        assert not [path for path in deps if path.startswith("puma/")]
        looks = "always_changed" in stage  # each time
        assert (f"artifacts/${{item.dataset}}/code/{name}.json" in deps) != looks, name
    coded = {name for name, stage in STAGES.items() if "always_changed" not in stage}
    assert coded == {*NOTEBOOK_STAGES, *COMMAND_STAGES}


# --- those that no stage runs ---


def execute(name: str, root: Path, **parameters: Any) -> nbformat.NotebookNode:
    """``notebooks/name.ipynb``, run in a project that has nothing but a params.yaml."""
    (root / "params.yaml").write_text("seed: 0\ntraining: {epochs: 30}\n")
    return papermill.execute_notebook(
        ROOT / "notebooks" / f"{name}.ipynb",
        root / "executed.ipynb",
        parameters=parameters,
        kernel_name="python3",
        cwd=root,
        progress_bar=False,
    )


def shown_by(notebook: nbformat.NotebookNode) -> tuple[str, int]:
    """(all that was printed or shown as text, how many pictures there are)."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    texts = [output.get("text", "") for output in outputs]
    shown = [output["data"] for output in outputs if "data" in output]
    texts += [each.get("text/plain", "") for each in shown]
    return "\n".join(texts), sum("image/png" in each for each in shown)


def numbers(text: str, row: str) -> list[list[float]]:
    """Those of every table's line of that name, from the first table on."""
    lines = re.findall(rf"^{re.escape(row)} +([-\d. ]+)$", text, flags=re.MULTILINE)
    return [[float(number) for number in line.split()] for line in lines]


@pytest.mark.slow
def test_labels_are_debugged_where_the_truth_is_known(tmp_path: Path) -> None:
    review = tmp_path / "review.csv"
    done = execute(
        "debug_labels",
        tmp_path,
        dataset="two_moons",
        methods=["psi"],
        flip_fraction=0.1,
        top=15,
        review=str(review),
    )
    text, pictures = shown_by(done)
    assert pictures == 3  # suspicion against loss, the curves, the plane
    assert "point-" not in nbformat.writes(done)
    owners = [line.split(",")[0] for line in review.read_text().splitlines()[1:]]
    # 30 epochs of two moons with a tenth of the labels flipped find nearly all of them.
    for ranking in ("loss", "psi"):
        share, area = numbers(text, ranking)[-1]
        assert share > 0.75
        assert area > 0.95
    data = two_moons(seed=0, test_fraction=0.25)
    clean = dict(zip(data.train.subject_ids.tolist(), data.train.labels.tolist(), strict=True))
    given = [line.split("labelled ")[1][0] for line in review.read_text().splitlines()[1:]]
    wrong = ["ab"[clean[owner]] != label for owner, label in zip(owners, given, strict=True)]
    assert len(owners) == 15
    assert np.mean(wrong) > 0.9


def bars(notebook: nbformat.NotebookNode) -> list[tuple[str, float, float]]:
    """Style, value and end of every progress bar, as it was left."""
    states = [
        model["state"]
        for kind in notebook.metadata.get("widgets", {}).values()
        for model in kind["state"].values()
    ]
    return [
        (each["bar_style"], each["value"], each["max"]) for each in states if "bar_style" in each
    ]


@pytest.mark.slow
def test_the_tour_tells_the_whole_story_and_leaves_the_project_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "others.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
    done = execute("tour", tmp_path)
    text, pictures = shown_by(done)
    # Training, attack, pool; ψ and λ, the steps; margins; the comparison.
    assert pictures == 7
    assert "version 3 serves in place of version 1" in text
    assert re.search(r"^verdict +forgetting incomplete +passed +passed$", text, flags=re.MULTILINE)
    assert numbers(text, "removed rows") == [[0, 57, 57]]  # as README's table has it
    ((original, retrained, puma),) = numbers(text, "accuracy (test)")
    majority = 0.7
    assert min(original, retrained, puma) > majority
    assert max(original, retrained, puma) - min(original, retrained, puma) < 0.05
    ((before, by_retraining, by_puma),) = numbers(
        text, "attack rate: removed rows taken for members"
    )
    assert before > 0.9
    assert by_retraining < 0.6
    assert abs(by_puma - by_retraining) < 0.15
    ((never, _, left),) = numbers(text, "remaining influence (0: as retrained, 1: never removed)")
    assert never == pytest.approx(1, abs=0.25)
    assert abs(left) < 0.4
    # PUMA's bar, which ends before its last possible step, is as whole as the others.
    ends = bars(done)
    assert len(ends) > 10
    assert {style for style, _, _ in ends} == {"success"}
    assert all(value == end for _, value, end in ends)
    assert "applicant-" not in nbformat.writes(done)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["executed.ipynb", "params.yaml"]


@pytest.mark.slow
def test_calibration_is_repaired_on_held_out_rows(tmp_path: Path) -> None:
    text, pictures = shown_by(execute("calibrate", tmp_path, dataset="two_moons"))
    assert pictures == 4
    assert "(2375, 2375)" in text
    before, temperature, direct, on_training, patch = (
        numbers(text, name)
        for name in (
            "before",
            "temperature",
            "direct step, held-out rows",
            "direct step, training rows",
            "paper's patch",
        )
    )
    ((dose,), error, accuracy) = direct
    assert dose > 0
    # Each on the training rows, the half that was fitted on, and the other one. The ECE of a
    # perfect model on so many rows is below 0.02.
    assert before[0][1] > 0.07
    assert before[0][2] > 0.07
    assert error[1] < before[0][1] - 0.02
    assert error[2] < before[0][2] - 0.01
    assert accuracy[2] > before[1][2] - 0.01
    assert temperature[1] == before[1]
    assert on_training[1][0] < before[0][0] - 0.01
    assert abs(on_training[1][2] - before[0][2]) < 0.01  # what it learnt by heart tells nothing
    assert abs(patch[1][2] - before[0][2]) < 0.01
