"""Three originals and four removals, one of them an ensemble, in one registry."""

from __future__ import annotations

import re
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
import torch
from dvc.utils.serialize import dumps_yaml

from puma.models import Ensemble
from puma.project.workspace import Workspace
from puma.registry import Registered, load_predictor, open_store, register_all
from puma.registry.certificate.verify import verify_version
from puma.settings import ModelSettings, Settings, original_of
from tests import command
from tests.registry.fixtures import _default_store, template
from tests.registry.projects import (
    DATASET,
    DELETION,
    FEATURES,
    MODEL,
    copy_store,
    make_model,
    write_audit,
    write_version,
)

pytestmark = pytest.mark.slow  # seven versions of a whole project

__all__ = ["_default_store", "template"]

EVERYTHING = {
    "datasets": [DATASET],
    "originals": ["original", "sisa_original", "amnesiac_original"],
    "methods": ["retrain", "amnesiac", "sisa", "puma"],
}
EVERYTHING["versions"] = EVERYTHING["originals"] + EVERYTHING["methods"]
DEFAULTS = Settings.model_validate(EVERYTHING)
ENSEMBLES = {"sisa_original": "mean", "sisa": "majority"}
FOUND = {
    **dict.fromkeys(EVERYTHING["originals"], "forgetting_incomplete"),
    "retrain": "passed",
    "amnesiac": "over_forgotten",
    "sisa": "utility_lost",
    "puma": "inconclusive",
}


def ensemble(vote: str) -> Ensemble:
    """Four different members, of which one is silent."""
    made = Ensemble([make_model(seed) for seed in range(20, 24)], vote=vote).eval()
    made.silence(2)
    return made


@pytest.fixture(scope="module")
def found(
    template: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Workspace, list[Registered]]:
    root = tmp_path_factory.mktemp("seven")
    (root / "params.yaml").write_text(dumps_yaml(EVERYTHING))
    workspace = Workspace(root.resolve())
    receipts = {}
    for seed, version in enumerate(DEFAULTS.versions):
        vote = ENSEMBLES.get(version)
        several = {"members": 4, "vote": vote}
        parent = receipts.get(original_of(version)) if version in DEFAULTS.methods else None
        receipts[version] = write_version(
            workspace,
            version,
            weights_seed=seed,
            parent=parent,
            deletion=DELETION if parent else None,
            architecture=ModelSettings(**{**MODEL.model_dump(), **several}) if vote else MODEL,
            model=ensemble(vote) if vote else None,
        )
        numbers = {"attack_rate": 0.5, "attack_rate_unseen": 0.45, "attack_auc": 0.5}
        write_audit(workspace, version, verdict=FOUND[version], **numbers)
    copy_store(template, workspace)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return workspace, register_all(workspace, progress=False)


def puma(folder: Path, *arguments: str) -> list[str]:
    result = command.puma(folder, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_every_removal_has_its_own_original_for_parent(found) -> None:
    _, registered = found
    assert [(item.version, item.method, item.parent_version) for item in registered] == [
        (1, "original", None),
        (2, "sisa_original", None),
        (3, "amnesiac_original", None),
        (4, "retrain", 1),
        (5, "amnesiac", 3),
        (6, "sisa", 2),
        (7, "puma", 1),
    ]
    assert [item.aliases for item in registered] == [("champion",), *[()] * 5, ("challenger",)]


@pytest.mark.parametrize("version", [2, 6])
def test_a_registered_ensemble_answers_like_the_one_in_memory(found, version) -> None:
    workspace, registered = found
    predict = load_predictor(workspace, DATASET, version)
    expected = ensemble(ENSEMBLES[registered[version - 1].method])
    for count in (1, 2, 250):
        features = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(count))
        with torch.no_grad():
            torch.testing.assert_close(predict(features), expected(features))


def test_an_ensemble_s_page_says_what_it_is(found) -> None:
    workspace, _ = found
    client = open_store(workspace)
    version = client.get_model_version(f"puma-{DATASET}", "2")
    assert "trained on every training row, with what sisa removes by" in version.description
    assert client.get_run(version.run_id).data.params["model"] == "4 × mlp 8, mean vote"


def test_compare_fits_a_terminal_and_sets_the_plain_original_beside_the_removals(found) -> None:
    lines = puma(found[0].root, "compare", DATASET)
    assert max(map(len, lines)) <= 80
    cells = [re.split(r"  +", line.strip()) for line in lines]
    assert ["1 original", "4 retrain", "5 amnesiac", "6 sisa", "7 puma"] in cells
    assert ["2 sisa_original", "3 amnesiac_original"] in cells
    assert ["made from", "-", "1", "3", "2", "1"] in cells
    assert ["speedup_vs_retrain", "-", "1.000", "1.500", "1.500", "6.000"] in cells
    assert sum(line[0] == "attack_auc" for line in cells) == 2
    assert sum(line[0] == "speedup_vs_retrain" for line in cells) == 1


def told(rows: list[str], heading: str, columns: list[str]) -> list[str]:
    """What the lines of one row say in each of these columns, put together again."""
    starts = [heading.index(column) for column in columns]
    ends = [*starts[1:], None]
    places = [slice(*bounds) for bounds in zip(starts, ends, strict=True)]
    return ["".join(line[place].strip() for line in rows) for place in places]


def test_compare_tells_every_verdict_in_whole(found) -> None:
    lines = puma(found[0].root, "compare", DATASET)
    tables = [
        ["1 original", "4 retrain", "5 amnesiac", "6 sisa", "7 puma"],
        ["2 sisa_original", "3 amnesiac_original"],
    ]
    for columns in tables:
        heading = next(line for line in lines if columns[0] in line)
        rest = lines[lines.index(heading) :]
        first = next(place for place, line in enumerate(rest) if line.startswith("verdict"))
        row = [rest[first], *takewhile(lambda line: line.startswith(" "), rest[first + 1 :])]
        expected = [FOUND[column.split()[1]].replace("_", "") for column in columns]
        assert [words.replace(" ", "") for words in told(row, heading, columns)] == expected


def test_versions_fit_a_terminal_and_lose_nothing(found, monkeypatch) -> None:
    assert max(map(len, puma(found[0].root, "versions", DATASET))) <= 80
    monkeypatch.setenv("COLUMNS", "200")  # wide enough for a table
    lines = puma(found[0].root, "versions", DATASET)
    heading = next(line for line in lines if "verdict" in line)
    starts = [place for place, line in enumerate(lines) if re.match(r"\d ", line)]
    rows = [lines[start:end] for start, end in pairwise([*starts, len(lines)])]
    assert all(len(row) <= 3 for row in rows)
    columns = ["method", "aliases", "from", "verdict", "secs"]
    said = [told(row, heading, columns) for row in rows]
    assert [row[0] for row in said] == [*DEFAULTS.versions]
    assert [row[1] for row in said] == ["champion", *["-"] * 5, "challenger"]
    assert [row[3].replace(" ", "").replace("_", "") for row in said] == [
        FOUND[version].replace("_", "") for version in DEFAULTS.versions
    ]


@pytest.mark.parametrize("version", range(1, 8))
def test_the_weights_of_every_kind_are_found_again_in_the_registered_model(found, version) -> None:
    """An export keeps parameters and buffers under the names that a receipt's digest is over."""
    result = verify_version(found[0], DATASET, version)
    assert (result.failed, result.unknown) == ((), ())
    assert "weights_digest" in {one.field for one in result.findings if one.state == "holds"}
