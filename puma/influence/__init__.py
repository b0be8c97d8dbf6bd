"""Influence: curvature, solvers, scores (ψ, Eq. 9) and weights (λ, Eq. 10).

Removal, calibration, label errors and everything above them may import it.
"""

from puma.influence.criteria import (
    CRITERIA,
    Criterion,
    CriterionKind,
    MeanLoss,
    OwnFunction,
    SoftECE,
    TrainingObjective,
    preserved_criterion,
    require_preservable,
)
from puma.influence.curvature import CURVATURES, Curvature, sampled, sampled_rows
from puma.influence.derivatives import directional_derivatives, weighted_gradient
from puma.influence.flat_model import FlatModel
from puma.influence.gauss_newton import GaussNewton, MarginGaussNewton
from puma.influence.gauss_newton_rows import GaussNewtonRows
from puma.influence.operators import Hessian, LinearOperator, OverExamples, Shifted
from puma.influence.reweighting import REWEIGHTERS, reweight
from puma.influence.scores import influence_scores
from puma.influence.sharding import rows_shared
from puma.influence.solvers import (
    SOLVERS,
    ConjugateGradients,
    Dense,
    Dual,
    LiSSA,
    Preconditioner,
    RowsInverse,
    Solution,
    Solver,
    Woodbury,
    resolve_solver,
)

__all__ = [
    "CRITERIA",
    "CURVATURES",
    "REWEIGHTERS",
    "SOLVERS",
    "ConjugateGradients",
    "Criterion",
    "CriterionKind",
    "Curvature",
    "Dense",
    "Dual",
    "FlatModel",
    "GaussNewton",
    "GaussNewtonRows",
    "Hessian",
    "LiSSA",
    "LinearOperator",
    "MarginGaussNewton",
    "MeanLoss",
    "OverExamples",
    "OwnFunction",
    "Preconditioner",
    "RowsInverse",
    "Shifted",
    "SoftECE",
    "Solution",
    "Solver",
    "TrainingObjective",
    "Woodbury",
    "directional_derivatives",
    "influence_scores",
    "preserved_criterion",
    "require_preservable",
    "resolve_solver",
    "reweight",
    "rows_shared",
    "sampled",
    "sampled_rows",
    "weighted_gradient",
]
