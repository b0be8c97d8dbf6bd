"""Ranked training rows and the file for review, without a registry."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from puma.data import Dataset, Examples
from puma.errors import SettingsError
from puma.label_errors import RANKERS
from puma.label_errors.suspects import Suspects, rank, rank_all
from puma.requests.deletion_set import DeletionSet
from tests.label_errors.problems import planted, several_rows_each

MODEL, DATASET = planted()


@pytest.fixture(scope="module")
def ranked() -> Suspects:
    return rank(MODEL, DATASET)


def test_the_baseline_and_the_predicted_labels_are_the_model_s(ranked: Suspects) -> None:
    with torch.no_grad():
        logits = MODEL(DATASET.train.features)
    loss = cross_entropy(logits, DATASET.train.labels, reduction="none")
    torch.testing.assert_close(ranked.loss, loss)
    assert torch.equal(ranked.predicted, logits.argmax(1))
    places = [1 + int((ranked.loss > each).sum()) for each in ranked.loss]
    assert ranked.rank_by_loss.tolist() == places
    assert (ranked.method, ranked.criterion) == ("psi", "validation_loss")


def test_the_most_suspect_come_first_and_are_counted_against_the_loss(ranked: Suspects) -> None:
    n = len(DATASET.train)
    order = sorted(range(n), key=lambda row: -ranked.suspicion[row])
    assert ranked.order.tolist() == order
    assert ranked.most(7).tolist() == order[:7]
    by_loss = sorted(range(n), key=lambda row: -ranked.loss[row])
    shared = {top: len(set(order[:top]) & set(by_loss[:top])) for top in range(1, n + 1)}
    assert any(0 < count < top for top, count in shared.items())
    assert {top: ranked.shared_with_loss(top) for top in shared} == shared


@pytest.mark.parametrize("method", [name for name in RANKERS if name != "g_shapley"])
def test_every_method_ranks_as_its_ranker_does(method: str) -> None:
    found = rank(MODEL, DATASET, method=method)
    assert torch.equal(found.suspicion, RANKERS[method]().suspicion(MODEL, DATASET))
    assert (found.criterion is None) == (method not in ("psi", "ntk"))


@pytest.mark.filterwarnings("ignore::puma.label_errors.WeakSignalWarning")
def test_the_criterion_and_the_weight_decay_reach_the_ranker() -> None:
    ranker = RANKERS["psi"](  # type: ignore[call-arg]
        criterion="training_loss", weight_decay=0.5, check=False
    )
    found = rank(MODEL, DATASET, criterion="training_loss", weight_decay=0.5)
    assert torch.equal(found.suspicion, ranker.suspicion(MODEL, DATASET))
    other = rank(MODEL, DATASET, criterion="training_loss", weight_decay=0.0)
    assert not torch.equal(found.suspicion, other.suspicion)


@pytest.mark.filterwarnings("ignore::puma.label_errors.WeakSignalWarning")
def test_all_rankings_begin_with_the_loss() -> None:
    found = rank_all(MODEL, DATASET, ["psi", "loss", "self_influence"], criterion="soft_ece")
    assert [(name, each.criterion) for name, each in found.items()] == [
        ("loss", None),
        ("psi", "soft_ece"),
        ("self_influence", None),
    ]
    with pytest.raises(SettingsError, match="unknown ranker 'oracle'"):
        rank_all(MODEL, DATASET, ["oracle"])


def test_a_criterion_for_a_method_that_has_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="method 'loss' has no criterion, got 'soft_ece'"):
        rank(MODEL, DATASET, method="loss", criterion="soft_ece")


def test_it_names_nobody(ranked: Suspects) -> None:
    assert repr(ranked) == "Suspects('planted', psi on validation_loss, n=40)"


# --- the file for review ---


def test_the_file_is_a_request_for_the_owners_with_what_speaks_against_each(tmp_path: Path) -> None:
    found, path = several_rows_each(), tmp_path / "review.csv"
    found.write(path, 4)
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open(newline="") as stream:
        lines = [*csv.DictReader(stream)]
    assert [line["subject_id"] for line in lines] == ["ann", "cy", "bo, jr"]
    assert lines[0]["reason"] == (
        "suspect 1 by psi on soft_ece (5); 6 by loss; labelled yes; the model says no"
    )
    assert lines[2]["reason"] == (
        "suspect 3 by psi on soft_ece (3); 4 by loss; labelled yes; the model says yes / "
        "suspect 4 by psi on soft_ece (2); 3 by loss; labelled no; the model says yes"
    )
    request = DeletionSet.read(path, Dataset("toy", *_with_more(found), ("no", "yes")))
    assert request.subject_ids == ("ann", "bo, jr", "cy")
    assert request.rows.tolist() == [0, 1, 2, 3, 4, 5]  # ann's other rows, too


def _with_more(found: Suspects) -> tuple[Examples, Examples]:
    """The same people's rows and another's: nobody may ask for all."""
    train = found.dataset.train
    features = torch.zeros(8, 2)
    labels = torch.cat([train.labels, torch.tensor([0, 1])])
    more = Examples.of(features, labels, [*train.subject_ids.tolist(), "dot", "dot"])
    return more, more


def test_what_may_have_been_reviewed_is_not_overwritten(tmp_path: Path) -> None:
    found, path = several_rows_each(), tmp_path / "review.csv"
    found.write(path, 2)
    before = path.read_text()
    found.write(path, 2)  # the same again
    assert path.read_text() == before
    with pytest.raises(SettingsError, match="is there already, and may have been reviewed"):
        found.write(path, 3)
    path.write_text(before.splitlines()[0] + "\n")
    with pytest.raises(SettingsError, match="is there already, and may have been reviewed"):
        found.write(path, 2)
    for occupied in (tmp_path, tmp_path / "link"):
        if occupied != tmp_path:
            occupied.symlink_to("nowhere")
        with pytest.raises(SettingsError, match="is there already"):
            found.write(occupied, 2)
    with pytest.raises(SettingsError, match=f"{tmp_path}/none: no such folder; make it"):
        found.write(tmp_path / "none" / "review.csv", 2)
    assert {each.name for each in tmp_path.iterdir()} == {"review.csv", "link"}


@pytest.mark.parametrize("top", [0, 7])
def test_there_must_be_so_many_rows(tmp_path: Path, top: int) -> None:
    with pytest.raises(SettingsError, match=f"top must be between 1 and the 6 .* got {top}"):
        several_rows_each().write(tmp_path / "review.csv", top)
