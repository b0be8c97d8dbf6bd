"""The step to the target margins against the same computed with dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from puma.data import Dataset
from puma.models.predictions import margins_of
from puma.removal import PUMA, Retrain
from puma.removal.puma import target_margin_step
from puma.removal.puma.target_margin_step import (
    PULL,
    REACH,
    SHARES,
    TargetMarginStepper,
    _Candidate,
)
from puma.requests.deletion_set import DeletionSet
from puma.settings import TrainingSettings
from tests.oracles import dense_margin_gradients, per_example_gradients
from tests.removal.conftest import WEIGHT_DECAY, blobs, flat

ROWS = torch.arange(0, 60, 2)
DAMPING = 0.05


@pytest.mark.parametrize("reweighting", ["always", "never"])
@pytest.mark.parametrize("solver", ["dual", "dense", "cg", "woodbury"])
def test_step_equals_the_dense_computation(problem, solver, reweighting, monkeypatch):
    train, model = problem.dataset.train, problem.trained.predictor
    removed = train.subset(ROWS)
    generator = torch.Generator().manual_seed(3)
    targets = 2 * torch.randn(len(ROWS), generator=generator, dtype=torch.float64) - 1
    targets[0] = 50.0  # further than REACH
    monkeypatch.setattr(target_margin_step, "target_margins", lambda *_, **__: targets)
    removal = PUMA(
        reference_models=1,
        training=TrainingSettings(weight_decay=WEIGHT_DECAY),
        solver=solver,
        reweighting=reweighting,
        tolerance=1e-12,
        damping=DAMPING,
        budget=1e6,
        max_weight=1e6,
        l2=1e-12,
        steps=1,
    ).remove(
        problem.trained,
        DeletionSet.of(train.subject_ids[ROWS.numpy()].tolist(), problem.dataset),
        progress=False,
    )

    kept = torch.ones(len(train), dtype=torch.bool)
    kept[ROWS] = False
    start, size = flat(model), flat(model).numel()

    def logits(vector: Tensor, features: Tensor) -> Tensor:
        return features @ vector[:6].view(2, 3).T + vector[6:]

    def retained_loss(vector: Tensor) -> Tensor:
        return cross_entropy(logits(vector, train.features[kept]), train.labels[kept])

    def distance(vector: Tensor) -> Tensor:
        p = logits(vector, removed.features).softmax(1).gather(1, removed.labels[:, None])[:, 0]
        return targets - torch.log(p / (1 - p))

    # For a linear model the Gauss-Newton matrix is the Hessian.
    identity = torch.eye(size, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(retained_loss, start)
    hessian = hessian + (DAMPING + WEIGHT_DECAY) * identity
    inverse = torch.linalg.inv(hessian)
    jacobian, keeping = dense_margin_gradients(model, removed), identity
    if reweighting == "always":
        slope = torch.autograd.functional.jacobian(retained_loss, start)
        each = per_example_gradients(model, train)
        psi = each @ inverse @ slope
        weights = psi[ROWS].sum() * psi[kept] / (psi[kept] @ psi[kept])
        made_up = -inverse @ (weights @ each[kept]) / len(train)
        keeping = identity - torch.outer(made_up, slope) / (slope @ made_up)
    pulled = jacobian @ keeping
    missing = distance(start).clamp(-REACH, REACH)
    joint = hessian + PULL / len(ROWS) * pulled.T @ pulled
    way = keeping @ torch.linalg.solve(joint, PULL / len(ROWS) * pulled.T @ missing)

    share = min(SHARES, key=lambda part: float(distance(start + part * way).abs().mean()))
    assert removal.steps[0]["dose"] == share
    torch.testing.assert_close(flat(removal.predictor), start + share * way, rtol=1e-6, atol=1e-8)
    assert removal.steps[0]["distance"] == pytest.approx(
        float(distance(flat(removal.predictor)).abs().mean()), rel=1e-9
    )
    if reweighting == "never":
        assert removal.row_weights is None
    else:
        found = removal.row_weights
        torch.testing.assert_close(found.scores, psi, rtol=1e-6, atol=1e-9)
        # λ of Eq. 10, as much of it as takes back what the step does to C.
        whole = torch.linalg.solve(joint, PULL / len(ROWS) * pulled.T @ missing)
        used = -weights * (slope @ whole) / (slope @ made_up)
        torch.testing.assert_close(found.weights[kept], used, rtol=1e-5, atol=1e-8)
        assert not found.weights[ROWS].any()
        moved = flat(removal.predictor) - start
        assert abs(float(slope @ moved)) < 1e-6 * float(slope.norm() * moved.norm())


def test_weights_beyond_their_bound_are_cut(problem, monkeypatch):
    """The way then leaves C changed to first order, rather than a row up-weighted too far."""
    train = problem.dataset.train
    targets = torch.full((len(ROWS),), -3.0, dtype=torch.float64)
    monkeypatch.setattr(target_margin_step, "target_margins", lambda *_, **__: targets)
    request = DeletionSet.of(train.subject_ids[ROWS.numpy()].tolist(), problem.dataset)

    def moved(max_weight: float) -> Tensor:
        removal = PUMA(
            reference_models=1,
            training=TrainingSettings(weight_decay=WEIGHT_DECAY),
            solver="dense",
            damping=DAMPING,
            budget=1e6,
            max_weight=max_weight,
            steps=1,
        ).remove(problem.trained, request, progress=False)
        return (flat(removal.predictor) - flat(problem.trained.predictor)) / removal.steps[0][
            "dose"
        ]

    retained = train.without(ROWS)
    slope = per_example_gradients(problem.trained.predictor, retained).mean(0)
    assert abs(float(slope @ moved(1e-4))) > 100 * abs(float(slope @ moved(1e6)))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 2, 3, padding=1, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("build", "reweighting"),
    [(perceptron, "always"), (perceptron, "never"), (convolutional, "always")],
)
def test_dual_takes_the_steps_of_the_dense_solve(build, reweighting, monkeypatch):
    """Also with repairs in between, on networks that are not linear."""
    examples = blobs(90, seed=5, classes=3, features=16)
    dataset = Dataset("blobs", examples, blobs(30, seed=6, classes=3, features=16), ("a", "b", "c"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build().double()
    training = TrainingSettings(epochs=5, learning_rate=0.03)
    trained = Retrain(training=training).fit(model, dataset, progress=False)
    rows = torch.arange(20)
    targets = margins_of(trained.predictor, examples.subset(rows)) - 3
    monkeypatch.setattr(target_margin_step, "target_margins", lambda *_, **__: targets)
    request = DeletionSet.of(examples.subject_ids[rows.numpy()].tolist(), dataset)
    ends = {
        solver: PUMA(
            training=training,
            solver=solver,
            reference_models=1,
            reweighting=reweighting,
            tolerance=1e-10,
            budget=0.5,
            steps=2,
        ).remove(trained, request, progress=False)
        for solver in ("dense", "dual")
    }
    plain, dual = ends["dense"], ends["dual"]
    assert len(plain.steps) > 1
    assert max(step["repaired"] for step in plain.steps) > 0
    assert plain.diagnostics["solver_rows"] == 0 < dual.diagnostics["solver_rows"]
    assert dual.diagnostics["solver_iterations"] == 0
    torch.testing.assert_close(flat(dual.predictor), flat(plain.predictor), rtol=1e-6, atol=1e-8)


class AlongALine(TargetMarginStepper):
    """Steps from 0 to 1 on a line: the targets are at ``nearest``, and two budgets end on it."""

    def __init__(self, nearest: float, ends: dict[str, float]) -> None:
        self.nearest, self.ends, self.bound_by, self.measured = nearest, ends, (), 0

    def _distance_at(self, vector: Tensor) -> float:
        self.measured += 1
        return abs(float(vector) - self.nearest)

    def drifts(self, vector: Tensor) -> tuple[float, ...]:
        return (float(vector),) * len(self.ends)

    def broken(self, drifts: tuple[float, ...]) -> tuple[str, ...]:
        pairs = zip(self.ends.items(), drifts, strict=True)
        return tuple(name for (name, end), drift in pairs if drift > end)


@pytest.mark.parametrize("nearest", [-0.5, 0.1, 0.3, 0.45, 0.8, 2.0])
@pytest.mark.parametrize("first", [0.0, 0.2, 0.7, 3.0])
@pytest.mark.parametrize("second", [0.0, 0.4, 3.0])
def test_the_nearest_share_within_the_budgets_is_found(nearest: float, first: float, second: float):
    stepper = AlongALine(nearest, {"first": first, "second": second})
    stay = _Candidate(abs(nearest), 0.0, torch.zeros(()))
    best, drifts = stepper._best(stay, torch.ones(()))

    places = {share: abs(share - nearest) for share in (0.0, *SHARES)}
    allowed = [share for share in places if share <= min(first, second)]
    expected = min(allowed, key=lambda share: places[share])
    refused = [share for share in places if places[share] < places[expected]]
    assert (best.share, drifts) == (expected, (expected, expected))
    if refused:  # the farthest of these: by whose budgets it was refused
        farthest = max(refused, key=lambda share: places[share])
        ends = {"first": first, "second": second}
        assert stepper.bound_by == tuple(name for name, end in ends.items() if farthest > end)
    else:
        assert stepper.bound_by == ()
    if nearest == 2 and min(first, second) > 1:  # the whole step is best: one more is measured
        assert stepper.measured == 2
