"""MLflow's pages, as a person sees them: `puma ui` and a real browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from puma.project.workspace import Workspace
from puma.registry import list_versions, open_store
from tests.browser.chromium import Chromium, chromium, programs, wait_for
from tests.registry.fixtures import _default_store, filled, template
from tests.registry.projects import ACCURACIES, ATTACK_RATES, DATA_DIGEST, SECONDS
from tests.registry.servers import free_port

__all__ = ["_default_store", "filled", "template"]
METHODS = ("original", "retrain", "puma")  # of versions 1, 2 and 3
ROWS = """
return [...document.querySelectorAll("tr")].map(
    row => [...row.querySelectorAll("th, td")].map(cell => cell.innerText.trim()))
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        programs() is None,
        reason="Chromium and its driver are not installed: apt install chromium chromium-driver",
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    binary, driver = programs() or ("", "")
    with chromium(binary, driver) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(filled: Workspace) -> Iterator[list[str]]:
    """The addresses that `puma ui` prints: of the models, and of the runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "puma.cli", "ui", "--port", str(free_port())],
        cwd=filled.root,
        env={name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        printed = [process.stdout.readline(), process.stdout.readline()]
        found = re.findall(r"http://\S+", "".join(printed))
        assert len(found) == 2, printed
        wait_for(found[0])
        yield found
    finally:
        process.terminate()
        process.wait()


def compared(browser: Chromium, pages: list[str]) -> dict[str, list[str]]:
    """The rows of the page that compares all versions, in their order."""
    models = pages[0]
    browser.open(models.replace("/#/models", "/#/models/puma-toy"))
    browser.click("input[type=checkbox]")  # that of the head: all versions
    browser.click("[data-testid=compareButton]")
    browser.text("Comparing 3 Versions")
    browser.text("Headline/runtime_seconds")
    return {row[0]: row[1:] for row in browser.run(ROWS) if len(row) == 4}


def test_the_experiment_opens_on_its_runs(browser: Chromium, pages: list[str]) -> None:
    browser.open(pages[1])
    shown = browser.text("puma: over forgotten")
    assert re.search(r"/#/experiments/\d+/runs\?", browser.address)
    assert "3 matching runs" in shown
    assert {"2.0s", "1.5s", "250ms"} <= {*shown.split()}  # of two trainings and a removal


def test_versions_are_compared_by_verdict_accuracy_attack_rate_and_runtime(
    browser: Chromium, pages: list[str]
) -> None:
    rows = compared(browser, pages)
    assert rows["Model Version:"] == ["1", "2", "3"]
    assert rows["Run Name:"] == [
        "original: forgetting incomplete (toy)",
        "retrain: passed (toy)",
        "puma: over forgotten (toy)",
    ]
    assert [json.loads(cell) for cell in rows["method"]] == [*METHODS]
    assert [cell.strip('"') for cell in rows["parent_version"]] == ["-", "1", "1"]
    names = list(rows)
    first = names.index("Headline/accuracy")
    assert names[first - 1] in ("weights_digest", "parent_version")  # a parameter: no metric before
    shown = {"accuracy": ACCURACIES, "attack_rate": ATTACK_RATES, "runtime_seconds": SECONDS}
    assert names[first : first + 3] == [f"Headline/{name}" for name in shown]
    for name, values in shown.items():
        numbers = [float(cell) for cell in rows[f"Headline/{name}"]]
        assert numbers == [values[method] for method in METHODS]


def test_a_version_leads_to_its_parent_its_certificate_and_the_chart(
    browser: Chromium, pages: list[str]
) -> None:
    compared(browser, pages)
    browser.click("3", "link text")
    browser.text("Registered At")
    version = browser.address
    assert version.endswith("/#/models/puma-toy/versions/3")
    browser.follow("version 1")
    browser.text("Original model of toy")
    assert browser.address.endswith("/#/models/puma-toy/versions/1")
    browser.open(version)
    browser.follow("certificate")
    browser.text("certificate.html")
    browser.enter_frame()
    browser.text("3 training rows of 2 people were removed from version 1.")
    browser.open(version)
    browser.follow("chart")
    browser.text("versions.svg")
    browser.true("[...document.images].some(image => image.naturalHeight > 100)")


def test_a_logged_model_names_its_version_and_its_datasets(
    browser: Chromium, pages: list[str], filled: Workspace
) -> None:
    client = open_store(filled, create=False)
    model = list_versions(client, "toy")[2].model_id
    runs, _, of_models = pages[1].partition("?")
    browser.open(f"{runs}/models/{model}?{of_models}")
    shown = browser.text("Datasets used")
    below = browser.text("puma-toy").partition("Datasets used")[2]
    assert "Not registered" not in shown
    assert re.search(rf"toy \(#{DATA_DIGEST[:36]}\)\s+\+1", below)  # the other: the deletion set
    assert re.search(r"Model versions\s+puma-toy\s+v3", below)
