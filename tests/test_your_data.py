"""docs/your-data.md as it stands: its table, its settings, its functions, its request."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from dvc.utils.serialize import dumps_yaml, loads_yaml
from matplotlib.image import imsave

from puma.data import Dataset, load_dataset
from puma.lineage.records import ModelRecord
from puma.models import build_model
from puma.project.workspace import Workspace
from puma.settings import ModelSettings, Settings, SourceSettings
from tests.test_end_to_end import ROOT, TINY, copy_project, run

PAGE = (ROOT / "docs" / "your-data.md").read_text()
TABLE, ALBUM, REVIEWS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
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
def test_the_tour(tmp_path: Path) -> None:
    workspace = copy_project(tmp_path, TINY | SETTINGS | {"datasets": ["churn", "breast_cancer"]})
    subprocess.run([sys.executable, "-c", TABLE], cwd=tmp_path, check=True)
    path = tmp_path / "data" / "churn.csv"

    # A change of the file, even of a column that is dropped, reruns the stages of its dataset.
    both = {"source@churn", "source@breast_cancer"}
    first = run(workspace, "dvc", "repro", "prepare")
    assert stages(first) == both | {"prepare@churn", "prepare@breast_cancer"}
    before = Dataset.load(workspace.data("churn")).digest
    path.write_text(path.read_text().replace("note 17,", "another,"))
    assert stages(run(workspace, "dvc", "repro", "prepare")) == both | {"prepare@churn"}
    data = Dataset.load(workspace.data("churn"))
    assert data.digest != before

    # The request of the page takes all rows of its two people.
    params = loads_yaml((tmp_path / "params.yaml").read_text()) | {"datasets": ["churn"]}
    (tmp_path / "params.yaml").write_text(dumps_yaml(params))
    (command,) = re.findall(r"^\$ (printf .* deletions/churn\.csv)$", PAGE, flags=re.MULTILINE)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    run(workspace, "dvc", "repro")
    asked = workspace.request("churn").read_text().split()[1:]
    with path.open(newline="") as stream:
        owned = Counter(row["customer_id"] for row in csv.DictReader(stream))
    assert min(owned[each] for each in asked) > 1
    original, puma = versions(workspace)
    assert (puma["n_removed"], len(asked)) == (sum(owned[each] for each in asked), 2)
    record = ModelRecord.read(workspace.model_record("churn", "puma"))
    assert record.data_digest == data.digest

    # The direct path, promotion, the certificate and erasure take it as they take any other.
    (tmp_path / "requests").mkdir()
    another = next(each for each in data.train.subject_ids.tolist() if each not in asked)
    (tmp_path / "requests" / "2.csv").write_text(f"subject_id\n{another}\n")
    removal = ("--model", f"models:/puma-churn/{puma['version']}", "--deletions", "requests/2.csv")
    run(workspace, "puma", "remove", *removal, "--method", "retrain", codes=(0, 1))
    newest = versions(workspace)[-1]
    assert newest["n_removed"] == sum(owned[each] for each in (*asked, another))
    run(workspace, "puma", "promote", "churn", "challenger", "--force", "a test", codes=(0,))
    run(workspace, "puma", "verify", "churn", "champion")
    run(workspace, "puma", "erase", "churn", str(original["version"]), "--yes")
    assert versions(workspace)[0]["version"] != original["version"]

    ids = {*data.rows.subject_ids.tolist()}
    reports = {path.name: path.read_text() for path in (tmp_path / "reports").glob("churn-*.ipynb")}
    assert "customer_id" in reports["churn-prepare.ipynb"]  # the table of the columns
    stored = [tmp_path / "mlflow.db", *(tmp_path / "lineage").rglob("*.json")]
    for text in (*reports.values(), *(each.read_bytes().decode("latin-1") for each in stored)):
        assert not {*re.findall(r"(?<![\w.+-])00\d{3}(?![\w.])", text)} & ids
        assert not re.search(r"note \d", text)


def versions(workspace: Workspace) -> list[dict]:
    return json.loads(run(workspace, "puma", "versions", "churn", "--json").stdout)
