"""Suspect rows of every task: closed forms, a planted wrong label, and what needs classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

from puma.calibration import reliability_of, temperature_scaled
from puma.data import Dataset, Examples
from puma.data.task import Task
from puma.errors import DataError
from puma.label_errors import (
    NTK,
    GShapley,
    Loss,
    Psi,
    Ranker,
    Representer,
    SelfInfluence,
    flip_labels,
    own_label_confidence,
)
from puma.label_errors.suspects import rank
from tests.cases import DOUBLE
from tests.label_errors.problems import PLANTED, SHARP

N, DECAY, DAMPING = 40, 0.05, 0.1
RANKERS: dict[str, Ranker] = {
    "loss": Loss(),
    "psi": Psi(solver=SHARP, check=False),
    "self-influence": SelfInfluence(),
    "self-influence-cg": SelfInfluence(method="cg", tolerance=1e-12),
    "ntk": NTK(check=False),
    "ntk-explicit": NTK(per_example_gradients=True, check=False),
    "representer": Representer(),
    "g-shapley": GShapley(permutations=8),
}


def planted(task: str) -> tuple[nn.Linear, Dataset]:
    """(a linear model at its regularised optimum, rows of which one has a wrong label)."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(N + 30, 3, generator=generator, dtype=DOUBLE)
    signal = features @ torch.tensor([2.0, -1.0, 0.5], dtype=DOUBLE)
    labels = signal + 0.1 * torch.randn(N + 30, generator=generator, dtype=DOUBLE)
    features[PLANTED], wrong = torch.tensor([1.5, -1.0, 0.5], dtype=DOUBLE), -4.25
    if task == "binary":
        labels, wrong = (labels > 0).long(), 0
    labels[PLANTED] = wrong
    names = () if task == "regression" else ("no", "yes")
    rows = Examples.of(features, labels, task=Task(task, names))  # type: ignore[arg-type]
    train, test = rows.subset(torch.arange(N)), rows.subset(torch.arange(N, N + 30))
    model = nn.Linear(3, 1, bias=False, dtype=DOUBLE)
    model.weight.data = torch.zeros(1, 3, dtype=DOUBLE)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=500, tolerance_grad=1e-14)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        outputs = model(train.features)[:, 0]
        if task == "regression":
            loss = (outputs - train.labels).square().mean() / 2
        else:
            loss = nn.functional.binary_cross_entropy_with_logits(outputs, train.labels.double())
        loss = loss + DECAY / 2 * model.weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)  # type: ignore[arg-type]
    data = Dataset(
        "planted",
        train,
        test,
        names,
    )
    return model, replace(
        data, train=replace(data.train, subject_ids=np.array([f"s{n}" for n in range(N)]))
    )


@pytest.mark.parametrize("task", ["regression", "binary"])
@pytest.mark.parametrize("name", RANKERS)
def test_the_planted_label_is_most_suspect(task: str, name: str) -> None:
    model, data = planted(task)
    suspicion = RANKERS[name].suspicion(model, data)
    assert suspicion.shape == (N,)
    assert int(suspicion.argmax()) == PLANTED


def test_self_influence_in_ridge_regression_is_its_closed_form() -> None:
    model, data = planted("regression")
    x, y = data.train.features.numpy(), data.train.labels.numpy()
    errors = x @ model.weight.detach().numpy()[0] - y
    inverse = np.linalg.inv(x.T @ x / N + DAMPING * np.eye(3))
    expected = errors**2 * np.einsum("ni,ij,nj->n", x, inverse, x)
    for ranker in (SelfInfluence(damping=DAMPING), RANKERS["self-influence-cg"]):
        np.testing.assert_allclose(ranker.suspicion(model, data).numpy(), expected, rtol=1e-8)


