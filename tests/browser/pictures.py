"""Take the pictures of docs/pictures again: ``python -m tests.browser.pictures PROJECT``.

PROJECT is a clone in which `make demo` has run, and nothing else: its version 3 is PUMA's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from PIL import Image

from tests.browser.chromium import Chromium, chromium, programs
from tests.browser.notebook import open_notebook, run_all
from tests.browser.servers import jupyterlab, mlflow_ui
from tests.browser.test_mlflow_pages import compared

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
MODEL = "puma-german_credit"


def main(project: Path) -> None:
    found = programs()
    assert found is not None, "apt install chromium chromium-driver"
    with chromium(*found) as browser:
        with mlflow_ui(project) as pages:
            browser.open(pages[0].replace("/#/models", f"/#/models/{MODEL}/versions/3"))
            browser.text("retrain_seconds")
            save(browser, "version")
            compared(browser, pages, MODEL)
            for section in ("Parameters", "Schema"):
                browser.click(f"//*[text()='{section}']", "xpath")
            browser.true("document.body.innerText.includes('Headline/runtime_seconds')")
            save(browser, "compare")
        with (
            tempfile.TemporaryDirectory() as private,
            jupyterlab(project, Path(private)) as address,
        ):
            path = project / "notebooks" / "remove.ipynb"
            cells = len(nbformat.read(path, as_version=4).cells)
            open_notebook(browser, address, path.name, cells)
            assert not any(cell.faulty for cell in run_all(browser))
            save(browser, "jupyterlab")


def save(browser: Chromium, name: str) -> None:
    """Write what the window shows, in 256 colours."""
    path = PICTURES / f"{name}.png"
    browser.picture(path)
    Image.open(path).quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
