"""docs/your-model.md as it stands: its network and its loop, beside another dataset's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from dvc.utils.serialize import dumps_yaml, loads_yaml

from puma.data import load_dataset
from puma.lineage.records import ModelRecord
from puma.models import build_model
from puma.models.predictions import accuracy
from puma.models.training import train
from puma.project.workspace import Workspace
from puma.settings import Settings
from tests.test_end_to_end import ROOT, TINY, copy_project, run
from tests.test_your_data import stages

PAGE = (ROOT / "docs" / "your-model.md").read_text()
(SHOP,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
YAML = [loads_yaml(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def test_the_page_s_network_is_trained_by_the_page_s_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "params.yaml").write_text(dumps_yaml(YAML[0]))
    monkeypatch.chdir(tmp_path)
    settings = Workspace(tmp_path).settings
    data = load_dataset("two_moons", seed=0)
    model = build_model(settings.model, data, seed=0)
    assert [type(each) for each in model.body] == [
        torch.nn.Linear,
        torch.nn.BatchNorm1d,
        torch.nn.GELU,
    ]
    before = accuracy(model, data.test)
    history = train(model, data.train, settings.training, seed=0, progress=False)
    assert len(history.loss) == 30
    assert history.loss[-1] < history.loss[0]
    assert accuracy(model, data.test) > max(before, 0.85)
    monkeypatch.delitem(sys.modules, "shop")


@pytest.mark.slow
def test_two_datasets_with_networks_of_their_own(tmp_path: Path) -> None:
    own = {"model": YAML[0]["model"], "training": {**YAML[0]["training"], "epochs": 4}}
    datasets = {"datasets": ["two_moons", "breast_cancer"]}
    workspace = copy_project(tmp_path, TINY | datasets | {"per_dataset": {"two_moons": own}})
    (tmp_path / "shop.py").write_text(SHOP)
    params = tmp_path / "params.yaml"
    assert Settings.model_validate(loads_yaml(params.read_text())).per_dataset.keys() == {
        "two_moons"
    }
    run(workspace, "dvc", "repro")
    records = {
        name: ModelRecord.read(workspace.model_record(name, "original"))
        for name in datasets["datasets"]
    }
    assert records["two_moons"].model.kwargs == own["model"]["kwargs"]
    assert records["two_moons"].parameters["loop"] == "shop:fit"
    assert len(records["two_moons"].loss_curve) == 4
    assert records["breast_cancer"].model.name == "mlp"
    assert "loop" not in records["breast_cancer"].parameters

    # A setting of one dataset reruns those of its stages that read it, and no other's.
    always = {f"{stage}@{name}" for stage in ("source", "request") for name in records}
    always |= {"register"}

    def rerun(**changes: object) -> set[str]:
        own.update(changes)  # type: ignore[arg-type]
        stated = loads_yaml(params.read_text()) | {"per_dataset": {"two_moons": own}}
        params.write_text(dumps_yaml(stated))
        return stages(run(workspace, "dvc", "repro", "register")) - always

    assert rerun() == set()
    moons = {"remove@two_moons-puma", "audit@two_moons-puma"}
    assert rerun(puma={"budget": 0.02}) == moons
    code = tmp_path / "shop.py"
    code.write_text(code.read_text().replace("lr=0.05", "lr=0.04"))
    everything = {
        "train@two_moons-original",
        "shadow@two_moons",
        "pool@two_moons",
        "reference@two_moons-original",
        "audit@two_moons-original",
    }
    assert rerun() == moons | everything

    # The direct path trains, audits and verifies with the dataset's own code.
    (tmp_path / "requests").mkdir()
    ids = workspace.deletion_set("two_moons").read_text().splitlines()
    first = next(line.split(",")[0] for line in ids if not line.startswith(("#", "subject_id")))
    (tmp_path / "requests" / "1.csv").write_text(f"subject_id\n{first}\n")
    removal = ("--model", "models:/puma-two_moons/4", "--deletions", "requests/1.csv")
    for method in ("puma", "retrain"):
        run(workspace, "puma", "remove", *removal, "--method", method, codes=(0, 1))
    run(workspace, "puma", "verify", "two_moons", "challenger")
    run(workspace, "puma", "promote", "two_moons", "challenger", "--force", "a test")
    code.write_text(code.read_text().replace("lr=0.04", "lr=0.03"))
    refused = run(workspace, "puma", "remove", *removal, "--seed", "5", codes=(2,))
    assert "the module of training.loop 'shop:fit' is not the one by which version" in (
        refused.stderr
    )
