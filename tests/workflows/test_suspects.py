"""Suspect labels of registered versions, from Python, from the command line and in the notebook."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
import torch

from puma.cli import diagnostics as cli_suspects
from puma.data import Dataset
from puma.errors import DataError, RegistryError
from puma.label_errors import RANKERS, WeakSignalWarning
from puma.label_errors.suspects import Suspects, rank
from puma.lineage.records import ModelRecord
from puma.models import weights_digest
from puma.project.workspace import Workspace
from puma.registry import load_predictor, open_store
from puma.requests.deletion_set import DeletionSet
from puma.workflows.suspects import load_version
from tests import command
from tests.audited import CLASSES, DATASET, N_REMOVED, N_TRAIN
from tests.audited_fixtures import NUMBERS, own, project
from tests.label_errors.problems import several_rows_each
from tests.registry.fixtures import _default_store, template

__all__ = ["_default_store", "own", "project", "template"]

pytestmark = pytest.mark.slow  # a whole audited project, and a notebook
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "debug_labels.ipynb"
SUBJECT = "zz-train-"  # with what every id of the project's training rows begins


def puma(folder: Path, *arguments: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        return command.puma(folder, "suspects", *arguments)


# --- which model, and which rows ---


@pytest.mark.parametrize(
    ("version", "name"),
    [("champion", "original"), ("challenger", "retrain"), (4, "retrain"), ("sisa", "sisa")],
)
def test_a_version_is_found_by_number_alias_and_name(
    project: Workspace, version: str | int, name: str
) -> None:
    row, model, data = load_version(project, DATASET, version)
    assert (row.version, row.method) == (NUMBERS[name], name)
    served = load_predictor(project, DATASET, row.version)(data.test.features)
    with torch.no_grad():
        torch.testing.assert_close(model(data.test.features), served)


def test_rows_that_a_removal_took_out_are_not_ranked(project: Workspace) -> None:
    everybody = Dataset.load(project.data(DATASET))
    for name in ("original", "retrain"):
        _, _, data = load_version(project, DATASET, name)
        taken = N_REMOVED if name == "retrain" else 0
        kept = everybody.train.subject_ids[taken:].tolist()
        assert data.train.subject_ids.tolist() == kept
        assert torch.equal(data.train.features, everybody.train.features[taken:])
        assert torch.equal(data.test.features, everybody.test.features)


def test_a_version_whose_weights_the_stages_have_replaced_is_still_loaded(own: Workspace) -> None:
    """As after training anew with other settings: `champion` is not moved by that."""
    _, before, _ = load_version(own, DATASET)
    path = own.model_record(DATASET, "original")
    ModelRecord.read(path).model_copy(update={"seed": 99}).write(path)
    own.weights(DATASET, "original").unlink()
    _, after, _ = load_version(own, DATASET)
    assert weights_digest(after) == weights_digest(before) == weights_of_version(own, 1)
    with pytest.raises(RegistryError, match=r"'original' of 'coins' is not registered yet; run"):
        load_version(own, DATASET, "original")


def weights_of_version(workspace: Workspace, version: int) -> str:
    found = open_store(workspace).get_model_version(f"puma-{DATASET}", str(version))
    return str(found.tags["puma.weights_digest"])


def test_an_unknown_version_is_told_the_known_ones(project: Workspace) -> None:
    with pytest.raises(RegistryError, match="no version '9'; choose one of 1, 2, 3, 4, challenger"):
        load_version(project, DATASET, 9)


def test_other_data_or_another_request_is_refused(own: Workspace) -> None:
    data = Dataset.load(own.data(DATASET))
    DeletionSet.of([f"{SUBJECT}20"], data).write(own.deletion_set(DATASET))
    load_version(own, DATASET, "original")
    with pytest.raises(
        DataError, match=r"deletion_set\.csv: another request, or .*deletion\.key"
    ) as refused:
        load_version(own, DATASET, "retrain")
    assert SUBJECT not in str(refused.value)
    flipped = replace(data.train, labels=1 - data.train.labels)
    Dataset(DATASET, flipped, data.test, data.classes).save(own.data(DATASET))
    with pytest.raises(DataError, match=r"dataset\.npz holds other data than this version"):
        load_version(own, DATASET, "original")


@pytest.fixture(scope="module")
def ranked(project: Workspace) -> Suspects:
    _, model, data = load_version(project, DATASET)
    return rank(model, data)


# --- puma suspects ---


def test_the_command_shows_the_loss_s_rank_beside_the_method_s(
    project: Workspace, ranked: Suspects
) -> None:
    result = puma(project.root, DATASET, "--top", "5")
    assert (result.exit_code, result.stderr) == (0, "")
    assert max(map(len, result.stdout.splitlines())) <= 80
    text = " ".join(result.stdout.split())
    assert "Of the 70 training rows of puma-coins version 1 (original), the most suspect" in text
    lines = [line.split() for line in result.stdout.splitlines() if re.match(r"\d", line)]
    shared = f"{ranked.shared_with_loss(5)} of these 5 are also among the 5 of largest loss."
    assert lines.pop() == shared.split()
    for place, (row, told) in enumerate(zip(ranked.order, lines, strict=False), start=1):
        assert told == [
            str(place),
            CLASSES[ranked.dataset.train.labels[row]],
            CLASSES[ranked.predicted[row]],
            f"{ranked.suspicion[row]:.4g}",
            str(int(ranked.rank_by_loss[row])),
        ]
    assert len(lines) == 5
    assert SUBJECT not in result.output


def test_as_json_it_is_the_same_without_ids(project: Workspace, ranked: Suspects) -> None:
    told = json.loads(puma(project.root, DATASET, "--top", "3", "--json").stdout)
    rows = ranked.most(3).tolist()
    assert told["suspects"] == [
        {
            "rank": place,
            "labelled": CLASSES[ranked.dataset.train.labels[row]],
            "model_says": CLASSES[ranked.predicted[row]],
            "suspicion": pytest.approx(ranked.suspicion[row].item()),
            "rank_by_loss": int(ranked.rank_by_loss[row]),
        }
        for place, row in enumerate(rows, start=1)
    ]
    del told["suspects"]
    described = {"dataset": DATASET, "version": 1, "method": "psi", "rows": N_TRAIN}
    assert told == described | {"criterion": "validation_loss"}


def test_ids_are_shown_in_a_terminal_alone_and_only_the_first(
    ranked: Suspects, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(
        SUBJECT in cell for line in cli_suspects._suspects_table(ranked, 12)[1] for cell in line
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    columns, lines = cli_suspects._suspects_table(ranked, 12)
    ids = ranked.dataset.train.subject_ids[ranked.most(10).numpy()]
    assert columns[1] == "subject"
    assert [line[1] for line in lines] == [*map(repr, ids.tolist()), "…", "…"]
    monkeypatch.setitem(os.environ, "JPY_PARENT_PID", "1")
    assert "subject" not in cli_suspects._suspects_table(ranked, 12)[0]


def test_the_file_can_become_the_dataset_s_request(own: Workspace, tmp_path: Path) -> None:
    target = tmp_path / "review.csv"
    result = puma(own.root, DATASET, "--top", "4", "--csv", str(target), "--version", "retrain")
    assert result.exit_code == 0
    assert f"written to {target}: strike out who is not to go" in result.stdout
    assert "then move it to deletions/coins.csv and run `dvc repro`" in result.stdout
    assert SUBJECT not in result.output
    assert target.stat().st_mode & 0o777 == 0o600
    reviewed = "".join(target.read_text().splitlines(keepends=True)[:3])
    own.request(DATASET).parent.mkdir()
    own.request(DATASET).write_text(reviewed)
    checked = command.puma(own.root, "request", DATASET)
    assert "request in deletions/coins.csv: 2 subjects, 2 training rows" in checked.stdout
    again = puma(own.root, DATASET, "--csv", str(target))
    assert again.exit_code == 2
    assert f"puma: {target} is there already, and may have been reviewed" in again.stderr


def test_what_is_wrong_is_said_before_the_work(
    project: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puma.label_errors.suspects.rank", lambda *_, **__: pytest.fail("ranked"))
    for arguments, told in {
        ("--top", "0"): "top must be between 1 and the 70 training rows, got 0",
        ("--top", "71"): "top must be between 1 and the 70 training rows, got 71",
        ("--version", "puma"): "puma-coins has no version 'puma'; choose one of 1, 2, 3, 4, ch",
        ("--csv", str(tmp_path)): f"{tmp_path} is there already",
        ("--csv", str(tmp_path / "no" / "x.csv")): f"{tmp_path}/no: no such folder; make it",
        ("--csv", "/proc/suspects.csv"): "/proc/suspects.csv cannot be written (",
        ("--csv", str(tmp_path / ("x" * 250))): f"{tmp_path / ('x' * 250)} cannot be written (",
    }.items():
        result = puma(project.root, DATASET, *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"puma: {told}" in result.stderr
    result = puma(project.root, "nobody")
    assert result.exit_code == 2
    assert "unknown dataset 'nobody'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--method", "oracle"], "unknown ranker 'oracle'; choose one of g_shapley, loss"),
        (["--criterion", "f1"], "unknown criterion 'f1'; choose one of soft_ece, training_loss"),
        (
            ["--method", "loss", "--criterion", "soft_ece"],
            "method 'loss' has no criterion, got 'soft_ece'; leave it out, or choose psi or ntk",
        ),
        (
            ["--method", "representer", "--version", "sisa"],
            "representer needs a model whose logits are the output of an nn.Linear",
        ),
    ],
)
def test_what_cannot_be_ranked_by_is_refused(
    project: Workspace, arguments: list[str], told: str
) -> None:
    result = puma(project.root, DATASET, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"puma: {told}")


def test_noise_is_called_noise_in_a_sentence(project: Workspace) -> None:
    result = puma(project.root, DATASET, "--criterion", "training_loss", "--json")
    assert result.exit_code == 0
    assert result.stderr.startswith("puma: psi: the gradient of training_loss is 0.")
    assert result.stderr.count("\n") == 1
    assert "WeakSignalWarning" not in result.stderr
    assert len(json.loads(result.stdout)["suspects"]) == 20


def test_other_warnings_are_not_swallowed(
    project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(*_: Any, **__: Any) -> Suspects:
        warnings.warn("a stranger's", RuntimeWarning, stacklevel=1)
        warnings.warn("of ours", WeakSignalWarning, stacklevel=1)
        return several_rows_each()

    monkeypatch.setattr("puma.label_errors.suspects.rank", warn)
    with pytest.warns(RuntimeWarning, match="a stranger's"):
        result = puma(project.root, DATASET, "--top", "2")
    assert result.stderr == "puma: of ours\n"


def test_slow_methods_show_how_far_they_are(project: Workspace) -> None:
    result = puma(project.root, DATASET, "--method", "g_shapley", "--top", "2", "--json")
    assert "100/100" in result.stderr
    assert json.loads(result.stdout)["criterion"] is None


def test_help_names_every_method(tmp_path: Path) -> None:
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", puma(tmp_path, "--help").stdout).split())
    for method in RANKERS:
        assert method in text


# --- the notebook ---


def test_the_notebook_ranks_the_registered_version_and_shows_nobody(
    own: Workspace, tmp_path: Path
) -> None:
    done = papermill.execute_notebook(
        NOTEBOOK,
        tmp_path / "executed.ipynb",
        parameters={
            "dataset": DATASET,
            "version": "retrain",
            "methods": ["psi", "self_influence"],
            "top": 8,
        },
        kernel_name="python3",
        cwd=own.root,
        progress_bar=False,
    )
    assert SUBJECT not in nbformat.writes(done)
    assert f"Examples(n={N_TRAIN - N_REMOVED}, " in nbformat.writes(done)
    _, model, data = load_version(own, DATASET, "retrain")
    with (own.root / "reports" / "coins-retrain-psi.csv").open(newline="") as stream:
        owners = [line["subject_id"] for line in csv.DictReader(stream)]
    assert owners == data.train.subject_ids[rank(model, data).most(8).numpy()].tolist()
