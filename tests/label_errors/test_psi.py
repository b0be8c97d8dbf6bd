from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from puma.data import Dataset
from puma.errors import DataError, SettingsError
from puma.influence import CRITERIA, FlatModel, MeanLoss, SoftECE, TrainingObjective
from puma.label_errors import (
    NTK,
    Psi,
    WeakSignalWarning,
    signal_strength,
)
from tests.cases import DOUBLE, linear, logistic, mlp, problem, random_examples
from tests.label_errors.problems import DECAY, PLANTED, SHARP, planted, tiny
from tests.oracles import (
    LogisticRegression,
    dense_gauss_newton,
    flat_parameters,
    per_example_gradients,
)

EXPECTED = {
    "training_loss": lambda m, d: (
        per_example_gradients(m, d.train).mean(0) + DECAY * flat_parameters(m)
    ),
    "unregularised_loss": lambda m, d: per_example_gradients(m, d.train).mean(0),
    "validation_loss": lambda m, d: per_example_gradients(m, d.test).mean(0),
    "soft_ece": lambda m, d: SoftECE(d.train).gradient(FlatModel(m)),
}


@pytest.mark.parametrize("criterion", CRITERIA)
def test_psi_is_minus_the_explicit_inverse_times_explicit_gradients(criterion):
    model, dataset = mlp(), tiny()
    gradient = EXPECTED[criterion](model, dataset)
    matrix = dense_gauss_newton(model, dataset.train) + 0.1 * torch.eye(38, dtype=DOUBLE)
    expected = -per_example_gradients(model, dataset.train) @ torch.linalg.solve(matrix, gradient)
    ranker = Psi(criterion, weight_decay=DECAY, solver=SHARP, check=False)
    suspicion = ranker.suspicion(model, dataset)
    torch.testing.assert_close(suspicion, expected, rtol=1e-11, atol=1e-12)
    assert torch.equal(suspicion.argsort(), expected.argsort())


@pytest.mark.parametrize("explicit", [False, True], ids=["jvp", "gradients"])
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("name", ["linear", "mlp", "tied", "normalised", "convolutional"])
def test_ntk_is_minus_the_product_of_explicit_gradients(name, criterion, explicit):
    model, train = problem(name, 13)
    shape = train.features.shape[1:]
    dataset = Dataset("tiny", train, random_examples(5, *shape, seed=1), ("a", "b", "c"))
    expected = -per_example_gradients(model, train) @ EXPECTED[criterion](model, dataset)
    ranker = NTK(criterion, weight_decay=DECAY, per_example_gradients=explicit, check=False)
    torch.testing.assert_close(ranker.suspicion(model, dataset), expected, rtol=1e-11, atol=1e-12)


def test_psi_of_the_wrong_label_is_negative_and_leaving_it_out_helps():
    model, dataset = planted()
    suspicion = Psi(damping=DECAY, solver=SHARP).suspicion(model, dataset)
    weights = torch.ones(40, dtype=DOUBLE)
    weights[PLANTED] = 0
    closed = LogisticRegression(dataset.train, decay=DECAY)
    without, whole = closed.optimum(weights), closed.optimum()
    gained = closed.mean_loss(whole, dataset.test) - closed.mean_loss(without, dataset.test)
    assert gained > 0
    # Leaving one out changes C by psi/n to first order; the row weighs a lot, so roughly.
    assert suspicion[PLANTED] / 40 == pytest.approx(gained, rel=0.3)


def test_the_training_objective_and_its_gradient():
    train, flat = random_examples(13, 3), FlatModel(linear())
    objective = TrainingObjective(train, weight_decay=DECAY)
    squared = float(flat.vector.square().sum())
    assert objective.value(flat, flat.vector) == pytest.approx(
        LogisticRegression(train, decay=0).mean_loss(flat.vector, train) + DECAY / 2 * squared
    )
    step = torch.zeros(flat.size, dtype=DOUBLE)
    step[4] = 1e-6
    slope = objective.value(flat, flat.vector + step) - objective.value(flat, flat.vector - step)
    assert objective.gradient(flat)[4] == pytest.approx(slope / 2e-6, rel=1e-7)
    optimum = LogisticRegression(train, decay=DECAY).optimum()
    assert objective.gradient(FlatModel(logistic(optimum, 3))).norm() < 1e-13


