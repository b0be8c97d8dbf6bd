"""LiRA: the likelihood ratio of a row's margin in models that saw it and models that did not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import norm

from puma.audit.population import Population
from puma.audit.predictions import Array, Predictions, margins
from puma.errors import AuditError

FEWEST = 2  # of each side, for a mean that more than one model speaks for


@dataclass(frozen=True, eq=False, repr=False)
class LiRA:
    """The attack of Carlini et al. (2022), online form, on shadow models of known members.

    Per row two normal distributions of the logit margin: over the shadows that were trained on
    the row and over those that were not. With tens of shadows one variance for all rows on each
    side is better than one per row (their Section VI-B), so that is what is used.
    """

    shadows: Population

    def __post_init__(self) -> None:
        sides = (self.shadows.member.sum(0), (~self.shadows.member).sum(0))
        if min(side.min() for side in sides) < FEWEST:
            raise AuditError(
                f"LiRA needs every row in at least {FEWEST} shadow models and outside of "
                f"{FEWEST}, got {len(self.shadows)} models; raise audit.shadow_models"
            )

    def scores(self, answers: Predictions) -> Array:
        """(n,) log-likelihood ratio in nats: above 0, more like a member than not.

        Raises AuditError when the answers are about other rows than the shadows'.
        """
        if len(answers) and int(answers.rows.max()) >= self.shadows.margins.shape[1]:
            raise AuditError(
                f"row {int(answers.rows.max())} is none of the {self.shadows.margins.shape[1]} "
                "rows of the shadow models; train them on this dataset"
            )
        return self.ratio(margins(answers.after, answers.labels), answers.rows)

    def ratio(self, values: Array, rows: np.ndarray) -> Array:
        """The same for the (..., n) margins ``values`` of the n ``rows``."""
        (seen, spread_seen), (unseen, spread_unseen) = self._fits
        ratio: Array = norm.logpdf(values, seen[rows], spread_seen) - norm.logpdf(
            values, unseen[rows], spread_unseen
        )
        return ratio

    @cached_property
    def _fits(self) -> tuple[tuple[Array, float], tuple[Array, float]]:
        """:meth:`_fit` over the members of each row, and over the others; an audit asks often."""
        return self._fit(self.shadows.member), self._fit(~self.shadows.member)

    def _fit(self, chosen: np.ndarray) -> tuple[Array, float]:
        """(n,) mean over the chosen models of each row, and one standard deviation for all."""
        counts = chosen.sum(0)
        means = np.where(chosen, self.shadows.margins, 0).sum(0) / counts
        squares = np.where(chosen, (self.shadows.margins - means) ** 2, 0).sum()
        if squares == 0:
            raise AuditError(
                "LiRA's shadow models give the same margins wherever they saw the same rows, so "
                "that nothing is known of chance; check that their seeds differ"
            )
        return means, float(np.sqrt(squares / (counts - 1).sum()))
