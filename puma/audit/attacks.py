"""Membership attacks, one convention: higher score = more likely a member.

An attack maps the :class:`Predictions` for n rows to (n,) float64 scores. The attacks of this file
need no training. :class:`puma.audit.ShadowAttack` and :class:`puma.audit.LiRA` learn from models
whose members are known.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import log_softmax

from puma.audit.predictions import Array, Predictions

Attack = Callable[[Predictions], Array]


def loss_attack(predictions: Predictions) -> Array:
    """Score by minus the loss, at most 0 nats (Yeom et al., 2018)."""
    return -predictions.losses


def confidence_attack(predictions: Predictions) -> Array:
    """Score by the probability of the most probable class, without labels (Salem et al., 2019)."""
    values: Array = torch.softmax(predictions.after, 1).amax(1).numpy()
    return values


def entropy_attack(predictions: Predictions) -> Array:
    """Score by minus the entropy, in [-log(classes), 0] nats (Shokri et al., 2017)."""
    logs = log_softmax(predictions.after, 1)
    values: Array = (logs.exp() * logs).sum(1).numpy()
    return values


def two_model_attack(predictions: Predictions) -> Array:
    """Score by how far the row's score fell from the parent to the audited version.

    The score of a removed row falls, that of other rows hardly changes (Chen et al., "When
    Machine Unlearning Jeopardizes Privacy", 2021). The score is 0 where the versions agree.
    Retraining betrays removed rows too, so compare with the same number of retrained models.
    """
    return predictions.of_parent().scores - predictions.scores


ATTACKS: dict[str, Attack] = {
    "loss": loss_attack,
    "confidence": confidence_attack,
    "entropy": entropy_attack,
    "two_models": two_model_attack,
}
OF_CLASSES = ("confidence", "entropy")  # these read the probabilities of classes
