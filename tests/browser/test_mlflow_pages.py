"""MLflow's pages, as a person sees them: `puma ui` and a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from puma.project.workspace import Workspace
from puma.registry import list_versions, open_store
from tests.browser.chromium import Chromium
from tests.browser.fixtures import NEEDS_BROWSER, browser
from tests.browser.servers import mlflow_ui
from tests.registry.fixtures import _default_store, filled, template
from tests.registry.projects import ACCURACIES, ATTACK_RATES, DATA_DIGEST, SECONDS

__all__ = ["_default_store", "browser", "filled", "template"]
METHODS = ("original", "retrain", "puma")  # of versions 1, 2 and 3
ROWS = """
return [...document.querySelectorAll("tr")].map(
    row => [...row.querySelectorAll("th, td")].map(cell => cell.innerText.trim()))
"""
pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def pages(filled: Workspace) -> Iterator[list[str]]:
    """The addresses of the models, and of the runs."""
    with mlflow_ui(filled.root) as addresses:
        yield addresses


def compared(browser: Chromium, pages: list[str], model: str = "puma-toy") -> dict[str, list[str]]:
    """The rows of the page that compares the three versions of a model, in their order."""
    browser.open(pages[0].replace("/#/models", f"/#/models/{model}"))
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
