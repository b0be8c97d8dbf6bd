"""Finding mislabelled training rows; plots, workflows and commands may import it.

A new ranker is one file and one row of RANKERS.
"""

from __future__ import annotations

from puma.errors import SettingsError
from puma.label_errors.curves import found_at, found_curve
from puma.label_errors.flips import flip_labels
from puma.label_errors.loss import Loss
from puma.label_errors.noise_groups import Groups, groups, own_label_confidence
from puma.label_errors.ntk import NTK
from puma.label_errors.psi import Psi
from puma.label_errors.ranker import Ranker
from puma.label_errors.representer import Representation, Representer
from puma.label_errors.self_influence import SelfInfluence
from puma.label_errors.shapley import GShapley, NotSettledWarning
from puma.label_errors.weak_signal import WeakSignalWarning, signal_strength

RANKERS: dict[str, type[Ranker]] = {
    kind.name: kind for kind in (Loss, Psi, SelfInfluence, NTK, Representer, GShapley)
}


def resolve_ranker(ranker: str | Ranker) -> Ranker:
    """Return a ranker by its name in RANKERS with its default settings, or as given.

    Raises:
        SettingsError: Unknown name.
    """
    if not isinstance(ranker, str):
        return ranker
    if ranker not in RANKERS:
        raise SettingsError(
            f"unknown ranker {ranker!r}; choose one of {', '.join(sorted(RANKERS))}"
        )
    return RANKERS[ranker]()


__all__ = [
    "NTK",
    "RANKERS",
    "GShapley",
    "Groups",
    "Loss",
    "NotSettledWarning",
    "Psi",
    "Ranker",
    "Representation",
    "Representer",
    "SelfInfluence",
    "WeakSignalWarning",
    "flip_labels",
    "found_at",
    "found_curve",
    "groups",
    "own_label_confidence",
    "resolve_ranker",
    "signal_strength",
]
