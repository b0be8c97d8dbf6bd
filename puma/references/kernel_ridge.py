"""Kernel ridge regression that is refitted without any rows in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puma.references.population import Array

MOST_ROWS = 6000  # of training, for a kernel: the inverse takes 8·n² bytes and n³ operations
RIDGE = 0.3  # of the mean eigenvalue; measured: docs/method.md


@dataclass(frozen=True, eq=False, repr=False)
class LeaveOutRidge:
    """Ridge regression of every training row's margin on 1, with the kernel of the margins.

    For two classes this is the regression of the labels ±1 on the kernel of the logits'
    difference. The margin of a regression is the predicted label less the true one, so that the
    labels are regressed there, and taken from what comes out.

    Attributes:
        kernel: (N, n) of all N rows with the n training rows, which come first.
        inverse: (n, n) of the training rows' kernel plus the ridge.
        labels: (N,) of a regression, in the unit of the margins; None for classes.
    """

    kernel: Array
    inverse: Array
    labels: Array | None = None

    @classmethod
    def fit(
        cls, gram: Array, n: int, *, ridge: float = RIDGE, labels: Array | None = None
    ) -> LeaveOutRidge:
        """Fit it.

        Args:
            gram: (N, N) the kernel.
            n: How many of the rows, the first ones, are trained on.
            ridge: In units of the mean eigenvalue of their kernel.
            labels: (N,) of a regression, in the unit of the margins.
        """
        own = gram[:n, :n]
        shift = ridge * np.trace(own) / n
        return cls(gram[:, :n], np.linalg.inv(own + shift * np.eye(n)), labels)

    def without(self, rows: NDArray[np.int64]) -> Array:
        """(N,) predictions of all rows by the fit without the (m,) training ``rows``.

        With C the inverse, the coefficients without the rows R are C1 − C_R·(C_RR)⁻¹(C1)_R: the
        same as of a fit of the other rows with the same ridge. For a regression the labels are in
        the place of 1.
        """
        n = len(self.inverse)
        coefficients = (
            self.inverse.sum(1) if self.labels is None else self.inverse @ self.labels[:n]
        )
        if len(rows):
            inner = np.linalg.solve(self.inverse[np.ix_(rows, rows)], coefficients[rows])
            coefficients = coefficients - self.inverse[:, rows] @ inner
        predicted: Array = self.kernel @ coefficients
        return predicted if self.labels is None else predicted - self.labels
