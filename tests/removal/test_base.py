"""What every removal method has in common, method by method."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from dvc.utils.serialize import loads_yaml
from torch import nn

from puma.data import Dataset, Examples
from puma.errors import DataError, ModelError, SettingsError
from puma.influence.criteria import MeanLoss
from puma.influence.flat_model import FlatModel
from puma.models import mlp
from puma.removal import METHODS, PUMA, RemovalMethod, Retrain, Trained, build_method
from puma.removal.results import CriterionChange, Patch
from puma.requests.deletion_set import DeletionSet
from puma.settings import Settings, TrainingSettings
from tests.removal.conftest import blobs
from tests.test_html_table import cells

TRAINING = TrainingSettings(epochs=2, batch_size=16)
CHANGED: dict[str, dict[str, Any]] = {
    "amnesiac": {"repair_epochs": 1, "max_bytes": 10**6},
    "puma": {
        "damping": 0.07,
        "budget": 1e-7 * 3e5,
        "steps": 2,
        "repair": False,
        "reweighting": "never",
        "reference_models": 2,
        "reference_epochs": 1 / 3,
        "level_tolerance": 1e-5,
        "l1": 1e-9,
        "solver": "dense",
        "curvature_sample": 50,
        "negligible": 0.125,
        "preserve": [{"criterion": "soft_ece", "budget": 0.125, "name": "calibration"}],
    },
    "puma_paper": {
        "curvature": "gauss_newton",
        "steps": 30,
        "up_sample": 17,
        "reweighter": "exact",
    },
    "retrain": {"schedule": "equal_steps"},
    "sisa": {"shards": 2, "slices": 3, "assignment": "ordered", "vote": "majority"},
}
OUTCOMES = {
    "amnesiac": {"batches_subtracted", "batches_recorded"},
    "puma": {"dose", "bound_by"},
    "puma_paper": {"dose", "solver"},
    "retrain": {"epochs", "steps"},
    "sisa": {"epochs_per_slice", "steps"},
}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Dataset("blobs", blobs(100, seed=0), blobs(20, seed=1), ("a", "b"))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return mlp(3, 2, (8,)).double()


@pytest.mark.parametrize("name", METHODS)
def test_the_recorded_parameters_build_the_method_again(dataset, model, name):
    method = METHODS[name](training=TRAINING, **CHANGED[name])
    found = method.remove(
        method.fit(model, dataset, progress=False),
        DeletionSet.of(["3", "40"], dataset),
        progress=False,
    )
    own = set(METHODS[name].model_fields) - {"training", "seed", "device"}
    # A registry keeps every parameter as a text.
    stored = {key: loads_yaml(str(found.parameters[key])) for key in own}
    assert METHODS[found.method](training=TRAINING, **stored) == method
    assert set(found.parameters) - own == OUTCOMES[name]
    assert all(type(value) in (str, int, float) for value in found.parameters.values())


class Nothing(RemovalMethod):
    """Removes nothing, and counts its calls."""

    method = "nothing"
    layers: tuple[int, ...] = (4, 2)
    calls: ClassVar[list[str]] = []

    def _train(self, predictor: nn.Module, *args: Any, **options: Any) -> Any:
        self.calls.append("train")
        return super()._train(predictor, *args, **options)

    def _patch(self, trained: Trained, *_: Any, **__: Any) -> Patch:
        self.calls.append("patch")
        return Patch(trained.predictor)


def test_fit_and_remove_do_nothing_else(dataset, model):
    """No warm-up: one training, one removal, in the first call of a class as in any other."""
    method = Nothing(training=TRAINING)
    trained = method.fit(model, dataset, progress=False)
    found = method.remove(trained, DeletionSet.of(["3"], dataset), progress=False)
    assert method.calls == ["train", "patch"]
    assert found.parameters["layers"] == "4-2"
    assert found.criterion_drift == 0


def test_a_removal_shows_itself_without_saying_whose_rows_it_removed(dataset, model):
    method = METHODS["puma"](training=TRAINING, reference_models=0, steps=1, budget=0.25)
    found = method.remove(
        method.fit(model, dataset, progress=False),
        DeletionSet.of(["73", "40"], dataset),
        progress=False,
    )
    found = replace(found, seconds=0.125, preserved=(CriterionChange("<age>", 0.5, 1.0, 1.25),))
    html = found._repr_html_()
    lines = dict(cells(html))
    assert "puma: 2 rows of 2 people removed from &#x27;blobs&#x27;" in html
    assert (lines["seconds"], lines["steps"]) == ("0.125", "1")
    assert float(lines["drift (nats)"]) == pytest.approx(found.criterion_drift, rel=0.05)
    assert lines["budget (nats)"] == "0.25"
    assert lines["drift of <age> (budget 0.5)"] == "0.250"
    assert float(lines["dose"]) == pytest.approx(found.parameters["dose"], rel=0.05)
    assert {*found.diagnostics} <= {*lines}
    drift = f"drift {found.criterion_drift:+.2g} nats"
    text = f"Removal(puma: 2 rows of 2 people removed from 'blobs', 0.12 seconds, {drift})"
    assert repr(found) == text
    assert not re.search(r"\b(73|40)\b", html + text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reference_models", "trained"),
    [
        (1, "method.fit(torch.nn.Linear(4, 2), data, progress=False)"),
        # A model that was loaded: nothing has been trained in this process, and nothing is.
        (0, "Trained(torch.nn.Linear(4, 2).eval(), data, torch.nn.Linear(4, 2))"),
    ],
)
def test_no_import_of_pytorch_falls_into_the_measured_seconds(reference_models, trained):
    code = f"""
