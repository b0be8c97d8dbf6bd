"""Margins regressed on surrogates, against least squares written down anew."""

from __future__ import annotations

import numpy as np
import pytest

from puma.references import regression
from puma.references.regression import FAR, NEAR, OWN_SLOPE, Regression, weighted_mean

MODELS, N, TRAINED = 9, 400, 350


@pytest.fixture(scope="module")
def planted() -> tuple[np.ndarray, np.ndarray, list[np.ndarray], np.ndarray]:
    """Margins, weights, two surrogates, and each row's own factor on 2·first - 3·second."""
    generator = np.random.default_rng(0)
    surrogates = [generator.normal(size=(MODELS, N)) for _ in range(2)]
    factors = generator.uniform(0.5, 1.5, N)
    told = 2 * surrogates[0] - 3 * surrogates[1]
    margins = generator.normal(size=N) + factors * told + 0.1 * generator.normal(size=(MODELS, N))
    weight = (generator.random((MODELS, N)) < 0.6).astype(float)
    weight[-1] = 2.0
    return margins, weight, surrogates, factors


def test_a_row_has_the_ridge_regression_of_its_own(planted, monkeypatch):
    margins, weight, surrogates, _ = planted
    monkeypatch.setattr(regression, "NEAR", np.inf)  # every model is as near
    fitted = Regression(margins, weight, surrogates, trained=TRAINED)
    values = [each[0] + 1 for each in surrogates]
    found = fitted.predict(values)

    told = np.tensordot(fitted._slopes, np.stack(surrogates), axes=1)
    spread = told - weighted_mean(told, weight)
    pull = OWN_SLOPE * (weight * spread**2).sum(0)[:TRAINED].mean()
    for row in (0, 17, N - 1):
        # Least squares of a level and a factor, which one more observation holds near 1.
        design = np.column_stack([np.ones(MODELS), told[:, row]]) * weight[:, [row]] ** 0.5
        design = np.vstack([design, [0, pull**0.5]])
        target = np.append(margins[:, row] * weight[:, row] ** 0.5, pull**0.5)
        level, factor = np.linalg.lstsq(design, target, rcond=None)[0]
        asked = sum(slope * each[row] for slope, each in zip(fitted._slopes, values, strict=True))
        assert found[row] == pytest.approx(level + factor * asked, rel=1e-9)


def test_the_factors_bring_rows_nearer_to_the_truth(planted, monkeypatch):
    margins, weight, surrogates, factors = planted
    values = [each[0] + 2 for each in surrogates]
    truth = margins[0] + factors * (2 * 2 - 3 * 2)
    found = Regression(margins, weight, surrogates, trained=TRAINED).predict(values)
    monkeypatch.setattr(regression, "OWN_SLOPE", 1e12)
    common = Regression(margins, weight, surrogates, trained=TRAINED).predict(values)
    assert np.abs(found - truth).mean() < 0.9 * np.abs(common - truth).mean()


def test_models_count_by_how_near_they_are(planted, monkeypatch):
    margins, weight, surrogates, _ = planted
    monkeypatch.setattr(regression, "OWN_SLOPE", 1e12)  # a factor of 1
    fitted = Regression(margins, weight, surrogates, trained=TRAINED)
    values = [each[3] for each in surrogates]
    found = fitted.predict(values)
    for row in (2, 5):
        told = [
            sum(s * each[model, row] for s, each in zip(fitted._slopes, surrogates, strict=True))
            for model in range(MODELS)
        ]
        counts = [
            weight[model, row] * (np.exp(-(((told[model] - told[3]) / NEAR) ** 2) / 2) + FAR)
            for model in range(MODELS)
        ]
        mean = np.average(margins[:, row] - np.array(told), weights=counts)
        assert found[row] == pytest.approx(mean + told[3], rel=1e-6)


def test_what_a_residual_shows_of_a_deviation(planted):
    """Every margin raised in turn, and the fit done again."""
    margins, weight, surrogates, _ = planted
    before, shown = Regression(margins, weight, surrogates, trained=TRAINED).residuals()
    for line in (0, MODELS - 1):
        raised = margins.copy()
        raised[line, ::40] += 1e-3  # few rows: the common slopes hardly notice
        after, _ = Regression(raised, weight, surrogates, trained=TRAINED).residuals()
        risen = (after - before)[line, ::40] / 1e-3
        np.testing.assert_allclose(risen, shown[line, ::40], atol=0.03)


def test_surrogates_that_say_nothing_leave_the_mean():
    generator = np.random.default_rng(1)
    margins = generator.normal(size=(5, 20))
    weight = np.ones((5, 20))
    nothing = np.ones((5, 20))
    found = Regression(margins, weight, [nothing], trained=20).predict([nothing[0]])
    np.testing.assert_allclose(found, margins.mean(0), rtol=1e-12)
