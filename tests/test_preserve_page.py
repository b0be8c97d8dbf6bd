"""docs/preserve.md as it stands: its settings and its function, on the table that it is about."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from dvc.utils.serialize import loads_yaml

import puma
from puma.models import build_model
from puma.removal import build_method
from puma.settings import Settings

PAGE = (Path(puma.__file__).parents[1] / "docs" / "preserve.md").read_text(encoding="utf-8")


def fenced(language: str) -> str:
    return PAGE.split(f"```{language}\n")[1].split("```")[0]


def test_the_settings_and_the_function_of_the_page_keep_what_they_say(tmp_path, monkeypatch):
    (tmp_path / "fair.py").write_text(fenced("python"))
    monkeypatch.syspath_prepend(str(tmp_path))
    stated = loads_yaml(fenced("yaml"))
    stated["training"] = {"epochs": 15}
    stated["puma"]["reference_models"] = 1
    settings = Settings.model_validate(stated)
    data = puma.load_dataset(
        "german_credit",
        validation_fraction=settings.data.validation_fraction,
        groups=settings.puma.groups,
    )
    method = build_method("puma", settings)
    trained = method.fit(build_model(settings.model, data, seed=0), data, progress=False)
    deletion_set = puma.DeletionSet.of(data.train.subject_ids[:9].tolist(), data)
    removal = method.remove(trained, deletion_set, progress=False)
    sys.modules.pop("fair", None)
    assert [change.title for change in removal.preserved] == [
        *("retained_loss", "validation_loss", "soft_ece", "group_loss", "gap")
    ]
    for change in removal.preserved:
        assert abs(change.drift) <= change.budget + 1e-9
    changed = removal.diagnostics["level_distance_before"] - removal.diagnostics["level_distance"]
    assert changed > 0


@pytest.mark.parametrize("key", ["criterion", "budget", "where", "over", "name"])
def test_every_key_is_explained(key: str) -> None:
    assert key in puma.settings.PreservedCriterion.model_fields
    assert f"| `{key}` |" in PAGE
