"""Finding mislabelled training rows. A new ranker is one file and one row of this table."""

from __future__ import annotations

from puma.debugging.algorithm2 import Groups, groups, own_label_confidence, printed_suspects
from puma.debugging.base import Ranker
from puma.debugging.criteria import CRITERIA, CriterionKind, TrainingObjective
from puma.debugging.curves import found_at, found_curve, roc_auc
from puma.debugging.flips import flip_labels
from puma.debugging.loss import Loss
from puma.debugging.ntk import NTK
from puma.debugging.psi import Psi
from puma.debugging.representer import Representation, Representer
from puma.debugging.self_influence import SelfInfluence
from puma.debugging.shapley import GShapley, NotSettledWarning
from puma.debugging.signal import WeakSignalWarning, signal_strength
from puma.errors import SettingsError

RANKERS: dict[str, type[Ranker]] = {
    kind.name: kind for kind in (Loss, Psi, SelfInfluence, NTK, Representer, GShapley)
}


def resolve_ranker(ranker: str | Ranker) -> Ranker:
    """The ranker itself: by its name in RANKERS with its default settings, or as given.

    Raises SettingsError for an unknown name.
    """
    if not isinstance(ranker, str):
        return ranker
    if ranker not in RANKERS:
        raise SettingsError(
            f"unknown ranker {ranker!r}; choose one of {', '.join(sorted(RANKERS))}"
        )
    return RANKERS[ranker]()


__all__ = [
    "CRITERIA",
    "NTK",
    "RANKERS",
    "CriterionKind",
    "GShapley",
    "Groups",
    "Loss",
    "NotSettledWarning",
    "Psi",
    "Ranker",
    "Representation",
    "Representer",
    "SelfInfluence",
    "TrainingObjective",
    "WeakSignalWarning",
    "flip_labels",
    "found_at",
    "found_curve",
    "groups",
    "own_label_confidence",
    "printed_suspects",
    "resolve_ranker",
    "roc_auc",
    "signal_strength",
]
