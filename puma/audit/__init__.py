"""What an attacker can still tell. One convention: a higher score means more likely a member."""

from puma.audit.attacks import loss_attack_scores
from puma.audit.metrics import auc, rate
from puma.audit.report import AuditReport, audit_removal
from puma.audit.shadow import ShadowAttack, train_shadow_attack

__all__ = [
    "AuditReport",
    "ShadowAttack",
    "auc",
    "audit_removal",
    "loss_attack_scores",
    "rate",
    "train_shadow_attack",
]
