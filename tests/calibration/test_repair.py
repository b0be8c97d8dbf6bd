"""Repairs of the weights, on a logistic regression that was made over-confident."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from puma.calibration import calibrate_directly, hard_ece, measure, patch, reliability_of
from puma.data import Dataset, Examples
from puma.errors import DataError, SettingsError
from puma.influence import Curvature, FlatModel, SoftECE
from tests.cases import DOUBLE, linear, logistic, mlp, normalised, random_examples
from tests.oracles import (
    LogisticRegression,
    dense_gauss_newton,
    flat_parameters,
    per_example_gradients,
    per_example_losses,
)

PLANTED = 3.0


def classes_from(theta: torch.Tensor, n: int, seed: int) -> Examples:
    """Labels drawn from the softmax regression ``theta``: it is calibrated on them."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 3, generator=generator, dtype=DOUBLE)
    probabilities = (features @ theta.view(3, 3).T).softmax(1)
    return Examples.of(features, torch.multinomial(probabilities, 1, generator=generator)[:, 0])


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    generator = torch.Generator().manual_seed(5)
    theta = 1.5 * torch.randn(9, generator=generator, dtype=DOUBLE)
    parts = [classes_from(theta, n, seed) for n, seed in ((600, 1), (1500, 2))]
    return Dataset("planted", *parts, ("a", "b", "c"))


@pytest.fixture(scope="module")
def optimum(dataset) -> torch.Tensor:
    return LogisticRegression(dataset.train, decay=1e-3).optimum()


@pytest.fixture(scope="module")
def sharp(optimum) -> nn.Module:
    """The optimum with its weights, and so its logits, times three."""
    return logistic(PLANTED * optimum, 3)


@pytest.fixture(scope="module")
def dense(dataset, sharp) -> SimpleNamespace:
    """Of the training rows at ``sharp``: ∇L_i, H = Gauss-Newton + 0.1, and ψ for the soft error."""
    train = dataset.train
    gradients, matrix = per_example_gradients(sharp, train), dense_gauss_newton(sharp, train)
    matrix = matrix + 0.1 * torch.eye(len(matrix), dtype=DOUBLE)
    preserved = torch.linalg.solve(matrix, SoftECE(train).gradient(FlatModel(sharp)))
    return SimpleNamespace(gradients=gradients, matrix=matrix, psi=gradients @ preserved)


def groups(confident=(), uncertain=(), noise=()):
    lists = [torch.tensor(rows, dtype=torch.long) for rows in (confident, uncertain, noise)]
    names = ("over_confident", "over_uncertain", "other_noise")
    return SimpleNamespace(**dict(zip(names, lists, strict=True)))


GROUPS = groups(confident=range(12), uncertain=range(20, 50), noise=range(60, 70))


# --- the step on the error itself ---


def test_the_direct_steps_undo_the_planted_over_confidence(dataset, optimum, sharp):
    repair = calibrate_directly(sharp, dataset, curvature=Curvature(damping=0.01))
    reached = flat_parameters(repair.model)
    scale = float(reached @ optimum / (optimum @ optimum))
    assert scale == pytest.approx(1, abs=0.2)
    assert float(reached @ optimum / reached.norm() / optimum.norm()) > 0.97
    assert repair.before.soft_ece > 0.1
    assert repair.after.soft_ece < 0.02
    assert repair.after.accuracy >= repair.before.accuracy - 0.01
    # Rows that nothing was fitted on tell the same.
    unseen = SoftECE(dataset.test)
    assert measure(repair.model, unseen).hard_ece < measure(sharp, unseen).hard_ece / 3


def test_every_direct_step_lowers_what_is_measured_and_tells_it(dataset, sharp):
    criterion = SoftECE(dataset.test)
    repair = calibrate_directly(sharp, dataset, criterion=criterion, steps=3)
    first, *others = repair.steps
    assert first.dose > 0
    assert all(step.change < 0 for step in repair.steps if step.dose > 0)
    assert all(step.dose > 0 for step in repair.steps[:-1])
    change = sum(step.change for step in (first, *others))
    assert repair.after.soft_ece - repair.before.soft_ece == pytest.approx(change, rel=1e-9)
    assert repair.dose == pytest.approx(sum(step.dose for step in repair.steps))


