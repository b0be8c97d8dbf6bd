"""Take the pictures of docs/pictures again: ``python -m tests.browser.pictures PROJECT``.

PROJECT is a clone in which `make demo` has run, and nothing else: its version 3 is PUMA's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from PIL import Image

from tests.browser.chromium import Chromium, chromium, programs
from tests.browser.notebook import open_notebook, run_all
from tests.browser.servers import jupyterlab, mlflow_ui
from tests.browser.test_mlflow_pages import compared

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
MODEL = "puma-german_credit"
HEADING = "[...document.querySelectorAll('h2')].find(each => each.textContent.includes('weighed'))"


def main(project: Path) -> None:
    found = programs()
    assert found is not None, "apt install chromium chromium-driver"
    with chromium(*found) as browser:
        of_mlflow(browser, project)
        of_jupyterlab(browser, project)


def of_mlflow(browser: Chromium, project: Path) -> None:
    """A version's page; and the page that compares versions, with what is long folded."""
    with mlflow_ui(project) as pages:
        browser.open(pages[0])
        for greeting in ("Try it now", "Close", "Model training"):  # of a first visit
            named = f"//*[text()='{greeting}' or @aria-label='{greeting}']"
            browser.click(named, "xpath")
        browser.open(pages[0].replace("/#/models", f"/#/models/{MODEL}/versions/3"))
        browser.text("retrain_seconds")
        save(browser, "version")
        compared(browser, pages, MODEL)
        for section in ("Parameters", "Schema"):
            browser.click(f"//*[text()='{section}']", "xpath")
        browser.true("!document.body.innerText.includes('weights_digest')")
        save(browser, "compare")


def of_jupyterlab(browser: Chromium, project: Path) -> None:
    """The notebook of a removal, all of whose cells have run, at its first figure."""
    path = project / "notebooks" / "remove.ipynb"
    cells = len(nbformat.read(path, as_version=4).cells)
    with tempfile.TemporaryDirectory() as private, jupyterlab(project, Path(private)) as address:
        open_notebook(browser, address, path.name, cells)
        assert not any(cell.faulty for cell in run_all(browser))
        browser.run(f"{HEADING}.scrollIntoView()")
        browser.true(f"Math.abs({HEADING}.getBoundingClientRect().top - 100) < 50")
        time.sleep(2)  # seconds, until it is drawn
        save(browser, "jupyterlab")


def save(browser: Chromium, name: str) -> None:
    """Write what the window shows, in 256 colours."""
    path = PICTURES / f"{name}.png"
    browser.picture(path)
    Image.open(path).quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
