"""Figures. Every function returns one; none shows, saves, or names a subject.

``workflows``, ``cli`` and notebooks may import it. It imports only the data and the project.
"""

from __future__ import annotations

from puma.plots.audits import (
    against_retraining,
    attack_quality,
    audit_figures,
    loss_changes,
    loss_distributions,
    margins_against_retraining,
    mean_margins,
    predicted_margins,
    remaining_influence,
    roc_curves,
)
from puma.plots.calibration import reliability_diagram
from puma.plots.debugging import (
    PLANE,
    decision_regions,
    found_curves,
    found_panels,
    suspicion_against_loss,
)
from puma.plots.demonstrations import (
    PUBLIC_IMAGES,
    Moves,
    Surface,
    image_grid,
    projections,
    regions_by_model,
)
from puma.plots.models import class_balance, loss_curve
from puma.plots.removals import forgetting_against_drift, row_weights
from puma.plots.style import COLOURS, NEUTRAL, save

__all__ = [
    "COLOURS",
    "NEUTRAL",
    "PLANE",
    "PUBLIC_IMAGES",
    "Moves",
    "Surface",
    "against_retraining",
    "attack_quality",
    "audit_figures",
    "class_balance",
    "decision_regions",
    "forgetting_against_drift",
    "found_curves",
    "found_panels",
    "image_grid",
    "loss_changes",
    "loss_curve",
    "loss_distributions",
    "margins_against_retraining",
    "mean_margins",
    "predicted_margins",
    "projections",
    "regions_by_model",
    "reliability_diagram",
    "remaining_influence",
    "roc_curves",
    "row_weights",
    "save",
    "suspicion_against_loss",
]
