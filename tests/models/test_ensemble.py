"""The vote of an ensemble against numpy, silenced members, and the way through settings."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from puma.errors import ModelError
from puma.models import Ensemble, load_weights, new_model, save_weights, weights_digest
from puma.settings import ModelSettings
from tests.cases import normalised, random_examples


def members(count: int = 3, classes: int = 3) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return [nn.Linear(3, classes).double() for _ in range(count)]


def probabilities(models: list[nn.Module], features: Tensor) -> np.ndarray:
    """(members, B, classes)"""
    logits = np.stack([model(features).detach().numpy() for model in models])
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


@pytest.fixture
def features() -> Tensor:
    return random_examples(40, 3).features


def test_the_mean_vote_is_the_log_of_the_mean_probability(features):
    models = members()
    expected = np.log(probabilities(models, features).mean(0))
    found = Ensemble(models)(features).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_the_majority_vote_is_the_log_of_the_shares_with_one_vote_for_all(features):
    models = members(5)
    guesses = probabilities(models, features).argmax(-1)  # (members, B)
    votes = np.stack([(guesses == label).sum(0) for label in range(3)], 1)
    assert len(np.unique(votes, axis=0)) > 3
    found = Ensemble(models, vote="majority")(features).numpy(force=True)
    np.testing.assert_allclose(np.exp(found), (votes + 1 / 3) / 6, rtol=0, atol=1e-15)
    assert (found.argmax(1) == votes.argmax(1)).all()


def test_a_tie_goes_to_the_lowest_class():
    first, second = nn.Linear(1, 3), nn.Linear(1, 3)
    for model, label in ((first, 2), (second, 1)):
        nn.init.zeros_(model.weight)
        model.bias.data = torch.eye(3)[label]
    logits = Ensemble([first, second], vote="majority")(torch.zeros(1, 1))
    assert logits.argmax(1).item() == 1


@pytest.mark.parametrize("vote", ["mean", "majority"])
@pytest.mark.parametrize("silenced", [[0], [2, 1]])
def test_a_silenced_member_is_as_if_it_did_not_exist(features, vote, silenced):
    models = members()
    ensemble = Ensemble(copy.deepcopy(models), vote=vote)
    for number in silenced:
        ensemble.silence(number)
        nn.init.constant_(ensemble.member(number).weight, torch.nan)
    heard = [model for number, model in enumerate(models) if number not in silenced]
    found = ensemble(features)
    torch.testing.assert_close(found, Ensemble(heard, vote=vote)(features), rtol=0, atol=1e-13)


def test_the_last_voice_cannot_be_silenced():
    ensemble = Ensemble(members(2))
    ensemble.silence(1)
    with pytest.raises(ModelError, match="last voting member"):
        ensemble.silence(0)
    assert ensemble.voting.tolist() == [True, False]
    with pytest.raises(ModelError, match="an ensemble of 0 models"):
        Ensemble([])


@pytest.mark.parametrize("vote", ["mean", "majority"])
def test_no_logit_and_no_loss_is_infinite(vote):
    sure = nn.Linear(1, 2)
    nn.init.zeros_(sure.weight)
    sure.bias.data = torch.tensor([500.0, -500.0])
    ensemble = Ensemble([sure, copy.deepcopy(sure)], vote=vote)
    logits = ensemble(torch.zeros(3, 1))
    assert logits.isfinite().all()
    assert cross_entropy(logits, torch.ones(3, dtype=torch.long)).isfinite()


def test_the_gradient_of_a_mean_vote_passes_a_silenced_member_by(features):
    ensemble = Ensemble(members())
    ensemble.silence(1)
    ensemble(features).square().sum().backward()
    gradients = [member.weight.grad for member in ensemble.members]
    assert gradients[0].abs().sum() > 0
    assert not gradients[1].any()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_settings_build_an_ensemble_of_equal_members_with_the_seed_s_weights():
    single = ModelSettings(hidden=(4,))
    several = single.model_copy(update={"members": 3, "vote": "majority"})
    ensemble = new_model(several, (5,), 2, seed=7)
    assert isinstance(ensemble, Ensemble)
    assert ensemble.vote == "majority"
    expected = weights_digest(new_model(single, (5,), 2, seed=7))
    assert [weights_digest(member) for member in ensemble.members] == [expected] * 3
    pointers = {parameter.data_ptr() for parameter in ensemble.parameters()}
    assert len(pointers) == 12


def test_who_votes_is_saved_with_the_weights_and_part_of_their_digest(tmp_path):
    settings = ModelSettings(hidden=(4,), members=3)
    ensemble = new_model(settings, (5,), 2, seed=0)
    before = weights_digest(ensemble)
    ensemble.silence(1)
    assert weights_digest(ensemble) != before
    save_weights(ensemble, tmp_path / "ensemble.pt")
    other = load_weights(new_model(settings, (5,), 2, seed=9), tmp_path / "ensemble.pt")
    assert other.voting.tolist() == [True, False, True]
    assert weights_digest(other) == weights_digest(ensemble)


@pytest.mark.parametrize("vote", ["mean", "majority"])
def test_exports_for_any_number_of_rows(vote, features):
    ensemble = Ensemble([normalised() for _ in range(2)], vote=vote).eval()
    ensemble.silence(0)
    rows = {0: torch.export.Dim("rows", min=1)}
    exported = torch.export.export(ensemble, (features[:2],), dynamic_shapes=(rows,)).module()
    for count in (1, 2, 40):
        torch.testing.assert_close(exported(features[:count]), ensemble(features[:count]))