def test_a_direct_step_goes_along_the_dense_solution(dataset, sharp):
    criterion = SoftECE(dataset.train)
    repair = calibrate_directly(sharp, dataset.train, criterion=criterion, steps=1, solver="dense")
    (step,) = repair.steps
    matrix = dense_gauss_newton(sharp, dataset.train) + 0.1 * torch.eye(9, dtype=DOUBLE)
    gradient = criterion.gradient(FlatModel(sharp))
    expected = -torch.linalg.solve(matrix, gradient)
    moved = flat_parameters(repair.model) - flat_parameters(sharp)
    torch.testing.assert_close(moved, step.dose * expected, rtol=1e-7, atol=1e-10)
    assert step.predicted == pytest.approx(step.dose * float(gradient @ expected), rel=1e-7)


def test_the_dose_is_at_least_as_good_as_a_fine_grid(dataset, sharp):
    criterion = SoftECE(dataset.train)
    repair = calibrate_directly(sharp, dataset, criterion=criterion, steps=1, solver="dense")
    flat = FlatModel(sharp)
    unit = (flat_parameters(repair.model) - flat.vector) / repair.dose
    doses = torch.linspace(repair.dose / 1.8, repair.dose * 1.8, 60).tolist()
    best = min(criterion.value(flat, flat.vector + dose * unit) for dose in doses)
    assert repair.after.soft_ece <= best + 2e-3


def test_a_repair_that_cannot_help_has_dose_0_and_the_same_weights():
    # All answers alike at any small step, with confidence equal to accuracy: nothing to win.
    examples = Examples.of(torch.zeros(4, 3, dtype=DOUBLE), torch.tensor([0, 1, 0, 1]))
    model = nn.Linear(3, 2, dtype=DOUBLE)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    repair = calibrate_directly(model, examples)
    assert repair.dose == 0
    assert [step.dose for step in repair.steps] == [0]
    assert repair.steps[0].change == 0
    assert repair.before == repair.after
    assert torch.equal(flat_parameters(repair.model), flat_parameters(model))


def test_the_bound_on_the_loss_holds(dataset, optimum):
    # At the optimum of the loss any lower calibration error costs some of it.
    model = logistic(optimum, 3)
    for bound in (0.0, 1e-3):
        repair = calibrate_directly(model, dataset, max_loss_rise=bound)
        assert repair.after.loss <= repair.before.loss + bound + 1e-12
    free = calibrate_directly(model, dataset, max_loss_rise=math.inf)
    assert free.after.soft_ece <= repair.after.soft_ece + 1e-3


@pytest.mark.parametrize("bound", [0.0, 0.01])
def test_the_bound_on_the_accuracy_holds(dataset, sharp, dense, bound):
    harmful = groups(confident=dense.psi.argsort()[:60].tolist())
    for repair in (
        calibrate_directly(sharp, dataset, max_accuracy_loss=bound, steps=2),
        patch(sharp, dataset, harmful, max_accuracy_loss=bound),
    ):
        assert repair.dose > 0
        assert repair.after.accuracy >= repair.before.accuracy - bound - 1e-12


def test_without_that_bound_a_better_loss_pays_for_wrong_answers(dataset, sharp):
    repair = calibrate_directly(sharp, dataset, max_accuracy_loss=1.0)
    assert repair.after.loss < repair.before.loss
    assert repair.after.accuracy < repair.before.accuracy - 0.01


# --- the patch ---


def dense_direction(dense, removed, weights) -> torch.Tensor:
    """(1/n)·H⁻¹(Σ_removed ∇L − Σ weights·∇L)."""
    gradients = dense.gradients
    total = gradients[removed].sum(0) - sum(w * gradients[row] for row, w in weights.items())
    return torch.linalg.solve(dense.matrix, total) / len(gradients)


@pytest.mark.parametrize(("reweighting", "weight"), [("one", 1.0), ("none", 0.0)])
def test_the_printed_rate_on_sums_is_a_dose_of_eta_n(dataset, sharp, dense, reweighting, weight):
    repair = patch(sharp, dataset, GROUPS, eta=1e-4, reweighting=reweighting, solver="dense")
    weights = dict.fromkeys(range(20, 50), weight)
    removed = [*range(12), *range(60, 70)]
    expected = dense_direction(dense, removed, weights)
    assert repair.dose == pytest.approx(1e-4 * 600)
    moved = flat_parameters(repair.model) - flat_parameters(sharp)
    torch.testing.assert_close(moved, 1e-4 * 600 * expected, rtol=1e-7, atol=1e-12)


