"""A notebook in JupyterLab, by its menus and its cells."""

from __future__ import annotations

from dataclasses import dataclass

from tests.browser.chromium import Chromium, until

PATIENCE = 240  # seconds: a kernel that imports PyTorch and draws pictures, on a busy machine
CELLS = """
return [...document.querySelectorAll(".jp-Notebook .jp-Cell")].map(cell => [
    cell.classList.contains("jp-CodeCell") ?
        cell.querySelector(".jp-InputArea-prompt").textContent.trim() : "",
    [...cell.querySelectorAll(".jp-OutputArea-output")].map(each => each.textContent).join("\\n"),
    cell.querySelector("[data-mime-type$='jupyter.error'], [data-mime-type$='jupyter.stderr']")
        !== null,
])
"""
BARS = """
return [...document.querySelectorAll(".jp-Notebook .widget-hprogress .progress-bar")].map(
    bar => [...bar.classList].filter(name => name.startsWith("progress-bar-")).join())
"""


@dataclass(frozen=True)
class Cell:
    """What the page shows of a cell: ``[3]:`` of the third that ran, nothing of a text."""

    prompt: str
    output: str
    faulty: bool  # an exception, or what a program writes on its standard error


def open_notebook(browser: Chromium, address: str, name: str, cells: int) -> None:
    """Open a notebook of so many cells and wait for its kernel."""
    browser.open(f"{address}/lab/tree/{name}")
    browser.true(f"document.querySelectorAll('.jp-Notebook .jp-Cell').length === {cells}")
    browser.true("document.querySelector('[data-status=idle].jp-Notebook-ExecutionIndicator')")


def run_all(browser: Chromium) -> list[Cell]:
    """*Run*, *Run All Cells*; the cells, once the last one has run or one has failed."""
    choose(browser, "Run", "runmenu:run-all")

    def done() -> bool:
        cells = shown(browser)
        return cells[-1].prompt.strip("[]:").isdigit() or any(cell.faulty for cell in cells)

    until(done, lambda: f"end of the notebook: {shown(browser)}", PATIENCE)
    return shown(browser)


def shown(browser: Chromium) -> list[Cell]:
    return [Cell(*cell) for cell in browser.run(CELLS)]


def bars(browser: Chromium) -> list[str]:
    """The style of every progress bar on the page, such as ``progress-bar-success``."""
    return list(browser.run(BARS))


def choose(browser: Chromium, menu: str, command: str) -> None:
    """Choose a command from a menu of JupyterLab."""
    browser.click(f"//*[contains(@class, 'lm-MenuBar-itemLabel')][text()='{menu}']", "xpath")
    browser.click(f".lm-Menu-item[data-command='{command}']")
