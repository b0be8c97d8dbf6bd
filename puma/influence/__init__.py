"""Influence: curvature, solvers, scores (psi, Eq. 9) and weights (lambda, Eq. 10)."""

from puma.influence.criteria import Criterion, MeanLoss
from puma.influence.curvature import CURVATURES, Curvature, sampled
from puma.influence.damping import Damping, damped, mean_eigenvalue, top_eigenvalue
from puma.influence.derivatives import directional_derivatives, weighted_gradient
from puma.influence.flat import FlatModel
from puma.influence.gauss_newton import GaussNewton, MarginGaussNewton
from puma.influence.operators import Hessian, LinearOperator, OverExamples, Shifted
from puma.influence.reweighting import REWEIGHTERS, reweight
from puma.influence.rows import GaussNewtonRows
from puma.influence.scores import influence_scores
from puma.influence.soft_ece import SoftECE
from puma.influence.solvers import (
    EKFAC,
    SOLVERS,
    ConjugateGradients,
    Dense,
    LiSSA,
    Preconditioner,
    Solution,
    Solver,
    Woodbury,
    quality,
    resolve_solver,
)

__all__ = [
    "CURVATURES",
    "EKFAC",
    "REWEIGHTERS",
    "SOLVERS",
    "ConjugateGradients",
    "Criterion",
    "Curvature",
    "Damping",
    "Dense",
    "FlatModel",
    "GaussNewton",
    "GaussNewtonRows",
    "Hessian",
    "LiSSA",
    "LinearOperator",
    "MarginGaussNewton",
    "MeanLoss",
    "OverExamples",
    "Preconditioner",
    "Shifted",
    "SoftECE",
    "Solution",
    "Solver",
    "Woodbury",
    "damped",
    "directional_derivatives",
    "influence_scores",
    "mean_eigenvalue",
    "quality",
    "resolve_solver",
    "reweight",
    "sampled",
    "top_eigenvalue",
    "weighted_gradient",
]