@pytest.mark.parametrize("ranker", [Psi("training_loss"), NTK("training_loss")])
def test_noise_at_an_exact_optimum_is_warned_of(ranker):
    model, dataset = planted()
    with pytest.warns(WeakSignalWarning, match=r"training_loss is \d\S* times as long .*'loss'"):
        replace(ranker, weight_decay=DECAY).suspicion(model, dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replace(ranker, weight_decay=DECAY, check=False).suspicion(model, dataset)


@pytest.mark.parametrize("kind", [Psi, NTK])
def test_a_validation_loss_that_the_wrong_labels_raised_is_not_warned_of(kind):
    dataset = planted()[1]
    labels = dataset.train.labels.clone()
    labels[:15] = 0  # half of the other class
    flipped = labels != dataset.train.labels
    wrong = replace(dataset, train=replace(dataset.train, labels=labels))
    theta = LogisticRegression(wrong.train, decay=DECAY).optimum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        suspicion = kind("validation_loss").suspicion(logistic(theta, 2), wrong)
    assert suspicion[flipped].min() > suspicion[~flipped].median()


def test_signal_strength_is_the_length_in_units_of_random_signs():
    model, dataset = mlp(), tiny(40)
    flat = FlatModel(model)
    gradients = per_example_gradients(model, dataset.train)
    matrix = dense_gauss_newton(model, dataset.train) + 0.1 * torch.eye(38, dtype=DOUBLE)
    for inverse, invert in (
        (torch.eye(38, dtype=DOUBLE), None),
        (torch.linalg.inv(matrix), lambda vector: torch.linalg.solve(matrix, vector)),
    ):
        mean = gradients.mean(0)
        # Half of the signs +, half -: pairs of signs have a mean product of -1/(n-1).
        centred = gradients - mean
        chance = (centred @ inverse * centred).sum() / (40 * 39)
        expected = (mean @ inverse @ mean / chance).sqrt()
        # Eight draws for the mean square: within a quarter, and without bias over seeds.
        measured = torch.tensor(
            [
                signal_strength(flat, dataset, "unregularised_loss", invert=invert, seed=seed)
                for seed in range(30)
            ]
        )
        assert (measured / expected - 1).abs().max() < 0.4
        average = measured.double().pow(-2).mean().rsqrt()
        assert average == pytest.approx(expected.item(), rel=0.05)


def test_signal_strength_knows_no_scale_and_its_limits():
    model, dataset = planted()
    flat = FlatModel(model)
    strength = signal_strength(flat, dataset, "validation_loss")
    tripled = signal_strength(flat, dataset, "validation_loss", invert=lambda vector: 3 * vector)
    assert strength == pytest.approx(tripled, rel=1e-12)
    assert signal_strength(flat, dataset, "training_loss", weight_decay=DECAY) < 1e-12
    single = replace(dataset, test=dataset.test.subset(torch.tensor([0])))
    assert signal_strength(flat, single, "validation_loss") == torch.inf
    with pytest.raises(SettingsError, match=r"seed must be a whole number.*got -1"):
        signal_strength(flat, dataset, "validation_loss", seed=-1)


def test_criteria_are_over_the_rows_they_name():
    dataset = tiny()
    for name, rows in (("unregularised_loss", dataset.train), ("validation_loss", dataset.test)):
        criterion = CRITERIA[name](dataset, 0.0)
        assert isinstance(criterion, MeanLoss)
        assert criterion.examples is rows


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Psi("accuracy"), "unknown criterion 'accuracy'; choose one of soft_ece, training"),
        (lambda: NTK("accuracy"), "unknown criterion 'accuracy'"),
        (lambda: Psi(damping=-1), "damping must be finite and >= 0, got -1"),
        (lambda: Psi(curvature="fisher"), "unknown curvature 'fisher'"),
        (lambda: Psi(solver="qr"), "unknown solver 'qr'"),
        (lambda: Psi(weight_decay=-0.1), "weight_decay must be finite and >= 0, got -0.1"),
        (lambda: NTK(weight_decay=torch.nan), "weight_decay must be finite and >= 0, got nan"),
    ],
)
def test_settings_that_cannot_be_are_refused(build, message):
    with pytest.raises(SettingsError, match=message):
        build()


def test_an_objective_without_examples_is_refused():
    with pytest.raises(DataError, match="at least one example, got 0"):
        TrainingObjective(random_examples(0, 3))
