"""``puma request``."""

from __future__ import annotations

import csv
import sys
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from puma import cli
from puma.data import Dataset, Examples
from puma.errors import DeletionError
from puma.project.workspace import Workspace
from tests.command import puma
from tests.registry.fixtures import _default_store, filled, registered, template, workspace
from tests.registry.projects import (
    DATASET,
    FEATURES,
)

__all__ = ["_default_store", "filled", "registered", "template", "workspace"]


def test_request_of_the_user_is_checked_and_written(prepared: Workspace) -> None:
    prepared.request(DATASET).parent.mkdir()
    prepared.request(DATASET).write_text("subject_id\nperson-1\nperson-3\nperson-1\n")
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 0
    assert result.stdout == (
        "toy: request in deletions/toy.csv: 2 subjects, 2 training rows; "
        "1 duplicated line merged\nwritten to artifacts/toy/deletion_set.csv\n"
    )
    assert written_ids(prepared) == ["person-1", "person-3"]
    header = prepared.deletion_set(DATASET).read_text().splitlines()[0]
    assert header.split(",")[-1] == "salt"  # dvc.lock names the file's plain MD5


def test_request_is_a_demonstration_without_a_file(prepared: Workspace) -> None:
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 0
    assert "toy: demonstration (smallest cluster of every class): 3 subjects" in result.stdout
    # Per class, clusters of 4, 4 and 1, and of 4, 3 and 2 rows: see `prepared`.
    assert written_ids(prepared) == ["person-16", "person-17", "person-8"]
    assert "person" not in result.stdout


def test_the_demonstration_follows_the_marking(prepared: Workspace) -> None:
    params = prepared.root / "params.yaml"
    kept = [line for line in params.read_text().splitlines() if not line.startswith("marking")]
    kept.append("marking: {name: ordered, fraction: 0.25}")
    params.write_text("\n".join(kept))
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 0
    assert "toy: demonstration (the first 0.25 of the rows): " in result.stdout


def test_refused_request_writes_nothing(prepared: Workspace) -> None:
    prepared.request(DATASET).parent.mkdir()
    prepared.request(DATASET).write_text("subject_id\nperson-1\nstranger\n")
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 2
    assert "1 of 2 subject ids are not in dataset 'toy'; correct or drop them" in result.stderr
    assert result.stderr.endswith(
        "puma: which ids is shown in a terminal alone: run the command there\n"
    )
    assert "stranger" not in result.stderr
    assert result.stdout == ""
    assert not prepared.deletion_set(DATASET).exists()


@pytest.mark.parametrize(("n", "more"), [(1, ""), (10, ""), (11, " and 1 more")])
def test_unknown_ids_are_shown_in_a_terminal(
    n: int, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"x{number:02d}" for number in range(n)]
    result = refused(ids, monkeypatch)
    shown = ", ".join(f"'{name}'" for name in ids[:10])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"puma: some are unknown\npuma: unknown: {shown}{more}\n"


def test_unknown_ids_are_not_shown_in_a_notebook_s_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    result = refused(["x1"], monkeypatch)
    assert "in a terminal alone: run the command there" in result.stderr
    assert "x1" not in result.stderr


@pytest.mark.parametrize("name", ["x\x1b[2J", "x\ny"])
def test_unknown_ids_cannot_steer_the_terminal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name not in refused([name], monkeypatch).stderr


@pytest.mark.parametrize(
    "name", ["to-y.csv", "toy.csv.dvc", "Toy.csv", "toy", "toy.csv ", "to\udcffy.csv"]
)
def test_a_request_that_nothing_reads_is_refused(prepared: Workspace, name: str) -> None:
    folder = prepared.request(DATASET).parent
    folder.mkdir()
    (folder / name).write_text("subject_id\nperson-1\n")
    for _ in range(2):  # with a request of this dataset's own, too
        result = puma(prepared.root, "request", DATASET)
        assert result.exit_code == 2
        assert f"{name!r} would go unread" in result.stderr
        assert "rename it, or move it away" in result.stderr
        assert "person" not in result.stderr
        assert not prepared.deletion_set(DATASET).exists()
        prepared.request(DATASET).write_text("subject_id\nperson-3\n")


def test_a_request_that_links_to_nowhere_is_refused(prepared: Workspace) -> None:
    path = prepared.request(DATASET)
    path.parent.mkdir()
    path.symlink_to("moved.csv")
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 2
    assert "toy.csv: no such deletion request" in result.stderr
    assert not prepared.deletion_set(DATASET).exists()


@pytest.mark.parametrize("link", [True, False])
def test_a_folder_of_requests_that_cannot_be_read_is_refused(
    prepared: Workspace, link: bool
) -> None:
    folder = prepared.request(DATASET).parent
    if link:
        folder.symlink_to("nowhere")
    else:
        folder.write_text("")
    result = puma(prepared.root, "request", DATASET)
    assert result.exit_code == 2
    assert "deletions: cannot be read" in result.stderr


def test_what_belongs_among_the_requests_is_no_stray(prepared: Workspace) -> None:
    folder = prepared.request(DATASET).parent
    folder.mkdir()
    for name in ("README.md", ".gitignore", ".toy.csv.swp", "german_credit.csv", "digits.csv"):
        (folder / name).write_text("")
    assert puma(prepared.root, "request", DATASET).exit_code == 0


def test_class_removal_needs_the_setting(prepared: Workspace) -> None:
    prepared.request(DATASET).parent.mkdir()
    everybody = "\n".join(f"person-{number}" for number in range(9))
    prepared.request(DATASET).write_text(f"subject_id\n{everybody}\n")
    assert puma(prepared.root, "request", DATASET).exit_code == 2
    params = prepared.root / "params.yaml"
    params.write_text(f"{params.read_text()}deletion: {{allow_class_removal: true}}\n")
    assert puma(prepared.root, "request", DATASET).exit_code == 0
    assert len(written_ids(prepared)) == 9


@pytest.fixture
def prepared(workspace: Workspace) -> Workspace:
    """A project whose dataset has far-apart clusters of known sizes in each class."""
    sizes = {0: (4, 4, 1), 1: (4, 3, 2)}
    features, labels = [], []
    for label, counts in sizes.items():
        for place, count in enumerate(counts):
            noise = torch.randn(
                count, FEATURES, generator=torch.Generator().manual_seed(10 * label + place)
            )
            features.append(100.0 * torch.eye(FEATURES)[place] + 0.01 * noise)
            labels += [label] * count
    train = Examples.of(
        torch.cat(features), torch.tensor(labels), [f"person-{number}" for number in range(18)]
    )
    test = Examples.of(torch.zeros(2, FEATURES), torch.tensor([0, 1]), ["tester-0", "tester-1"])
    Dataset(DATASET, train, test, ("bad", "good")).save(workspace.data(DATASET))
    return workspace


def refused(ids: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command says of these unknown ids, on a terminal."""

    def refuse(_: object) -> None:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        raise DeletionError("some are unknown", unknown_ids=tuple(ids))

    monkeypatch.setattr(Workspace, "of", refuse)
    return CliRunner().invoke(cli.app, ["request", DATASET])


def written_ids(workspace: Workspace) -> list[str]:
    with workspace.deletion_set(DATASET).open(newline="") as stream:
        return [line["subject_id"] for line in csv.DictReader(stream)]
