"""Temperature scaling against a planted temperature, scikit-learn, and a fine grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn.functional import cross_entropy

from puma.calibration import TemperatureScaled, fit_temperature, temperature_scaled
from puma.data import Examples
from puma.errors import DataError, SettingsError
from puma.influence import FlatModel
from puma.models import predictions
from tests.cases import DOUBLE, mlp, normalised, random_examples


def drawn(n: int, classes: int, planted: float, seed: int = 0):
    """Logits that are ``planted`` times those that the labels were drawn from."""
    generator = torch.Generator().manual_seed(seed)
    true = 1.5 * torch.randn(n, classes, generator=generator, dtype=DOUBLE)
    labels = torch.multinomial(true.softmax(1), 1, generator=generator)[:, 0]
    return planted * true, labels


@pytest.mark.parametrize("planted", [0.2, 1.0, 3.0, 1e4])
def test_a_planted_temperature_is_found(planted):
    assert fit_temperature(*drawn(200_000, 3, planted)) == pytest.approx(planted, rel=0.01)


def test_two_classes_are_scikit_learns_logistic_regression_through_the_origin():
    logits, labels = drawn(400, 2, 3.0, seed=1)
    margin = (logits[:, 1] - logits[:, 0]).numpy()[:, None]
    fitted = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-12).fit(margin, labels)
    assert fit_temperature(logits, labels) == pytest.approx(1 / fitted.coef_.item(), rel=1e-6)


def test_no_temperature_of_a_fine_grid_is_better():
    logits, labels = drawn(300, 4, 0.5, seed=2)
    found = fit_temperature(logits, labels)
    grid = np.geomspace(found / 2, found * 2, 4001)
    losses = [cross_entropy(logits / temperature, labels).item() for temperature in grid]
    assert grid[np.argmin(losses)] == pytest.approx(found, rel=1e-3)
    assert cross_entropy(logits / found, labels).item() <= min(losses)


def test_the_scaled_model_divides_its_logits_and_keeps_its_answers():
    model, examples = normalised().train(), random_examples(300, 3)
    weights = [value.clone() for value in model.state_dict().values()]
    state = torch.get_rng_state()
    scaled = temperature_scaled(model, examples)
    temperature = float(scaled.temperature)
    assert temperature == pytest.approx(
        fit_temperature(predictions.logits(model, examples.features), examples.labels)
    )
    before, after = (predictions.logits(each, examples.features) for each in (model, scaled))
    torch.testing.assert_close(after, before / temperature)
    assert predictions.accuracy(scaled, examples) == predictions.accuracy(model, examples)
    mean = predictions.losses(model, examples).mean()
    assert predictions.losses(scaled, examples).mean() < mean
    # The original: its mode, its weights, and nothing shared.
    assert model.training
    assert scaled.training
    scaled.eval()
    assert model.training
    for value, old in zip(model.state_dict().values(), weights, strict=True):
        assert torch.equal(value, old)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_temperature_is_stored_and_does_not_train():
    scaled = TemperatureScaled(mlp(), 2.5)
    assert scaled.state_dict()["temperature"].item() == 2.5
    assert FlatModel(scaled).size == FlatModel(mlp()).size
    other = TemperatureScaled(mlp(), 1.0)
    other.load_state_dict(scaled.state_dict())
    features = random_examples(4, 3).features
    assert torch.equal(other(features), scaled(features))


def test_single_precision_stays_single():
    scaled = TemperatureScaled(nn.Linear(3, 2), 2.0)
    assert scaled(torch.zeros(1, 3)).dtype == torch.float32


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        ([[1.0, 0.0], [0.0, 2.0]], [0, 1], "all 2 answers are right.*not trained on"),
        ([[1.0, 0.0], [0.0, 2.0]], [0, 0], "no better than at random"),
        ([[1.0, 1.0], [3.0, 3.0]], [0, 1], "all 2 answers are right"),
        ([[math.inf, 0.0]], [0], "with 1 not finite"),
        ([1.0, 2.0], [0, 1], r"got shape \(2,\)"),
        ([[1.0, 0.0]], [2], "labels run from 2 to 2"),
    ],
)
def test_misfits_are_refused(logits, labels, message):
    with pytest.raises(DataError, match=message):
        fit_temperature(torch.tensor(logits), torch.tensor(labels))


def test_impossible_temperatures_and_no_rows_are_refused():
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(SettingsError, match="temperature must be finite and > 0, got"):
            TemperatureScaled(mlp(), temperature)
    none = Examples.of(torch.zeros(0, 3, dtype=DOUBLE), torch.zeros(0, dtype=torch.long))
    with pytest.raises(DataError, match="the temperature needs at least one example, got 0"):
        temperature_scaled(mlp(), none)
