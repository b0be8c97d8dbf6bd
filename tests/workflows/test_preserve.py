"""Criteria of puma.preserve on the direct path: what the version carries and when it may serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from puma.data import Dataset
from puma.data.groups import save_groups
from puma.errors import DataError
from puma.project.workspace import Workspace
from puma.registry import list_versions, open_store
from puma.registry.certificate.verify import verify_version
from puma.registry.loading import load_module
from puma.registry.promotion import PromotionRefusedError, promote
from puma.workflows.remove import remove_request
from tests import command
from tests.audited import DATASET
from tests.audited_fixtures import own, project
from tests.registry.fixtures import _default_store, template

__all__ = ["_default_store", "own", "project", "template"]

pytestmark = pytest.mark.slow  # a removal is audited and registered

WHERE, NAME = "x > 0", f"puma-{DATASET}"
ENTRIES = """\
puma:
  reference_models: 1
  preserve:
    - {criterion: soft_ece, budget: 0.05}
    - {criterion: group_loss, where: "x > 0", budget: 0.04, name: positive}
"""


def prepare(workspace: Workspace, *, groups: bool = True) -> None:
    params = workspace.root / "params.yaml"
    params.write_text(params.read_text().replace("puma: {reference_models: 1}\n", ENTRIES))
    (workspace.root / "request.csv").write_text("subject_id\nzz-train-20\nzz-train-21\n")
    data = Dataset.load(workspace.data(DATASET))
    parts = [part.with_groups({WHERE: part.features[:, 0] > 0}) for part in (data.train, data.test)]
    if groups:
        save_groups(Dataset(DATASET, *parts, data.classes), workspace.groups(DATASET))


def remove(workspace: Workspace, **options: Any) -> Any:
    request = workspace.root / "request.csv"
    return remove_request(workspace, DATASET, "champion", request, progress=False, **options)


def outputs(workspace: Workspace, version: int, features: Tensor) -> Tensor:
    client = open_store(workspace)
    found = client.get_model_version(NAME, str(version))
    with torch.no_grad():
        return load_module(client, found, workspace).double()(features.double())


def test_the_version_carries_each_criterion(own: Workspace) -> None:
    prepare(own)
    made = remove(own).version
    data = Dataset.load(own.data(DATASET))
    retained = data.train.subset(~torch.isin(torch.arange(70), torch.tensor([20, 21])))
    inside = retained.features[:, 0] > 0
    losses = [
        cross_entropy(
            outputs(own, version, retained.features[inside]), retained.labels[inside]
        ).item()
        for version in (1, made.version)
    ]
    metrics = made.metrics
    assert metrics["preserved_positive_before"] == pytest.approx(losses[0], rel=1e-5)
    assert metrics["preserved_positive_after"] == pytest.approx(losses[1], rel=1e-5)
    drift = metrics["preserved_positive_drift"]
    assert drift == pytest.approx(losses[1] - losses[0], abs=1e-6)
    assert abs(drift) <= 0.04
    assert abs(metrics["preserved_soft_ece_drift"]) <= 0.05
    client = open_store(own)
    params = client.get_run(made.run_id).data.params
    assert params["bound_by"] in {"nothing", "soft_ece", "positive", "retained_loss"}
    assert [each["criterion"] for each in json.loads(params["preserve"])] == [
        "soft_ece",
        "group_loss",
    ]

    text = Path(client.download_artifacts(made.run_id, "certificate.json")).read_text()
    listed = json.loads(text)["preserved"]
    assert [each["name"] for each in listed] == ["soft_ece", "positive"]
    assert listed[1]["criterion"] == "group_loss of the retained rows where x > 0"
    assert (listed[1]["drift"], listed[1]["budget"]) == (drift, 0.04)
    page = Path(client.download_artifacts(made.run_id, "certificate.html")).read_text()
    assert "group_loss of the retained rows where x &gt; 0" in page
    described = client.get_model_version(NAME, str(made.version)).description
    assert f"moved by {drift:+.4g}, of 0.04 allowed" in described
    assert not verify_version(own, DATASET, made.version).failed
    again = ["--model", f"models:/{NAME}@champion", "--deletions", "request.csv"]
    shown = command.puma(own.root, "remove", *again).output
    assert "answers this request already" in shown
    assert "preserved_positive_drift" in shown


def test_a_broken_budget_keeps_a_version_from_serving(own: Workspace) -> None:
    prepare(own)
    made = remove(own).version
    open_store(own).log_metric(made.run_id, "preserved_positive_drift", 0.041)
    with pytest.raises(
        PromotionRefusedError, match=r"positive by \+0.041, of 0.04 allowed"
    ) as error:
        promote(own, DATASET, made.version)
    assert "the budget of positive in puma.preserve" in str(error.value)
    failed = verify_version(own, DATASET, made.version).failed
    assert "preserved" in failed


def test_a_removal_that_a_budget_stopped_says_so(own: Workspace) -> None:
    prepare(own)
    params = own.root / "params.yaml"
    params.write_text(params.read_text().replace("budget: 0.04", "budget: 0.0000001"))
    request = ["--model", f"models:/{NAME}@champion", "--deletions", "request.csv"]
    shown = command.puma(own.root, "remove", *request).output
    made = list_versions(open_store(own), DATASET)[-1]
    assert made.tags["puma.bound_by"] == "positive"
    assert "kept from their target margins by the budgets of: positive" in shown
    assert abs(made.metrics["preserved_positive_drift"]) <= 1.1e-6


def test_a_group_that_was_not_prepared_is_refused_and_nothing_is_registered(own: Workspace) -> None:
    prepare(own, groups=False)
    before = len(open_store(own).search_model_versions(f"name='{NAME}'"))
    with pytest.raises(DataError, match=r"prepared without the group 'x > 0'; name it in puma.pr"):
        remove(own)
    assert len(open_store(own).search_model_versions(f"name='{NAME}'")) == before
