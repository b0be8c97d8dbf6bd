"""Membership attacks, one convention: higher score = more likely a member.

An attack maps the :class:`Predictions` for n rows to (n,) float64 scores. The ones of this file
need no training; :class:`puma.audit.ShadowAttack` and :class:`puma.audit.LiRA` learn from
models whose members are known.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import log_softmax

from puma.audit.predictions import Array, Predictions, losses, margins

Attack = Callable[[Predictions], Array]


def loss_attack(answers: Predictions) -> Array:
    """Minus the cross-entropy, at most 0 nats (Yeom et al., 2018)."""
    return -losses(answers.after, answers.labels)


def confidence_attack(answers: Predictions) -> Array:
    """Probability of the most probable class; needs no label (Salem et al., 2019)."""
    values: Array = torch.softmax(answers.after, 1).amax(1).numpy()
    return values


def entropy_attack(answers: Predictions) -> Array:
    """Minus the entropy of the answer, in [-log(classes), 0] nats (Shokri et al., 2017)."""
    logs = log_softmax(answers.after, 1)
    values: Array = (logs.exp() * logs).sum(1).numpy()
    return values


def two_model_attack(answers: Predictions) -> Array:
    """How much surer of the label the parent was, in units of the logit margin.

    A row that was removed loses its hold on the model, the others hardly do (Chen et al., "When
    Machine Unlearning Jeopardizes Privacy", 2021). 0 where the versions are the same. Retraining
    betrays removed rows too, so read it against the same number of retrained models.
    """
    return margins(answers.before, answers.labels) - margins(answers.after, answers.labels)


ATTACKS: dict[str, Attack] = {
    "loss": loss_attack,
    "confidence": confidence_attack,
    "entropy": entropy_attack,
    "two_models": two_model_attack,
}
