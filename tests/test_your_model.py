"""docs/your-model.md as it stands: its network and its loop, beside another dataset's."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from dvc.utils.serialize import dumps_yaml, loads_yaml

from puma.data import Dataset, load_dataset
from puma.lineage.records import ModelRecord
from puma.models import build_model
from puma.models.predictions import accuracy
from puma.models.training import train
from puma.project.workspace import Workspace
from puma.registry import open_store
from tests.registry.fixtures import _default_store
from tests.test_end_to_end import ROOT, TINY, copy_project, run

__all__ = ["_default_store"]

PAGE = (ROOT / "docs" / "your-model.md").read_text()
SHOP, REGISTER = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
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
    sys.modules.pop("shop", None)


@pytest.mark.slow
def test_two_datasets_and_a_model_that_was_trained_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.modules.pop("shop", None)
    own = {"model": YAML[0]["model"], "training": {**YAML[0]["training"], "epochs": 4}}
    datasets = {"datasets": ["two_moons", "breast_cancer"]}
    workspace = copy_project(tmp_path, TINY | datasets | {"per_dataset": {"two_moons": own}})
    code, params = tmp_path / "shop.py", tmp_path / "params.yaml"
    code.write_text(SHOP)
    monkeypatch.chdir(tmp_path)

    # Adopted as the page says, before anything is trained here.
    lines = re.findall(r"^\$ ((?:dvc|puma) .*)$", PAGE.split("## A model that somebody")[1], re.M)
    prepare, adopt, reference, audit, remove = (line.split() for line in lines)
    run(workspace, *prepare)
    register_theirs(workspace)
    assert "puma-two_moons version 1, adopted from models:/their-model/1: registered" in (
        run(workspace, *adopt).stdout
    )
    run(workspace, *reference)
    run(workspace, *audit, codes=(0, 1))
    (tmp_path / "requests").mkdir()
    ids = workspace.deletion_set("two_moons").read_text().splitlines()
    first = next(line.split(",")[0] for line in ids if not line.startswith(("#", "subject_id")))
    (tmp_path / "requests" / "1.csv").write_text(f"subject_id\n{first}\n")
    for method in ("puma", "retrain"):
        run(workspace, *remove, "--method", method, codes=(0, 1))
    run(workspace, "puma", "verify", "two_moons", "challenger")

    run(workspace, "dvc", "repro", "train", "remove@two_moons-puma")
    records = {
        name: ModelRecord.read(workspace.model_record(name, "original"))
        for name in datasets["datasets"]
    }
    assert records["two_moons"].model.kwargs == own["model"]["kwargs"]
    assert records["two_moons"].parameters["loop"] == "shop:fit"
    assert len(records["two_moons"].loss_curve) == 4
    assert records["breast_cancer"].model.name == "mlp"
    assert "loop" not in records["breast_cancer"].parameters

    # A change of one dataset's settings, or of its code, is a change of those of its stages that
    # read it, and of no other's.
    def changed(**settings: object) -> set[str]:
        stated = loads_yaml(params.read_text())
        params.write_text(dumps_yaml(stated | {"per_dataset": {"two_moons": own | settings}}))
        run(workspace, "dvc", "repro", "source")
        found = json.loads(run(workspace, "dvc", "status", "--json").stdout)
        return {stage for stage, why in found.items() if why != ["always changed"]} - unmade

    unmade: set[str] = set()
    unmade = changed()
    assert not any(stage.startswith(("train", "prepare")) for stage in unmade)
    assert changed(puma={"budget": 0.02}) == {"remove@two_moons-puma"}
    code.write_text(SHOP.replace("lr=0.05", "lr=0.04"))
    assert changed() == {
        "train@two_moons-original",
        "shadow@two_moons",
        "pool@two_moons",
        "reference@two_moons-original",
        "remove@two_moons-puma",
    }
    refused = run(workspace, *remove, "--seed", "5", codes=(2,))
    assert "the module of training.loop 'shop:fit' is not the one by which version 1 was" in (
        refused.stderr
    )
    code.write_text(SHOP)
    assert changed() == set()


def register_theirs(workspace: Workspace) -> None:
    """What the other team does, in the words of the page."""
    data = Dataset.load(workspace.data("two_moons"))
    settings = workspace.settings.for_dataset("two_moons")
    net = build_model(settings.model, data, seed=7)
    train(net, data.train, settings.training, seed=7, progress=False)
    open_store(workspace)
    exec(REGISTER, {"net": net, "rows": data.train.features})
