from __future__ import annotations

import pytest
import torch
from torch import nn

from puma.data import Dataset
from puma.errors import DataError, SettingsError
from puma.label_errors import RANKERS, GShapley, Loss, resolve_ranker
from tests.cases import DOUBLE, mlp, normalised
from tests.label_errors.problems import CASES, PLANTED, planted, tiny
from tests.states import state_of

PERMUTABLE = [name for name, ranker in CASES.items() if not isinstance(ranker, GShapley)]
FLIP_FINDERS = [name for name in CASES if name not in ("psi-training", "psi-soft-ece")]


def test_the_table_holds_every_ranker_by_its_own_name():
    assert set(RANKERS) == {"loss", "psi", "self_influence", "ntk", "representer", "g_shapley"}
    assert {type(ranker) for ranker in CASES.values()} == set(RANKERS.values())
    for name, kind in RANKERS.items():
        assert kind.name == name
        assert resolve_ranker(name) == kind()


def test_a_ranker_is_taken_as_given_and_an_unknown_name_is_refused():
    ranker = GShapley(permutations=3)
    assert resolve_ranker(ranker) is ranker
    with pytest.raises(SettingsError, match="unknown ranker 'shap'; choose one of g_shapley, loss"):
        resolve_ranker("shap")


@pytest.mark.parametrize("name", CASES)
def test_scores_are_finite_doubles_and_the_model_is_left_as_it_was(name):
    model, dataset = normalised().train(), tiny()
    model[1].eval()  # a mode of its own
    model[0].bias.grad = torch.ones(5, dtype=DOUBLE)
    before = state_of(model)
    suspicion = CASES[name].suspicion(model, dataset)
    assert suspicion.shape == (13,)
    assert suspicion.dtype == DOUBLE
    assert not suspicion.requires_grad
    assert suspicion.unique().numel() > 5 or "g-shapley" in name  # accuracy moves in few steps
    torch.testing.assert_close(state_of(model), before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore::puma.label_errors.WeakSignalWarning")
@pytest.mark.parametrize("name", [name for name in RANKERS if name != "g_shapley"])
def test_single_precision_gives_nearly_the_same(name):
    dataset = tiny()
    train, test = _single(dataset.train), _single(dataset.test)
    suspicion = RANKERS[name]().suspicion(mlp().float(), Dataset("s", train, test, ("a", "b", "c")))
    expected = RANKERS[name]().suspicion(mlp(), dataset)
    torch.testing.assert_close(suspicion, expected, rtol=1e-3, atol=1e-5)


def _single(examples):
    return type(examples)(examples.features.float(), examples.labels, examples.subject_ids)


@pytest.mark.parametrize("name", PERMUTABLE)
def test_permuting_the_rows_permutes_the_scores(name):
    model, dataset = mlp(), tiny()
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    shuffled = Dataset("shuffled", dataset.train.subset(order), dataset.test, dataset.classes)
    torch.testing.assert_close(
        CASES[name].suspicion(model, shuffled),
        CASES[name].suspicion(model, dataset)[order],
        rtol=1e-6 if name == "representer" else 1e-9,
        atol=1e-10,
    )


@pytest.mark.parametrize("name", FLIP_FINDERS)
def test_the_planted_wrong_label_is_the_most_suspect(name):
    ranker = CASES[name]
    if isinstance(ranker, GShapley):
        ranker = GShapley(permutations=40, performance="loss")
    model, dataset = planted()
    suspicion = ranker.suspicion(model, dataset)
    assert suspicion.argmax() == PLANTED
    assert suspicion[PLANTED] > 0


def test_loss_is_the_cross_entropy_of_each_row():
    model, dataset = planted()
    probabilities = model(dataset.train.features).softmax(1).detach()
    own = probabilities[torch.arange(40), dataset.train.labels]
    torch.testing.assert_close(Loss().suspicion(model, dataset), -own.log(), rtol=1e-12, atol=0)


def test_scores_that_are_not_finite_are_refused():
    model = nn.Linear(3, 3, dtype=DOUBLE)
    nn.init.constant_(model.weight, torch.nan)
    with pytest.raises(DataError, match="loss: 13 of 13 scores are NaN or infinite; check"):
        Loss().suspicion(model, tiny())
