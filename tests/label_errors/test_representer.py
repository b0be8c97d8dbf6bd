from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from puma.data import Dataset
from puma.errors import DataError, ModelError, SettingsError, SolverError
from puma.label_errors import Representer
from tests.cases import DOUBLE, convolutional, linear, logistic, mlp, random_examples, repeated
from tests.label_errors.problems import tiny
from tests.oracles import LogisticRegression

SHARP = Representer(regularisation=0.05, tolerance=1e-13)


@pytest.mark.parametrize("build", [mlp, linear, convolutional], ids=["mlp", "linear", "pictures"])
def test_logits_of_every_row_are_the_sum_over_the_representer_points(build):
    shape = (1, 4, 4) if build is convolutional else (3,)
    found = SHARP.represent(build(), random_examples(25, *shape))
    kernel = found.features @ found.features.T
    torch.testing.assert_close(
        kernel @ found.alpha, found.features @ found.weights.T, rtol=1e-8, atol=1e-9
    )


def test_features_are_what_enters_the_last_layer_and_a_one_for_its_bias():
    model, examples = mlp(), random_examples(25, 3)
    features = SHARP.represent(model, examples).features
    hidden = model[:2](examples.features).detach()
    torch.testing.assert_close(features, torch.cat([hidden, torch.ones(25, 1)], 1).double())
    assert torch.equal(SHARP.represent(linear(), examples).features, examples.features)


def test_the_refit_is_the_closed_form_optimum():
    """Their penalty is regularisation·‖W‖², so the usual decay is twice that."""
    examples = random_examples(25, 3)
    optimum = LogisticRegression(examples, decay=0.1).optimum()
    found = SHARP.represent(linear(), examples)
    torch.testing.assert_close(found.weights.flatten(), optimum, rtol=1e-8, atol=1e-9)


def test_suspicion_is_the_slope_of_the_own_class_at_the_refit():
    examples = random_examples(25, 3)
    optimum = LogisticRegression(examples, decay=0.1).optimum()
    logits = logistic(optimum, 3)(examples.features).detach().requires_grad_()
    cross_entropy(logits, examples.labels, reduction="sum").backward()
    own = logits.grad[torch.arange(25), examples.labels] / (2 * 0.05 * 25)
    dataset = Dataset("tiny", examples, random_examples(5, 3), ("a", "b", "c"))
    suspicion = SHARP.suspicion(linear(), dataset)
    torch.testing.assert_close(suspicion, own.abs(), rtol=1e-8, atol=1e-10)
    # The docstring's remark: the order is that of the refitted loss.
    losses = cross_entropy(logits, examples.labels, reduction="none")
    assert torch.equal(suspicion.argsort(), losses.argsort())


class Averaged(nn.Module):
    """Two linear layers whose mean is the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Linear(3, 3, dtype=DOUBLE) for _ in range(2))

    def forward(self, features):
        return (self.one(features) + self.two(features)) / 2


@pytest.mark.parametrize(
    ("build", "last"),
    [
        (lambda: nn.Sequential(*mlp(), nn.ReLU(inplace=True)), "ReLU '3'"),
        (lambda: nn.Sequential(*mlp(), nn.LogSoftmax(1)), "LogSoftmax '3'"),
        (Averaged, "Linear 'two'"),
        (repeated, "Linear '0'"),
        (lambda: nn.Sequential(nn.Flatten()), "Flatten '0'"),
    ],
)
def test_a_model_without_a_final_linear_layer_is_refused_by_name(build, last):
    with pytest.raises(ModelError, match=f"output of an nn.Linear.*last layer to run is .*{last}"):
        Representer().suspicion(build(), tiny())


def test_a_final_layer_that_does_nothing_in_eval_mode_is_no_obstacle():
    model, dataset = mlp(), tiny()
    dropped = nn.Sequential(*model, nn.Dropout(0.5)).train()
    expected = SHARP.suspicion(model, dataset)
    assert torch.equal(SHARP.suspicion(dropped, dataset), expected)


def test_a_fit_that_does_not_arrive_is_refused():
    with pytest.raises(SolverError, match=r"gradient of \S+ after 2 iterations, tolerance 1e-10"):
        Representer(max_iterations=2).suspicion(mlp(), tiny())


class CountsRows(nn.Linear):
    """A last layer that counts the rows it has seen."""

    seen = 0

    def __deepcopy__(self, memo):
        return self  # the ranker works on a copy

    def forward(self, features):
        self.seen += len(features)
        return super().forward(features)


def test_more_features_than_the_memory_holds_are_refused_before_they_are_computed():
    model = nn.Sequential(CountsRows(3, 3, dtype=DOUBLE))
    examples = random_examples(4_000, 3)
    size = 8 * (3 * 4_000 * 4 + 6 * 4_000 * 3 + 25 * 3 * 4)
    with pytest.raises(SolverError, match=r"4 features and 3 logits of 4000 rows take.*'loss'"):
        Representer(max_bytes=size - 1).represent(model, examples)
    assert model[0].seen < 200  # some rows tell which layer is the last
    Representer(max_bytes=size).represent(model, examples)


def test_bad_numbers_and_labels_are_refused():
    model = mlp()
    nn.init.constant_(model[0].weight, torch.inf)
    with pytest.raises(DataError, match="features below the last layer are NaN or infinite"):
        Representer().suspicion(nn.Sequential(model[0], nn.Tanh(), model[2]), _huge())
    two = nn.Linear(3, 2, dtype=DOUBLE)
    with pytest.raises(
        DataError, match="the last layer has 2 outputs, which do not suit the labels"
    ):
        Representer().suspicion(two, tiny())


def _huge():
    dataset = tiny()
    dataset.train.features.zero_()  # 0·∞
    return dataset


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"regularisation": 0}, "regularisation must be finite and > 0, got 0"),
        ({"tolerance": -1}, "tolerance must be finite and > 0, got -1"),
        ({"max_iterations": 0}, "max_iterations must be >= 1, got 0"),
        ({"max_bytes": 0}, "max_bytes must be >= 1, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        Representer(**settings)
