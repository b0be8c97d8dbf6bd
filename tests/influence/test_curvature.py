from __future__ import annotations

import pytest
import torch

from puma.errors import DataError, ModelError, SettingsError
from puma.influence import (
    CURVATURES,
    ConjugateGradients,
    Curvature,
    FlatModel,
    LiSSA,
    Woodbury,
    influence_scores,
    sampled,
)
from puma.influence.solvers.cholesky import materialise
from tests.cases import DOUBLE, convolutional, mlp, random_examples
from tests.oracles import dense_gauss_newton, dense_hessian
from tests.states import state_of

ORACLES = {
    "gauss_newton": dense_gauss_newton,
    "gauss_newton_rows": dense_gauss_newton,  # all rows fit
    "hessian": dense_hessian,
}


@pytest.mark.parametrize("sample", [None, 5])
@pytest.mark.parametrize("kind", CURVATURES)
def test_a_curvature_makes_its_damped_operator(kind, sample):
    model, examples = mlp(), random_examples(11, 3)
    settings = Curvature(kind, damping=0.3, sample=sample, seed=2)
    operator = settings.operator(FlatModel(model), examples)
    used = examples if sample is None else sampled(examples, sample, seed=2)
    expected = ORACLES[kind](model, used) + 0.3 * torch.eye(38, dtype=DOUBLE)
    torch.testing.assert_close(materialise(operator), expected, rtol=1e-12, atol=1e-12)


def test_a_sample_is_seeded_ordered_and_without_repetition():
    examples, before = random_examples(20, 3), torch.get_rng_state()
    first, again, other = (sampled(examples, 8, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    rows = first.subject_ids.astype(int)
    assert (rows[1:] > rows[:-1]).all()
    assert torch.equal(first.features, examples.features[torch.from_numpy(rows)])
    assert (first.subject_ids == again.subject_ids).all()
    assert (first.subject_ids != other.subject_ids).any()
    assert sampled(examples, 20) is sampled(examples, 99) is examples
    drawn = sum(sampled(examples, 5, seed=s).subject_ids.tolist().count("3") for s in range(400))
    assert 60 < drawn < 140  # 100 expected
    with pytest.raises(SettingsError, match=r"seed must be a whole number.*got -1"):
        sampled(examples, 8, seed=-1)


SOLVERS = {
    "cg": ConjugateGradients(),
    "cg with woodbury": ConjugateGradients(preconditioner=Woodbury(rows=4)),
    "lissa": LiSSA(steps=5, batch_size=5, tolerance=0.99),
    "woodbury": Woodbury(rows=4),
    "dense": "dense",
}


@pytest.mark.parametrize("fails", [False, True], ids=["success", "exception"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_leaves_the_model_and_the_random_state_alone(solver, fails, monkeypatch):
    model, examples = convolutional().train(), random_examples(11, 1, 4, 4)
    model[1].eval()  # a mode of its own
    model[0].weight.requires_grad_(False)
    model[7].weight.grad = torch.ones_like(model[7].weight)
    before = state_of(model)
    if fails:
        calls = []

        def failing(self, vector, features, logits=FlatModel.logits):
            calls.append(1)
            if len(calls) > 3:
                raise ModelError("on purpose")
            return logits(self, vector, features)

        monkeypatch.setattr(FlatModel, "logits", failing)
        with pytest.raises(ModelError, match="on purpose"):
            influence_scores(model, examples, solver=SOLVERS[solver], damping=1)
    else:
        scores = influence_scores(model, examples, solver=SOLVERS[solver], damping=2.0, sample=9)
        assert scores.shape == (11,)
    torch.testing.assert_close(state_of(model), before, rtol=0, atol=0)


def test_bad_settings_are_refused():
    with pytest.raises(SettingsError, match="unknown curvature 'fisher'; choose one of gauss_new"):
        Curvature("fisher")
    with pytest.raises(SettingsError, match="damping must be finite and >= 0, got -1"):
        Curvature(damping=-1)
    with pytest.raises(SettingsError, match="sample must be >= 1, got 0; pass an integer"):
        Curvature(sample=0)
    none = random_examples(3, 3).subset(torch.tensor([], dtype=torch.long))
    with pytest.raises(DataError, match="a sample needs at least one example, got 0"):
        sampled(none, 3)
