"""What an attacker can still tell. One convention: a higher score means more likely a member."""

from puma.audit.attacks import (
    ATTACKS,
    Attack,
    confidence_attack,
    entropy_attack,
    loss_attack,
    two_model_attack,
)
from puma.audit.lira import LiRA
from puma.audit.metrics import (
    Interval,
    Resolved,
    auc,
    auc_interval,
    bootstrap_auc_interval,
    rate,
    roc,
    tpr_at_fpr,
)
from puma.audit.population import Population, everybody, halves, train_population, without
from puma.audit.predictions import (
    Predictions,
    logits_of,
    losses,
    margins,
    predict_dataset,
    predict_examples,
    predictions_from_logits,
)
from puma.audit.report import AuditReport, Evidence, PlotData, audit_removal
from puma.audit.retraining import (
    GapToRetraining,
    RelativeConfidence,
    RemainingInfluence,
    gap_to_retraining,
    remaining_influence,
    surer_than_retrained,
)
from puma.audit.shadow import FEATURES, ShadowAttack, train_shadow_attack
from puma.audit.verdict import PASSED, VERDICTS, Utility, Verdict, judge

__all__ = [
    "ATTACKS",
    "FEATURES",
    "PASSED",
    "VERDICTS",
    "Attack",
    "AuditReport",
    "Evidence",
    "GapToRetraining",
    "Interval",
    "LiRA",
    "PlotData",
    "Population",
    "Predictions",
    "RelativeConfidence",
    "RemainingInfluence",
    "Resolved",
    "ShadowAttack",
    "Utility",
    "Verdict",
    "auc",
    "auc_interval",
    "audit_removal",
    "bootstrap_auc_interval",
    "confidence_attack",
    "entropy_attack",
    "everybody",
    "gap_to_retraining",
    "halves",
    "judge",
    "logits_of",
    "loss_attack",
    "losses",
    "margins",
    "predict_dataset",
    "predict_examples",
    "predictions_from_logits",
    "rate",
    "remaining_influence",
    "roc",
    "surer_than_retrained",
    "tpr_at_fpr",
    "train_population",
    "train_shadow_attack",
    "two_model_attack",
    "without",
]
