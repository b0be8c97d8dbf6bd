"""Influence: curvature, solvers, scores (psi, Eq. 9) and weights (lambda, Eq. 10)."""

from puma.influence.criteria import Criterion, MeanLoss
from puma.influence.derivatives import directional_derivatives, weighted_gradient
from puma.influence.flat import FlatModel
from puma.influence.operators import GaussNewton, LinearOperator, Shifted
from puma.influence.reweighting import REWEIGHTERS, reweight
from puma.influence.scores import influence_scores
from puma.influence.solvers import (
    SOLVERS,
    ConjugateGradients,
    Dense,
    Solution,
    Solver,
    resolve_solver,
)

__all__ = [
    "REWEIGHTERS",
    "SOLVERS",
    "ConjugateGradients",
    "Criterion",
    "Dense",
    "FlatModel",
    "GaussNewton",
    "LinearOperator",
    "MeanLoss",
    "Shifted",
    "Solution",
    "Solver",
    "directional_derivatives",
    "influence_scores",
    "resolve_solver",
    "reweight",
    "weighted_gradient",
]
