"""The evidence about one model: where the removed examples stand among the others."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from torch import nn

from puma.audit.attacks import loss_attack_scores
from puma.audit.metrics import auc, rate
from puma.audit.shadow import ShadowAttack
from puma.data.base import Examples
from puma.errors import AuditError
from puma.predictions import accuracy


@dataclass(frozen=True, eq=False)
class AuditReport:
    """What the attacks and the losses say of the removed examples.

    attack_rate, attack_rate_unseen: share of the removed and of the unseen examples that
        the shadow attack calls members. Neither is meant to be 0: the target is where a
        model stands that never saw the removed examples.
    attack_auc: AUC of the loss attack, removed against unseen: 1 = removed examples stand
        out as members, 0.5 = indistinguishable, 0 = stand out by abnormally high loss.
    attack_auc_shadow: the same by the scores of the shadow attack.
    attack_quality: the shadow attack's balanced accuracy on a held-out shadow; near 0.5 the
        rates say little.
    removed_loss, unseen_loss, retained_loss: mean cross-entropy in nats.
    removed_accuracy, retained_accuracy: share classified as labelled.
    scores: the losses (nats) of the groups "removed", "unseen" and "retained", for plots of
        their distribution; each in ascending order, so that the position of a value says
        nothing of whose it is.
    """

    attack_rate: float
    attack_rate_unseen: float
    attack_auc: float
    attack_auc_shadow: float
    attack_quality: float
    removed_loss: float
    unseen_loss: float
    retained_loss: float
    removed_accuracy: float
    retained_accuracy: float
    scores: dict[str, np.ndarray] = field(repr=False)

    def metrics(self) -> dict[str, float]:
        """Every number but the per-example ``scores``, by name."""
        names = (item.name for item in fields(self) if item.name != "scores")
        return {name: getattr(self, name) for name in names}


def audit_removal(
    model: nn.Module,
    *,
    removed: Examples,
    unseen: Examples,
    retained: Examples,
    attack: ShadowAttack,
) -> AuditReport:
    """Attack ``model``, before or after a removal.

    removed: the examples to forget. unseen: examples that no model was trained on, the test
    split as a rule. retained: the training examples that stay.

    Raises AuditError for an empty group, a model that the attack does not fit, or losses
    that are not finite.
    """
    groups = {"removed": removed, "unseen": unseen, "retained": retained}
    for name, examples in groups.items():
        if len(examples) == 0:
            raise AuditError(
                f"the {name} group holds 0 examples; an audit compares removed, unseen and "
                "retained examples and needs all three"
            )
    by_attack = {name: attack.scores(model, groups[name]) for name in ("removed", "unseen")}
    by_loss = {name: loss_attack_scores(model, examples) for name, examples in groups.items()}
    broken = [name for name, values in by_loss.items() if not np.isfinite(values).all()]
    if broken:
        raise AuditError(
            f"the model's loss is NaN or infinite on the {' and '.join(broken)} group(s); "
            "the weights are unusable, so repeat the removal with a smaller dose"
        )
    return AuditReport(
        attack_rate=rate(by_attack["removed"]),
        attack_rate_unseen=rate(by_attack["unseen"]),
        attack_auc=auc(by_loss["removed"], by_loss["unseen"]),
        attack_auc_shadow=auc(by_attack["removed"], by_attack["unseen"]),
        attack_quality=attack.quality,
        removed_loss=float(-by_loss["removed"].mean()),
        unseen_loss=float(-by_loss["unseen"].mean()),
        retained_loss=float(-by_loss["retained"].mean()),
        removed_accuracy=accuracy(model, removed),
        retained_accuracy=accuracy(model, retained),
        # Sorted: in row order a plot or a file of it would link every loss to its subject.
        scores={name: np.sort(-values) for name, values in by_loss.items()},
    )
