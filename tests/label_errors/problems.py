"""Small datasets in double precision with labels that are known to be wrong."""

from __future__ import annotations

from dataclasses import replace

import torch

from puma.data import Dataset, Examples
from puma.influence import ConjugateGradients
from puma.label_errors import (
    NTK,
    GShapley,
    Loss,
    Psi,
    Representer,
    SelfInfluence,
)
from puma.label_errors.suspects import Suspects
from tests.cases import DOUBLE, logistic, random_examples
from tests.oracles import LogisticRegression

DECAY = 0.05
PLANTED = 7
SHARP = ConjugateGradients(tolerance=1e-13)

# One value of every ranker, quick and sharp enough for tests; a ranker may have several.
CASES = {
    "loss": Loss(),
    "psi": Psi(solver=SHARP, check=False),
    "psi-hessian": Psi(solver="dense", curvature="hessian", damping=2.0, check=False),
    "psi-unregularised": Psi("unregularised_loss", solver=SHARP, check=False),
    "psi-training": Psi("training_loss", weight_decay=DECAY, solver=SHARP, check=False),
    "psi-soft-ece": Psi("soft_ece", solver=SHARP, check=False),
    "self-influence": SelfInfluence(),
    "self-influence-cg": SelfInfluence(method="cg", tolerance=1e-12),
    "ntk": NTK(check=False),
    "ntk-explicit": NTK(per_example_gradients=True, check=False),
    "representer": Representer(),
    "g-shapley": GShapley(permutations=4, batch=3),
    "g-shapley-loss": GShapley(permutations=4, performance="loss"),
}


def tiny(n: int = 13, *shape: int) -> Dataset:
    """Noisy rows of three features, or of ``shape``, three classes, 5 of them held out."""
    shape = shape or (3,)
    return Dataset(
        "tiny", random_examples(n, *shape), random_examples(5, *shape, seed=1), ("a", "b", "c")
    )


def planted() -> tuple[torch.nn.Module, Dataset]:
    """(softmax regression at its L2-regularised optimum, two clouds with one wrong label)."""
    train, test = _clouds(40, 0), _clouds(30, 1)
    labels = train.labels.clone()
    labels[PLANTED] = 1 - labels[PLANTED]
    train = replace(train, labels=labels)
    theta = LogisticRegression(train, decay=DECAY).optimum()
    return logistic(theta, 2), Dataset("planted", train, test, ("a", "b"))


def _clouds(n: int, seed: int) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    centres = torch.tensor([[-1.0, -1.0, 0.5], [1.0, 1.0, -0.5]], dtype=DOUBLE)
    noise = torch.randn(n, 3, generator=generator, dtype=DOUBLE)
    return Examples.of(centres[labels] + 0.4 * noise, labels)


def several_rows_each() -> Suspects:
    """Six rows of three people; the last two rows are the most suspect."""
    owners = ["ann", "ann", "bo, jr", "bo, jr", "cy", "ann"]
    train = Examples.of(torch.zeros(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]), owners)
    return Suspects(
        Dataset("toy", train, train, ("no", "yes")),
        "psi",
        "soft_ece",
        suspicion=torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64),
        loss=torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64),
        predicted=torch.tensor([1, 1, 1, 1, 1, 0]),
    )
