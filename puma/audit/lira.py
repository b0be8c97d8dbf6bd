"""LiRA: likelihood ratios of margins between models that saw a row and models that did not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from puma.audit.predictions import Array, Predictions
from puma.errors import AuditError
from puma.references import Population

FEWEST = 2  # models on each side: a spread needs two


@dataclass(frozen=True, eq=False, repr=False)
class LiRA:
    """The attack of Carlini et al. (2022), online form, on shadow models of known members.

    For each row two normal distributions of the margin are fitted: over the shadows that were
    trained on the row, and over those that were not. Each side has one variance for all rows,
    which is better than one per row with only tens of shadows (their Section VI-B).

    Attributes:
        shadows: Their margins on every row, and which rows each was trained on.

    Raises:
        AuditError: A row is in fewer than two shadows, or outside of fewer than two.
    """

    shadows: Population

    def __post_init__(self) -> None:
        sides = (self.shadows.member.sum(0), (~self.shadows.member).sum(0))
        if min(side.min() for side in sides) < FEWEST:
            raise AuditError(
                f"LiRA needs every row in at least {FEWEST} shadow models and outside of "
                f"{FEWEST}, got {len(self.shadows)} models; raise audit.shadow_models"
            )

    def scores(self, predictions: Predictions) -> Array:
        """(n,) log-likelihood ratios in nats; above 0 is more like a member than not.

        Raises:
            AuditError: The predictions are of other rows than the shadows'.
        """
        if len(predictions) and int(predictions.rows.max()) >= self.shadows.margins.shape[1]:
            raise AuditError(
                f"row {int(predictions.rows.max())} is none of the {self.shadows.margins.shape[1]} "
                "rows of the shadow models; train them on this dataset"
            )
        return self.ratio(predictions.margins, predictions.rows)

    def ratio(self, values: Array, rows: np.ndarray) -> Array:
        """(..., n) log-likelihood ratios in nats of (..., n) margins ``values`` of n ``rows``."""
        (seen, spread_seen), (unseen, spread_unseen) = self._fits
        return _log_density(values, seen[rows], spread_seen) - _log_density(
            values, unseen[rows], spread_unseen
        )

    @cached_property
    def _fits(self) -> tuple[tuple[Array, float], tuple[Array, float]]:
        """:meth:`_fit` over the members of each row, and over the others."""
        return self._fit(self.shadows.member), self._fit(~self.shadows.member)

    def _fit(self, chosen: np.ndarray) -> tuple[Array, float]:
        """(n,) means over the chosen models of each row, and one standard deviation for all."""
        counts = chosen.sum(0)
        means = np.where(chosen, self.shadows.margins, 0).sum(0) / counts
        squares = np.where(chosen, (self.shadows.margins - means) ** 2, 0).sum()
        if squares == 0:
            raise AuditError(
                "LiRA's shadow models give the same margins wherever they saw the same rows, so "
                "that nothing is known of chance; check that their seeds differ"
            )
        return means, float(np.sqrt(squares / (counts - 1).sum()))


def _log_density(values: Array, mean: Array, spread: float) -> Array:
    """Of the normal distribution. scipy.stats has it, and takes half a second to import."""
    scaled: Array = (values - mean) / spread
    density: Array = -(scaled**2) / 2 - np.log(2 * np.pi) / 2 - np.log(spread)
    return density
