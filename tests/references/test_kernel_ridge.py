"""Closed forms against fits that really leave the rows out."""

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge

from puma.references.kernel_ridge import LeaveOutRidge


@pytest.mark.parametrize("rows", [[], [3], [0, 5, 6], list(range(1, 12))])
def test_leaving_rows_out_is_fitting_the_others(rows):
    generator = np.random.default_rng(0)
    factors = generator.normal(size=(17, 6))
    gram, n = factors @ factors.T, 12
    shift = 0.3 * np.trace(gram[:n, :n]) / n  # stays that of the whole fit
    kept = np.setdiff1d(np.arange(n), rows)
    inner = gram[np.ix_(kept, kept)] + shift * np.eye(len(kept))
    expected = gram[:, kept] @ np.linalg.solve(inner, np.ones(len(kept)))
    found = LeaveOutRidge.fit(gram, n).without(np.array(rows, dtype=np.int64))
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("rows", [[], [3], [0, 5, 6]])
def test_of_a_regression_the_labels_are_fitted_and_taken_from_the_predictions(rows):
    generator = np.random.default_rng(0)
    factors, labels = generator.normal(size=(17, 6)), generator.normal(size=17)
    gram, n = factors @ factors.T, 12
    shift = 0.3 * np.trace(gram[:n, :n]) / n
    kept = np.setdiff1d(np.arange(n), rows)
    refit = KernelRidge(alpha=shift, kernel="precomputed")
    refit.fit(gram[np.ix_(kept, kept)], labels[kept])
    expected = refit.predict(gram[:, kept]) - labels
    found = LeaveOutRidge.fit(gram, n, labels=labels).without(np.array(rows, dtype=np.int64))
    np.testing.assert_allclose(found, expected, atol=1e-10)
