"""docs/your-data.md as it stands: its settings, its functions, and what runs again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from dvc.utils.serialize import loads_yaml
from matplotlib.image import imsave

from puma.data import Dataset, load_dataset
from puma.models import build_model
from puma.settings import ModelSettings, Settings, SourceSettings
from tests.test_end_to_end import ROOT, TINY, copy_project, run

PAGE = (ROOT / "docs" / "your-data.md").read_text()
ALBUM, REVIEWS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
SETTINGS, PHOTOS = (loads_yaml(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))


def test_the_page_names_every_setting_and_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\|(.*)\|$", PAGE, flags=re.MULTILINE))
    fields = SourceSettings.model_fields
    assert {*rows} == {*fields} - {"source"}
    for name in ("task", "missing", "decimal"):
        assert fields[name].default in rows[name].replace('"', "")


def test_a_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Settings.model_validate(PHOTOS).sources["photos"]
    draw = np.random.default_rng(0)
    for name in ("cat", "dog"):
        folder = tmp_path / "data" / "photos" / name
        folder.mkdir(parents=True)
        for person in "abcd":
            for number in (1, 2):
                pixels = draw.integers(0, 256, (5, 6, 3), dtype=np.uint8)
                imsave(folder / f"{name}{person}_{number}.png", pixels)
    (tmp_path / "album.py").write_text(ALBUM)
    data = load_dataset("photos", source=source, root=tmp_path)
    assert data.rows.features.shape == (16, 3, 5, 6)
    assert 0 <= float(data.rows.features.min()) < float(data.rows.features.max()) <= 1
    assert data.classes == ("cat", "dog")
    assert Counter(data.rows.subject_ids.tolist()) == Counter(
        f"{name}{person}" for name in ("cat", "dog") for person in "aabbccdd"
    )
    row = int(np.flatnonzero(data.train.subject_ids == data.train.subject_ids[0])[0])
    assert data.classes[data.train.labels[row]] == data.train.subject_ids[row][:3]
    monkeypatch.delitem(sys.modules, "album")


def test_token_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"tokens": [29_999 - row, 7], "stars": row % 3 + 1, "author": f"a{row // 3}"}
        for row in range(30)
    ]
    (tmp_path / "reviews.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "reviews.py").write_text(REVIEWS)
    source = SourceSettings(path="reviews.jsonl", source="reviews:load")
    data = load_dataset("reviews", source=source, root=tmp_path)
    assert data.classes == ("1", "2", "3")
    found = sorted(data.rows.features[:, :3].long().tolist())
    assert found == sorted([29_999 - row, 7, 0] for row in range(30))
    monkeypatch.syspath_prepend(tmp_path)
    model = build_model(ModelSettings(name="reviews:Net"), data, seed=0)
    assert model(data.test.features).shape == (len(data.test), 3)
    monkeypatch.delitem(sys.modules, "reviews")


def stages(done: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"Running stage '([\w@-]+)'", done.stdout))


@pytest.mark.slow
def test_a_changed_file_reruns_the_stages_of_its_dataset(tmp_path: Path) -> None:
    """Even if the change is in a column that is dropped."""
    workspace = copy_project(tmp_path, TINY | SETTINGS | {"datasets": ["churn", "breast_cancer"]})
    path = tmp_path / "data" / "churn.csv"
    path.parent.mkdir()
    rows = [f"{row // 2:04},{row % 7},note {row},{'no' if row % 3 else 'yes'}" for row in range(90)]
    path.write_text("\n".join(["customer_id,visits,signup_note,churned", *rows]))
    both = {"source@churn", "source@breast_cancer"}
    first = run(workspace, "dvc", "repro", "prepare")
    assert stages(first) == both | {"prepare@churn", "prepare@breast_cancer"}
    before = Dataset.load(workspace.data("churn")).digest
    path.write_text(path.read_text().replace("note 17,", "another,"))
    assert stages(run(workspace, "dvc", "repro", "prepare")) == both | {"prepare@churn"}
    assert Dataset.load(workspace.data("churn")).digest != before
