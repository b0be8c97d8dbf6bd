"""What a version promised to keep, and what became of it: read from its run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from puma.lineage.records import PRESERVED
from puma.settings import RETAINED_LOSS, PreservedCriterion

PRESERVE, BOUND_BY = "preserve", "bound_by"  # parameters of a run
NOTHING = "nothing"  # bound_by where no budget kept the rows from their targets
ROUND_OFF = 1e-6  # the criteria of a drift are computed in single precision


@dataclass(frozen=True)
class Preserved:
    """One criterion that a removal kept, or not.

    Attributes:
        title: Its name.
        what: The criterion, and the rows that it is measured on, in words.
        budget: Largest allowed change.
        before: Of the parent.
        after: Of the version.
        drift: By how much it changed.
    """

    title: str
    what: str
    budget: float
    before: float
    after: float
    drift: float

    @property
    def holds(self) -> bool:
        """Whether the change keeps the budget."""
        return abs(self.drift) <= self.budget + ROUND_OFF

    def to_dict(self) -> dict[str, Any]:
        """As a certificate lists it."""
        return {
            "name": self.title,
            "criterion": self.what,
            "budget": self.budget,
            "before": self.before,
            "after": self.after,
            "drift": self.drift,
        }


def preserved_of(params: Mapping[str, str], metrics: Mapping[str, float]) -> list[Preserved]:
    """Read the criteria that a version's run lists beside the retained rows' mean loss.

    Args:
        params: Of the run, as texts.
        metrics: Of the run.

    Returns:
        In the order of ``puma.preserve``; none where it lists none.

    Raises:
        ValueError: A parameter or a metric is missing, or was edited into something else.
    """
    text = params.get(PRESERVE)
    if text is None:
        return []
    try:
        entries = [PreservedCriterion.model_validate(each) for each in json.loads(text)]
    except (ValidationError, ValueError, TypeError):
        raise ValueError(f"the parameter {PRESERVE} of the run is no list of criteria") from None
    found = []
    for each in entries:
        if each.criterion == RETAINED_LOSS:  # criterion_before, _after and _drift
            continue
        names = [f"{PRESERVED}{each.title}_{what}" for what in ("before", "after", "drift")]
        absent = [name for name in names if not math.isfinite(metrics.get(name, math.nan))]
        if absent:
            raise ValueError(f"the run has no {' and no '.join(absent)}")
        before, after, drift = (metrics[name] for name in names)
        found.append(Preserved(each.title, _in_words(each), each.budget, before, after, drift))
    return found


def _in_words(entry: PreservedCriterion) -> str:
    rows = "validation rows" if entry.of_validation else "retained rows"
    where = "" if entry.where is None else f" where {entry.where}"
    return f"{entry.criterion} of the {rows}{where}"
