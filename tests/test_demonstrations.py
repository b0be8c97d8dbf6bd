"""The paper's demonstrations run from the root with one command, and leave what they say."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import papermill
import pytest
from matplotlib import image

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks" / "paper"
# The files that each notebook leaves in the folder of its name. Reports show them by these names.
FILES = {
    "dessert": {"regions.png", "numbers.csv"},
    "digits": {"marked.png", "same_class.png", "random.png", "numbers.csv"},
    "projection": {"arrows.png", "numbers.csv"},
    "reliability": {"groups.png", "patched.png", "rivals.png", "numbers.csv"},
    "two_moons": {"regions.png", "numbers.csv"},
}


def test_every_demonstration_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} - {"report"} == {*FILES}


@pytest.mark.parametrize("name", FILES)
def test_a_demonstration_says_at_its_top_what_it_leaves(name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    said = set(re.findall(rf"`{name}/([\w.]+)`", notebook.cells[0].source))
    assert said == FILES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_demonstration_leaves_its_pictures_and_numbers(name: str, tmp_path: Path) -> None:
    """Its last cell asserts its claim, by which it would fail."""
    papermill.execute_notebook(
        FOLDER / f"{name}.ipynb",
        tmp_path / "executed.ipynb",
        parameters={"out": str(tmp_path / "out"), "quick": True},
        kernel_name="python3",
        cwd=ROOT,
        progress_bar=False,
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]
    folder = tmp_path / "out" / name
    assert {path.name for path in folder.iterdir()} == FILES[name]
    for path in folder.glob("*.png"):
        pixels = image.imread(path)
        assert min(pixels.shape[:2]) >= 300
        assert pixels[..., :3].std() > 0.05  # something is drawn