def test_solved_weights_preserve_the_criterion_to_first_order(dataset, sharp):
    free = {"max_weight": math.inf, "l2": 0.0, "solver": "dense"}
    printed = patch(sharp, dataset, GROUPS, eta=1e-6, **free)
    (step,) = printed.steps
    (plain,) = patch(sharp, dataset, GROUPS, eta=1e-6, reweighting="none").steps
    assert abs(step.predicted) < 1e-9 * abs(plain.predicted)
    assert abs(step.change) < 1e-2 * abs(plain.change)
    assert plain.change == pytest.approx(plain.predicted, rel=1e-2)


def test_solved_weights_are_the_minimum_norm_solution_of_equation_10(dataset, sharp, dense):
    repair = patch(sharp, dataset, GROUPS, eta=1e-3, max_weight=math.inf, l2=0.0, solver="dense")
    psi = dense.psi
    removed, up = [*range(12), *range(60, 70)], list(range(20, 50))
    weights = psi[up] * psi[removed].sum() / (psi[up] @ psi[up])
    expected = dense_direction(dense, removed, dict(zip(up, weights.tolist(), strict=True)))
    moved = flat_parameters(repair.model) - flat_parameters(sharp)
    torch.testing.assert_close(moved, 1e-3 * 600 * expected, rtol=1e-6, atol=1e-11)


@pytest.mark.parametrize("reweighting", ["solved", "one", "none"])
def test_a_searched_patch_never_raises_the_criterion(dataset, sharp, reweighting):
    criterion = SoftECE(dataset.test)
    repair = patch(sharp, dataset, GROUPS, criterion=criterion, reweighting=reweighting)
    (step,) = repair.steps
    assert (step.change < 0) == (step.dose > 0)
    assert repair.after.soft_ece <= repair.before.soft_ece
    assert repair.after.soft_ece - repair.before.soft_ece == pytest.approx(step.change, abs=1e-12)


def test_removing_the_rows_of_lowest_psi_lowers_the_criterion(dataset, sharp, dense):
    rows = groups(confident=dense.psi.argsort()[:60].tolist())
    # So small that no answer changes: there the error jumps.
    (small,) = patch(sharp, dataset, rows, eta=1e-7, solver="dense").steps
    expected = 1e-7 * float(dense.psi[rows.over_confident].sum())
    assert small.predicted == pytest.approx(expected, rel=1e-9)
    assert small.change == pytest.approx(small.predicted, rel=1e-3)
    searched = patch(sharp, dataset, rows)
    assert searched.after.soft_ece < searched.before.soft_ece - 1e-3


def test_up_weighting_rows_of_negative_psi_gives_some_of_it_away(dataset, sharp, dense):
    # Appendix E takes all three groups from the lowest ψ.
    order = dense.psi.argsort()[:60].tolist()
    given = groups(confident=order[:30], uncertain=order[30:])
    predicted = {
        name: patch(sharp, dataset, given, eta=1e-4, reweighting=name).steps[0].predicted
        for name in ("none", "solved", "one")
    }
    assert predicted["none"] < predicted["solved"] <= predicted["one"]


def test_removing_what_helps_reports_dose_0(dataset, sharp, dense):
    # The rows of highest ψ lower C: going the other way, at any dose searched, raises it.
    flat = FlatModel(sharp)
    helpful = groups(confident=dense.psi.argsort()[-30:].tolist())
    repair = patch(sharp, dataset, helpful, max_dose=1.0)
    assert repair.dose == 0
    assert torch.equal(flat_parameters(repair.model), flat.vector)
    assert repair.before == repair.after


def test_groups_that_cancel_leave_everything(dataset, sharp):
    # Only rows to up-weight, and nothing for Eq. 10 to make up for: λ = 0.
    repair = patch(sharp, dataset, groups(uncertain=range(5)))
    assert repair.dose == 0
    repair = patch(sharp, dataset, groups(uncertain=range(5)), reweighting="one", eta=1e-3)
    assert not torch.equal(flat_parameters(repair.model), flat_parameters(sharp))


