"""A margin regressed on what surrogates say, over models that left the row out.

docs/method.md has what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from puma.references.population import Array

SHRINKAGE = 1e-3  # of the common slopes, relative
OWN_SLOPE = 3.0  # the common slopes count as so many rows of usual spread against a row's own
NEAR = 3.0  # logits: models of which the surrogates say margins that near are much alike
FAR = 0.05  # what a model counts for of which they say something else altogether


class Regression:
    """Margins of every row on surrogates, over models, with levels and slopes of two kinds.

    The slopes on the surrogates are common to all rows. What they say of a model is one number for
    each row. Each row has a factor of its own on differences of it, shrunk towards 1, and a level
    of its own: its mean margin over the models, to which those count most of which the surrogates
    say nearly what they say of the model that is asked for.

    Attributes:
        margins: (k, N) of the models, in logits.
        weight: (k, N) what each model counts for in each row; no row's are all 0.
        surrogates: One or more, (k, N) each.
        trained: The common slopes are fitted to the first so many rows.
    """

    def __init__(
        self, margins: Array, weight: Array, surrogates: Sequence[Array], *, trained: int
    ) -> None:
        self.margins = margins
        self.weight = weight
        level = weighted_mean(margins, weight)
        self._slopes = self._common_slopes(margins - level, surrogates, trained)
        self._told = np.tensordot(self._slopes, np.stack(surrogates), axes=1)
        self._spread = self._told - weighted_mean(self._told, weight)
        size = (weight * np.square(self._spread)).sum(0)
        usual = OWN_SLOPE * size[:trained].mean()
        together = (weight * self._spread * (margins - level)).sum(0)
        self._size = np.where(size + usual > 0, size + usual, 1.0)
        self._factor = np.where(size + usual > 0, together + usual, 1.0) / self._size

    def predict(self, values: Sequence[Array]) -> Array:
        """(N,) margins of a model of which the surrogates say ``values``, (N,) each."""
        asked = np.tensordot(self._slopes, np.stack(values), axes=1)
        level, away, _ = self._seen_from(asked)
        fitted: Array = level + self._factor * away
        return fitted

    def residuals(self) -> tuple[Array, Array]:
        """What the models' margins are above their fit, and how much of a deviation that shows.

        Returns:
            (k, N) residuals, in logits; and (k, N) shares: were one margin higher by 1, its
            residual would be higher by that much, as the fit follows it with the rest. The common
            slopes, which are fitted to all rows, are taken as given.
        """
        found, shown = np.empty_like(self.margins), np.empty_like(self.margins)
        for line, asked in enumerate(self._told):
            level, away, share = self._seen_from(asked)
            found[line] = self.margins[line] - (level + self._factor * away)
            own_slope = self.weight[line] * self._spread[line] * away / self._size
            shown[line] = 1 - share[line] - own_slope
        return found, shown

    def _seen_from(self, asked: Array) -> tuple[Array, Array, Array]:
        """The mean over the models near to one of which the surrogates say ``asked``, (N,).

        Returns:
            (N,) mean margins; (N,) what ``asked`` is above the mean of what they say; and (k, N)
            the share of each model in these means.
        """
        share = self.weight * (np.exp(np.square((self._told - asked) / NEAR) / -2) + FAR)
        share /= share.sum(0)
        level, told = (np.einsum("kn,kn->n", share, each) for each in (self.margins, self._told))
        return level, asked - told, share

    def _common_slopes(
        self, deviations: Array, surrogates: Sequence[Array], trained: int
    ) -> NDArray[np.float64]:
        root = np.sqrt(self.weight)[:, :trained]
        target = (deviations[:, :trained] * root).ravel()
        columns = np.stack(
            [
                ((each - weighted_mean(each, self.weight))[:, :trained] * root).ravel()
                for each in surrogates
            ],
            1,
        )
        scale = np.sqrt(np.square(columns).sum(0))
        scale[scale == 0] = 1.0
        columns = columns / scale
        gram = columns.T @ columns + SHRINKAGE * np.eye(len(scale))
        slopes: NDArray[np.float64] = np.linalg.solve(gram, columns.T @ target) / scale
        return slopes


def weighted_mean(values: Array, weight: Array) -> Array:
    """(N,) weighted means over the lines of (k, N); 0 where all weights are 0."""
    total = weight.sum(0)
    found: Array = (values * weight).sum(0) / np.where(total > 0, total, 1.0)
    return found
