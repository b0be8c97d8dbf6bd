"""The audit of a removal: membership attacks, retrained models, and a verdict.

One convention: a higher score means more likely a member. ``lineage`` and the rooms above it may
import it.
"""

from puma.audit.attacks import (
    ATTACKS,
    Attack,
    confidence_attack,
    entropy_attack,
    loss_attack,
    two_model_attack,
)
from puma.audit.evidence import Evidence, train_pool
from puma.audit.lira import LiRA
from puma.audit.metrics import (
    Interval,
    Resolved,
    auc_interval,
    rate,
    roc,
    tpr_at_fpr,
)
from puma.audit.plot_data import PlotData
from puma.audit.population import everybody, halves, train_population, without
from puma.audit.predictions import Predictions, predict, scores_of
from puma.audit.report import AuditReport, audit_removal, judge_rows
from puma.audit.retraining import (
    GapToRetraining,
    RelativeConfidence,
    RemainingInfluence,
    gap_to_retraining,
    relative_confidence,
    remaining_influence,
)
from puma.audit.shadow import FEATURES, ShadowAttack, train_shadow_attack
from puma.audit.verdict import PASSED, VERDICTS, Utility, Verdict, judge
from puma.references import Population

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
    "auc_interval",
    "audit_removal",
    "confidence_attack",
    "entropy_attack",
    "everybody",
    "gap_to_retraining",
    "halves",
    "judge",
    "judge_rows",
    "loss_attack",
    "predict",
    "rate",
    "relative_confidence",
    "remaining_influence",
    "roc",
    "scores_of",
    "tpr_at_fpr",
    "train_pool",
    "train_population",
    "train_shadow_attack",
    "two_model_attack",
    "without",
]