def test_representer_points_of_a_regression_are_the_residuals_of_a_ridge() -> None:
    model, data = planted("regression")
    x, y = data.train.features.numpy(), data.train.labels.numpy()
    found = Representer(regularisation=0.02).represent(model, data.train)
    # mean (ŷ − y)²/2 + 0.02·w² = (‖ŷ − y‖² + 0.04·N·w²)/(2N)
    ridge = Ridge(alpha=0.04 * N, fit_intercept=False).fit(x, y)
    np.testing.assert_allclose(found.weights.numpy()[0], ridge.coef_, atol=1e-9)
    expected = -(ridge.predict(x) - y) / (0.04 * N)
    np.testing.assert_allclose(found.alpha.numpy()[:, 0], expected, atol=1e-8)
    np.testing.assert_allclose(found.alpha.numpy()[:, 0] @ x, ridge.coef_, atol=1e-8)


def test_class_weights_scale_the_influence_of_a_row_and_not_its_loss() -> None:
    model, data = planted("binary")
    rows = data.train.of_task(Task("binary", ("no", "yes"), (4.0, 1.0)))
    heavy = replace(data, train=rows)
    no = data.train.labels == 0
    assert torch.equal(Loss().suspicion(model, heavy), Loss().suspicion(model, data))
    ratio = _squared_gradients(model, heavy) / _squared_gradients(model, data)
    torch.testing.assert_close(ratio[no], torch.full_like(ratio[no], 16))
    torch.testing.assert_close(ratio[~no], torch.ones_like(ratio[~no]))


def _squared_gradients(model: nn.Module, data: Dataset) -> torch.Tensor:
    """With damping that dwarfs the curvature, self-influence is ‖g‖²/damping."""
    return SelfInfluence(damping=1e9).suspicion(model, data)


def test_the_request_says_numbers_in_the_target_s_own_unit(tmp_path) -> None:
    model, data = planted("regression")
    task = Task("regression", centre=150.0, scale=50.0)
    data = replace(data, train=data.train.of_task(task), test=data.test.of_task(task))
    ranked = rank(model, data, method="loss")
    ranked.write(tmp_path / "suspects.csv", 1)
    line = (tmp_path / "suspects.csv").read_text().splitlines()[1]
    said = 150 + 50 * float(data.train.features[PLANTED] @ model.weight.detach()[0])
    assert line.startswith(f"s{PLANTED},suspect 1 by loss (")
    assert line.endswith(f"labelled -62.5; the model says {said:.4g}")
    wrong = (ranked.predicted - data.train.labels).abs() >= 1
    assert ranked.coarse(data.train.labels[PLANTED]) == "-4.2 sd"
    assert torch.equal(ranked.disagrees, wrong)
    assert wrong[PLANTED]


def test_what_needs_classes_says_so() -> None:
    model, data = planted("regression")
    needs = "needs classes, and these rows are a regression's"
    with pytest.raises(DataError, match=f"g_shapley by accuracy {needs}; set performance to"):
        GShapley(performance="accuracy").suspicion(model, data)
    with pytest.raises(DataError, match=f"a wrong label {needs}"):
        flip_labels(data.train, 0.1, n_classes=2, seed=0)
    with pytest.raises(DataError, match=f"the confidence in a label {needs}"):
        own_label_confidence(model, data.train)
    with pytest.raises(DataError, match=f"the soft calibration error {needs}"):
        Psi("soft_ece").suspicion(model, data)
    with pytest.raises(DataError, match=f"the reliability {needs}"):
        reliability_of(model, data.test)
    with pytest.raises(DataError, match=f"a temperature {needs}"):
        temperature_scaled(model, data.test)


def test_calibration_of_one_logit_is_that_of_two() -> None:
    model, data = planted("binary")
    two = nn.Linear(3, 2, bias=False, dtype=DOUBLE)
    two.weight.data = torch.cat([torch.zeros(1, 3, dtype=DOUBLE), model.weight.detach()])
    noisy, _ = flip_labels(data.test, 0.2, n_classes=2, seed=0)
    both = noisy.of_task(Task("classification", ("no", "yes")))
    assert reliability_of(model, noisy).ece == pytest.approx(reliability_of(two, both).ece)
    scaled, expected = temperature_scaled(model, noisy), temperature_scaled(two, both)
    assert scaled.temperature.item() == pytest.approx(expected.temperature.item())
    assert scaled(noisy.features).shape == (30, 1)
