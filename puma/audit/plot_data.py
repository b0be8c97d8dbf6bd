"""What the plots of an audit show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puma.audit.evidence import Evidence
from puma.audit.predictions import Array, Predictions, losses, margins


@dataclass(frozen=True, eq=False, repr=False)
class PlotData:
    """What the plots show. Sorted or summed up: no value's place says whose row it is.

    losses_before, losses_after: per group, ascending, in nats. scores: LiRA's, per version
    ("before", "after") and group. retrained_scores: one such pair of groups per retrained model.
    margins: (m, 3 + k) of the removed rows: before, after, mean of the retrained models, each of
    these; rows ordered by that mean.
    """

    losses_before: dict[str, Array]
    losses_after: dict[str, Array]
    scores: dict[str, dict[str, Array]]
    retrained_scores: list[dict[str, Array]]
    margins: Array


def plot_data_of(
    groups: dict[str, Predictions],
    before: dict[str, Predictions],
    rows: dict[str, NDArray[np.int64]],
    evidence: Evidence,
) -> PlotData:
    """``groups`` and ``before``: each group's answers of this version and of its parent.

    ``rows``: the same groups' places among all rows.
    """
    attacked = ("removed", "unseen")
    retrained = evidence.without_rows.margins
    removed = groups["removed"]
    own = retrained[:, rows["removed"]]
    lines = np.column_stack(
        [
            margins(removed.before, removed.labels),
            margins(removed.after, removed.labels),
            own.mean(0),
            own.T,
        ]
    )
    return PlotData(
        losses_before={n: np.sort(losses(each.after, each.labels)) for n, each in before.items()},
        losses_after={n: np.sort(losses(each.after, each.labels)) for n, each in groups.items()},
        scores={
            name: {n: np.sort(evidence.lira.scores(version[n])) for n in attacked}
            for name, version in (("before", before), ("after", groups))
        },
        retrained_scores=[
            {n: np.sort(evidence.lira.ratio(line[rows[n]], rows[n])) for n in attacked}
            for line in retrained
        ],
        margins=lines[np.argsort(lines[:, 2])],
    )