import sys, torch
from puma.data import Dataset, Examples
from puma.removal import PUMA, Trained
from puma.requests.deletion_set import DeletionSet
rows = Examples.of(torch.eye(4), torch.tensor([0, 1, 0, 1]))
data = Dataset("toy", rows, rows, ("a", "b"))
new = set()

def watched(call):
    def run(*args, **options):
        before = set(sys.modules)
        found = call(*args, **options)
        new.update(set(sys.modules) - before)
        return found
    return run

class Watched(PUMA):
    _train, _patch = watched(PUMA._train), watched(PUMA._patch)

method = Watched(budget=1.0, reference_models={reference_models})
trained = {trained}
method.remove(trained, DeletionSet.of(["0"], data), progress=False)
print(sorted(name for name in new if name.startswith("torch")))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
    assert result.stderr == ""  # nor a warning of what PyTorch itself is built on


def test_a_method_without_settings_is_one_file_and_one_row(monkeypatch):
    monkeypatch.setitem(METHODS, "nothing", Nothing)
    assert build_method("nothing", Settings(seed=3)) == Nothing(seed=3, device="cpu")


def test_methods_are_built_with_the_settings_of_their_name():
    settings = Settings.model_validate(
        {"seed": 7, "training": {"epochs": 2}, "puma": {"budget": 0.5}}
    )
    method = build_method("puma", settings)
    assert isinstance(method, PUMA)
    assert (method.budget, method.seed, method.training.epochs) == (0.5, 7, 2)
    assert {name: kind.method for name, kind in METHODS.items()} == {name: name for name in METHODS}
    with pytest.raises(SettingsError, match=r"unknown removal method 'sissa'.*puma"):
        build_method("sissa", settings)


def test_the_recorded_criterion_is_summed_in_double_precision():
    def single(n, seed):
        rows = blobs(n, seed=seed)
        return Examples.of(rows.features.float(), rows.labels)

    dataset = Dataset("blobs", single(901, 0), single(20, 1), ("a", "b"))
    method = Retrain(training=TrainingSettings(epochs=1, batch_size=64))
    trained = method.fit(mlp(3, 2, (8,)), dataset, progress=False)
    removal = method.remove(trained, DeletionSet.of(["0"], dataset), progress=False)
    retained = dataset.train.subset(torch.arange(1, 901))
    for model, recorded in (
        (trained.predictor, removal.criterion_before),
        (removal.predictor, removal.criterion_after),
    ):
        flat_model = FlatModel(model)
        measured = MeanLoss(retained).value(flat_model, flat_model.vector)
        assert recorded == pytest.approx(measured, rel=1e-12)
        assert recorded != float(np.float32(recorded))  # float32 would have rounded it


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("changed", [{"seed": -1}, {"nonsense": 1}, {"training": None}], ids=str)
def test_a_setting_that_cannot_be_used_is_a_settings_error(
    kind: type[RemovalMethod], changed: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match=next(iter(changed))):
        kind(**changed)


def test_what_is_no_model_and_no_dataset_is_refused(dataset: Dataset) -> None:
    method = Retrain(training=TRAINING)
    for model in (None, "mlp", nn.Linear, nn.Linear(4, 2).double()):
        with pytest.raises(ModelError, match="model"):
            method.fit(model, dataset, progress=False)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="got NoneType"):
        method.fit(mlp(2, 2), None, progress=False)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="pass what fit returns"):
        method.remove(mlp(2, 2), None)  # type: ignore[arg-type]
