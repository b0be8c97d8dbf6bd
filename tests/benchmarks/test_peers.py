"""The dense solution that the libraries are compared with, against PUMA's own exact scores."""

from __future__ import annotations

import torch

from benchmarks.peer_methods import METHODS
from benchmarks.peers import dense, make_problem, reweighted
from puma.data import Examples
from puma.influence import MeanLoss, influence_scores


def test_the_dense_solution_is_that_of_the_exact_scores() -> None:
    problem = make_problem(300)
    matrix, gradient, scores = dense(problem)
    train = Examples.of(problem.features.double(), problem.labels)
    unseen = Examples.of(problem.unseen.double(), problem.unseen_labels)
    expected = influence_scores(
        problem.model.double(),
        train,
        criterion=MeanLoss(unseen),
        solver="dense",
        damping=problem.damping,
    )
    torch.testing.assert_close(scores, expected, rtol=1e-9, atol=1e-12)
    # What a process of its own measures of PUMA comes near to it, in float32.
    found, _ = METHODS["puma"](problem)
    assert torch.corrcoef(torch.stack([found.double(), scores]))[0, 1] > 0.9999
    _, inverse = METHODS["puma_inverse"](problem)
    assert inverse is not None
    assert (matrix @ inverse.double() - gradient).norm() < 2e-4 * gradient.norm()


def test_the_exact_weights_are_timed_at_every_size() -> None:
    frame = reweighted((100, 2000))
    assert frame.groupby("examples")["solver"].apply(list).to_dict() == {
        100: ["exact", "lbfgsb", "slsqp"],
        2000: ["exact", "lbfgsb"],
    }
    exact = frame[frame["solver"] == "exact"]
    assert (exact["kkt_residual"] < 1e-12).all()
    assert (exact["seconds"] > 0).all()