# --- both ---


def test_what_is_told_is_what_the_models_say(dataset, sharp):
    criterion = SoftECE(dataset.test, bins=10)
    repair = calibrate_directly(sharp, dataset, criterion=criterion, steps=1)
    for model, told in ((sharp, repair.before), (repair.model, repair.after)):
        features, labels = dataset.test.features, dataset.test.labels
        probabilities = model(features).softmax(1)
        flat = FlatModel(model)
        assert told.soft_ece == criterion.value(flat, flat.vector)
        assert told.hard_ece == pytest.approx(hard_ece(probabilities, labels, bins=10), rel=1e-9)
        right = (probabilities.argmax(1) == labels).double().mean().item()
        assert told.accuracy == pytest.approx(right)
        loss = per_example_losses(model, dataset.test).mean().item()
        assert told.loss == pytest.approx(loss, rel=1e-12)
        again = reliability_of(model, dataset.test, bins=10)
        assert again.ece == pytest.approx(told.hard_ece, rel=1e-12)


@pytest.mark.parametrize("build", [mlp, normalised])
def test_the_original_its_mode_and_the_random_state_stay(build):
    model = build().train()
    modes = [module.training for module in model.modules()]
    data = Dataset("toy", random_examples(40, 3), random_examples(20, 3, seed=1), ("a", "b", "c"))
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    few = groups(confident=range(4), uncertain=range(6, 9))
    for repair in (
        calibrate_directly(model, data, steps=2),
        patch(model, data, few, reweighting="none", eta=1e-3),
        patch(model, data, few),
    ):
        assert not repair.model.training
        assert repair.model is not model
    assert [module.training for module in model.modules()] == modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_curvature_is_the_callers(dataset, sharp):
    stiff = Curvature(damping=1e6)
    repair = calibrate_directly(sharp, dataset, curvature=stiff, max_dose=1e7, steps=1)
    moved = flat_parameters(repair.model) - flat_parameters(sharp)
    gradient = SoftECE(dataset.train).gradient(FlatModel(sharp))
    # Damping far above the curvature: what is left is steepest descent.
    cosine = float(-moved @ gradient / moved.norm() / gradient.norm())
    assert cosine == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (groups(confident=[3], uncertain=[3]), "1 rows are to be removed and up-weighted at once"),
        (groups(), "the groups hold no row"),
        (groups(noise=[600]), "outside of the 600 training rows"),
        (groups(noise=[-1]), "outside of the 600 training rows"),
        (
            SimpleNamespace(**{**vars(groups()), "other_noise": torch.tensor([True])}),
            r"long indices, got shape \(1,\) of torch.bool",
        ),
    ],
)
def test_groups_that_do_not_fit_are_refused(dataset, sharp, given, message):
    with pytest.raises(DataError, match=message):
        patch(sharp, dataset, given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reweighting": "both"}, "reweighting must be one of solved, one, none, got 'both'"),
        ({"eta": 0.0}, "eta must be finite and > 0, got 0.0"),
        ({"max_dose": 0.0}, "max_dose must be finite and > 0, got 0.0"),
        ({"max_loss_rise": -1.0}, "max_loss_rise must be >= 0 nats, got -1.0"),
        ({"max_loss_rise": math.nan}, "max_loss_rise must be >= 0 nats, got nan"),
        ({"max_accuracy_loss": 1.5}, "max_accuracy_loss must be between 0 and 1, got 1.5"),
    ],
)
def test_impossible_settings_are_refused(dataset, sharp, settings, message):
    with pytest.raises(SettingsError, match=message):
        patch(sharp, dataset, GROUPS, **settings)


def test_no_steps_and_no_rows_are_refused(dataset, sharp):
    with pytest.raises(SettingsError, match="steps must be >= 1, got 0"):
        calibrate_directly(sharp, dataset, steps=0)
    none = random_examples(3, 3).subset(torch.tensor([], dtype=torch.long))
    with pytest.raises(DataError, match="needs at least one example, got 0"):
        calibrate_directly(linear(), none)
    with pytest.raises(DataError, match="the reliability needs at least one example, got 0"):
        reliability_of(linear(), none)
