"""PUMA against true retraining and against the same step computed with dense matrices."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from puma.errors import DeletionError
from puma.removal import PUMA
from puma.removal.puma.method import ONE_STEP
from puma.requests.deletion_set import DeletionSet
from puma.settings import TrainingSettings
from tests.removal.conftest import WEIGHT_DECAY, Problem, blobs, flat, optimum

REGULARISED = TrainingSettings(weight_decay=WEIGHT_DECAY)
NO_WEIGHTS = {"reweighting": "never"}
EXACT = {"damping": 1e-9, "tolerance": 1e-10}
UNBOUNDED = {"budget": 1e6}  # the dose is then max_dose


def one_step(**settings: object) -> PUMA:
    return PUMA(**{"training": REGULARISED, **ONE_STEP, **settings})


def request(problem: Problem, rows: Tensor) -> DeletionSet:
    return DeletionSet.of(problem.dataset.train.subject_ids[rows.numpy()].tolist(), problem.dataset)


def gradient(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """(p,) of the mean loss, by plain autograd."""
    loss = cross_entropy(model(features), labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def test_one_row_matches_retraining_within_one_percent(problem):
    train, worst = problem.dataset.train, 0.0
    for row in (0, 17, 201):
        removal = one_step(max_dose=1.0, **UNBOUNDED, **EXACT, **NO_WEIGHTS).remove(
            problem.trained, request(problem, torch.tensor([row]))
        )
        rest = train.without(torch.tensor([row]))
        truth = flat(optimum(rest, objective_rows=len(train), start=problem.trained.initial))
        moved = (truth - flat(problem.trained.predictor)).norm()
        worst = max(worst, float((flat(removal.predictor) - truth).norm() / moved))
        assert removal.parameters["dose"] == 1.0
    assert worst < 0.01


@pytest.mark.parametrize(("weighted", "negligible"), [(False, 0), (True, 0), (False, 0.3)])
def test_step_equals_the_dense_computation(problem, weighted, negligible):
    train, model, rows = problem.dataset.train, problem.trained.predictor, torch.arange(0, 60, 2)
    penalties = {} if weighted else NO_WEIGHTS
    removal = one_step(
        damping=0.05,
        tolerance=1e-11,
        max_dose=3.0,
        negligible=negligible,
        **UNBOUNDED,
        **penalties,
    ).remove(problem.trained, request(problem, rows))

    kept = torch.ones(len(train), dtype=torch.bool)
    kept[rows] = False

    def retained_loss(vector: Tensor) -> Tensor:
        logits = train.features[kept] @ vector[:6].view(2, 3).T + vector[6:]
        return cross_entropy(logits, train.labels[kept])

    # For a linear model the Gauss-Newton matrix is the Hessian.
    hessian = torch.autograd.functional.hessian(retained_loss, flat(model))
    inverse = torch.linalg.inv(hessian + (0.05 + WEIGHT_DECAY) * torch.eye(8, dtype=hessian.dtype))
    each = torch.stack(
        [gradient(model, train.features[i : i + 1], train.labels[i : i + 1]) for i in range(400)]
    )
    step = each[rows].sum(0)
    if negligible:  # of a linear model, cross-entropy's gradient in the logits is that of the bias
        sizes, order = each[rows, 6:].norm(dim=1).sort()
        left_out = order[sizes.cumsum(0) <= negligible * sizes.sum()]
        assert 5 < len(left_out) < 25
        step = step - each[rows[left_out]].sum(0)
    if weighted:
        psi = each @ inverse @ gradient(model, train.features[kept], train.labels[kept])
        # Without bounds in reach, the ridge solution of Eq. 10 is this closed form.
        q, target = psi[kept], psi[rows].sum()
        weights = target * q / (q @ q + 1e-6)
        assert weights.abs().max() < 1
        step = step - weights @ each[kept]
        torch.testing.assert_close(removal.row_weights.scores, psi, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(
            removal.row_weights.weights[kept], weights, rtol=1e-8, atol=1e-10
        )
        assert not removal.row_weights.weights[rows].any()
    else:
        assert removal.row_weights is None  # neither was computed
    expected = flat(model) + 3.0 / 400 * inverse @ step
    torch.testing.assert_close(flat(removal.predictor), expected, rtol=1e-8, atol=1e-10)


def test_weights_cancel_the_first_order_change_of_the_criterion(problem):
    rows = torch.arange(0, 60, 2)
    retained = problem.dataset.train.without(rows)
    slope = gradient(problem.trained.predictor, retained.features, retained.labels)

    def first_order(**penalties: float) -> float:
        removal = one_step(max_dose=1.0, **UNBOUNDED, **penalties).remove(
            problem.trained, request(problem, rows)
        )
        return float(slope @ (flat(removal.predictor) - flat(problem.trained.predictor)))

    assert abs(first_order(l2=1e-9)) < 1e-3 * abs(first_order(**NO_WEIGHTS))


def test_dose_is_the_largest_that_keeps_the_budget(problem):
    rows, budget = torch.arange(0, 60, 2), 1e-4
    removal = one_step(budget=budget, max_dose=1e6).remove(problem.trained, request(problem, rows))
    retained = problem.dataset.train.without(rows)

    def drift(stretch: float) -> float:
        before, after = flat(problem.trained.predictor), flat(removal.predictor)
        model = copy.deepcopy(problem.trained.predictor)
        losses = []
        for vector in (before, before + stretch * (after - before)):
            nn.utils.vector_to_parameters(vector, model.parameters())
            losses.append(cross_entropy(model(retained.features), retained.labels).item())
        return losses[1] - losses[0]

    assert abs(drift(1.0)) <= budget < abs(drift(1.03))
    assert removal.criterion_drift == pytest.approx(drift(1.0), rel=1e-6)
    assert removal.parameters["budget"] == budget


def test_removed_rows_lose_and_the_original_is_untouched(problem):
    rows = torch.arange(0, 60, 2)
    before = flat(problem.trained.predictor).clone()
    problem.trained.predictor.train()
    removal = one_step().remove(problem.trained, request(problem, rows))
    removed = problem.dataset.train.subset(rows)
    losses = [
        cross_entropy(model(removed.features), removed.labels).item()
        for model in (problem.trained.predictor, removal.predictor)
    ]
    assert losses[1] > losses[0]
    assert torch.equal(flat(problem.trained.predictor), before)
    assert problem.trained.predictor.training
    assert removal.n_removed == 30


def test_refuses_a_deletion_set_of_other_data(problem):
    other = copy.copy(problem.dataset)
    object.__setattr__(other, "train", blobs(400, seed=9))
    with pytest.raises(DeletionError, match="checked against other data"):
        PUMA().remove(problem.trained, DeletionSet.of(["3"], other))


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match="dampening"):
        PUMA(dampening=0.1)


def test_global_random_state_is_untouched(problem):
    before = torch.random.get_rng_state()
    one_step(budget=1e-4).remove(problem.trained, request(problem, torch.arange(5)))
    assert torch.equal(torch.random.get_rng_state(), before)
