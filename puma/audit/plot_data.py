"""What the plots of an audit show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puma.audit.evidence import Evidence
from puma.audit.predictions import Array, Predictions
from puma.models.tasks import Likelihood, likelihood_of


@dataclass(frozen=True, eq=False, repr=False)
class PlotData:
    """What the plots of an audit show, sorted so that no position says whose row it is.

    Attributes:
        losses_before: The parent's losses (nats) of each group, ascending.
        losses_after: Those of the audited version.
        scores: LiRA's scores, by "before" and "after" and then by group, ascending.
        retrained_scores: The same of each retrained model, by group.
        margins: (m, 3 + k) margins of the removed rows: before, after, the mean of the k
            retrained models, and each of these. The rows are ordered by that mean.
        margin: What a margin is, in words, with its unit.
    """

    losses_before: dict[str, Array]
    losses_after: dict[str, Array]
    scores: dict[str, dict[str, Array]]
    retrained_scores: list[dict[str, Array]]
    margins: Array
    margin: str = Likelihood.margin


def plot_data_of(
    groups: dict[str, Predictions],
    before: dict[str, Predictions],
    rows: dict[str, NDArray[np.int64]],
    evidence: Evidence,
) -> PlotData:
    """Collect what the plots show.

    Args:
        groups: Each group's predictions by the audited version.
        before: The same by its parent.
        rows: Each group's places among the training rows and then the test rows.
        evidence: What the audit compares with.
    """
    attacked = ("removed", "unseen")
    retrained = evidence.without_rows.margins
    removed = groups["removed"]
    own = retrained[:, rows["removed"]]
    lines = np.column_stack(
        [
            before["removed"].margins,
            removed.margins,
            own.mean(0),
            own.T,
        ]
    )
    return PlotData(
        losses_before={n: np.sort(each.losses) for n, each in before.items()},
        losses_after={n: np.sort(each.losses) for n, each in groups.items()},
        scores={
            name: {n: np.sort(evidence.lira.scores(version[n])) for n in attacked}
            for name, version in (("before", before), ("after", groups))
        },
        retrained_scores=[
            {n: np.sort(evidence.lira.ratio(line[rows[n]], rows[n])) for n in attacked}
            for line in retrained
        ],
        margins=lines[np.argsort(lines[:, 2])],
        margin=likelihood_of(removed.task).margin,
    )
