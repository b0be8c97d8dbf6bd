"""Each row of TASKS against PyTorch's and scikit-learn's own formulas, and against each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, r2_score
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from puma.data import Dataset, Examples
from puma.data.task import Task
from puma.errors import DataError, ModelError
from puma.models import build_model, predictions
from puma.models.batched import train_many
from puma.models.tasks import (
    TASKS,
    likelihood_of,
    losses,
    mean_loss,
    require_outputs,
    residuals,
    weighted,
)
from puma.models.training import train
from puma.settings import ModelSettings, TrainingSettings
from tests.cases import DOUBLE

N = 40
NUMBERS = Task("regression", centre=150.0, scale=77.0)
LABELS = {"classification": 3, "binary": 2, "regression": 0}
OUTPUTS = {"classification": 3, "binary": 1, "regression": 1}


def drawn(name: str, seed: int = 0) -> tuple[Task, Tensor, Tensor]:
    """The task, (N, K) outputs and (N,) labels."""
    generator = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randn(N, OUTPUTS[name], generator=generator, dtype=DOUBLE)
    if name == "regression":
        return NUMBERS, outputs, torch.randn(N, generator=generator, dtype=DOUBLE)
    classes = LABELS[name]
    return Task(name), outputs, torch.arange(N) % classes  # type: ignore[arg-type]


def clouds(task: str, weights: tuple[float, ...] | None = None, n: int = 90) -> Examples:
    """Three features; two classes of 2:1, or numbers that follow the features."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(n, 3, generator=generator, dtype=DOUBLE)
    noise = torch.randn(n, generator=generator, dtype=DOUBLE)
    signal = features[:, 0] - 0.5 * features[:, 1] + 0.5 * noise
    labels = signal if task == "regression" else (signal > 0.5).long()
    return Examples.of(features, labels, task=Task(task, class_weights=weights))  # type: ignore[arg-type]


# --- losses, margins, scores ---


def test_half_the_squared_error_is_the_likelihood_of_a_normal_distribution() -> None:
    task, outputs, labels = drawn("regression")
    normal = torch.distributions.Normal(outputs[:, 0], 1.0)
    constant = 0.5 * np.log(2 * np.pi)
    found = TASKS["regression"].losses(outputs, labels)
    torch.testing.assert_close(found, -normal.log_prob(labels) - constant)
    torch.testing.assert_close(mean_loss(task, outputs, labels), found.mean())


def test_one_logit_is_two_logits_of_which_the_first_is_zero() -> None:
    _, outputs, labels = drawn("binary")
    one, two = TASKS["binary"], TASKS["classification"]
    both = one.predictions(outputs)
    torch.testing.assert_close(both.softmax(1)[:, 1], outputs[:, 0].sigmoid())
    torch.testing.assert_close(one.losses(outputs, labels), two.losses(both, labels))
    torch.testing.assert_close(one.margins(outputs, labels), two.margins(both, labels))
    torch.testing.assert_close(one.residuals(outputs, labels), two.residuals(both, labels)[:, 1:])
    # zᵀ(diag(p) − ppᵀ)z for a tangent (0, t) is p(1 − p)t².
    tangent = torch.randn(N, 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    padded = torch.cat([torch.zeros_like(tangent), tangent], 1)
    expected = two.curvature(both)(padded)[:, 1:]
    torch.testing.assert_close(one.curvature(outputs)(tangent), expected)
    assert torch.equal(one.labels(both), (outputs[:, 0] > 0).long())


def test_a_certain_wrong_logit_keeps_a_finite_loss_and_margin() -> None:
    outputs, labels = torch.tensor([[800.0], [-800.0]]), torch.tensor([0, 1])
    assert TASKS["binary"].losses(outputs, labels).tolist() == [800, 800]
    assert TASKS["binary"].margins(outputs, labels).tolist() == [-800, -800]


@pytest.mark.parametrize("name", TASKS)
def test_scores_order_the_rows_of_one_label_as_minus_their_losses(name: str) -> None:
    _, outputs, labels = drawn(name)
    likelihood = TASKS[name]  # type: ignore[index]
    scores = likelihood.scores(likelihood.margins(outputs, labels))
    assert torch.equal(scores.argsort(), (-likelihood.losses(outputs, labels)).argsort())


# --- derivatives ---


@pytest.mark.parametrize("name", TASKS)
def test_residuals_and_curvature_are_the_first_two_derivatives_of_the_loss(name: str) -> None:
    _, outputs, labels = drawn(name)
    likelihood = TASKS[name]  # type: ignore[index]
    tangent = torch.randn(outputs.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    product = likelihood.curvature(outputs)(tangent)
    values, vectors = likelihood.eigenpairs(outputs)
    assert values.shape == (N, likelihood.rank(outputs.shape[1]))
    blocks = torch.einsum("br,bri,brj->bij", values, vectors, vectors)
    for row in range(N):

        def loss(output: Tensor, row: int = row) -> Tensor:
            return likelihood.losses(output[None], labels[row : row + 1])[0]

        gradient = torch.autograd.functional.jacobian(loss, outputs[row])
        hessian = torch.autograd.functional.hessian(loss, outputs[row])
        torch.testing.assert_close(likelihood.residuals(outputs, labels)[row], gradient)
        torch.testing.assert_close(product[row], hessian @ tangent[row])
        torch.testing.assert_close(blocks[row], hessian)
    torch.testing.assert_close(likelihood.traces(outputs), blocks.diagonal(0, 1, 2).sum(1))


# --- metrics ---


def test_metrics_are_those_of_scikit_learn() -> None:
    task, outputs, labels = drawn("regression")
    measured = TASKS["regression"].measured(outputs, labels, task)
    truth, found = (150 + 77 * each.numpy() for each in (labels, outputs[:, 0]))
    assert list(measured) == list(TASKS["regression"].metrics)
    assert measured["r2"] == pytest.approx(r2_score(truth, found))
    assert measured["mae"] == pytest.approx(mean_absolute_error(truth, found))
    for name in ("classification", "binary"):
        task, outputs, labels = drawn(name)
        likelihood = likelihood_of(task)
        both = likelihood.predictions(outputs)
        expected = accuracy_score(labels, both.argmax(1))
        assert likelihood.measured(both, labels, task) == {"accuracy": pytest.approx(expected)}


def test_r2_of_rows_with_one_label_is_left_out() -> None:
    same = torch.full((5,), 0.5)
    measured = TASKS["regression"].measured(torch.zeros(5, 1), same, NUMBERS)
    assert measured == {"mae": pytest.approx(0.5 * 77)}


def test_test_metrics_are_named_for_the_test_rows() -> None:
    rows = clouds("regression")
    model = nn.Linear(3, 1, dtype=DOUBLE)
    found = predictions.test_metrics(model, rows)
    assert list(found) == ["test_r2", "test_mae"]
    assert found["test_r2"] == predictions.measured(model, rows)["r2"]
    assert list(predictions.test_metrics(model, clouds("binary"))) == ["accuracy"]
    with pytest.raises(DataError, match="an accuracy needs classes, and these rows are a regress"):
        predictions.accuracy(model, rows)


# --- outputs that do not fit ---


@pytest.mark.parametrize(
    ("task", "shape", "labels", "wanted"),
    [
        ("classification", (4, 2), [0, 1, 2, 0], "logits of shape .batch, classes."),
        ("classification", (4, 1), [0, 0, 0, 0], "for two classes set task: binary"),
        ("binary", (4, 2), [0, 1, 1, 0], "the logit of the second class, of shape .batch, 1."),
        ("binary", (4, 1), [0, 1, 2, 0], "or set task: classification"),
        ("regression", (4, 2), [0.5, 1, 2, 0], "predicted labels, of shape .batch, 1."),
        ("regression", (4,), [0.5, 1, 2, 0], "give its last layer one output"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(
    task: str, shape: tuple[int, ...], labels: list[float], wanted: str
) -> None:
    with pytest.raises(ModelError, match=wanted):
        require_outputs(torch.zeros(shape), Task(task), torch.tensor(labels))  # type: ignore[arg-type]


# --- training ---


def fitted(examples: Examples, class_weights: object = None) -> nn.Linear:
    """One output, trained until it moves no more, with weight decay 0.01."""
    model = nn.Linear(3, 1, dtype=DOUBLE)
    settings = TrainingSettings(
        epochs=600,
        batch_size=1000,
        learning_rate=0.1,
        weight_decay=0.01,
        class_weights=class_weights,  # type: ignore[arg-type]
    )
    train(model, examples, settings, seed=0, progress=False)
    return model


def test_training_a_regression_is_ridge_regression() -> None:
    rows = clouds("regression")
    model = fitted(rows)
    # mean (ŷ − y)²/2 + 0.01/2·‖(w, b)‖²: the constant feature makes the bias a weight.
    features = np.hstack([rows.features.numpy(), np.ones((len(rows), 1))])
    ridge = Ridge(alpha=0.01 * len(rows), fit_intercept=False).fit(features, rows.labels.numpy())
    found = [*model.weight[0].tolist(), model.bias.item()]
    np.testing.assert_allclose(found, ridge.coef_, atol=1e-5)


@pytest.mark.parametrize("weights", ["balanced", {"0": 0.5, "1": 3.0}])
def test_class_weights_are_those_of_scikit_learn(weights: object) -> None:
    rows = clouds("binary")
    labels = rows.labels.numpy()
    theirs = weights if weights == "balanced" else {0: 0.5, 1: 3.0}
    model = fitted(rows, weights)
    features = np.hstack([rows.features.numpy(), np.ones((len(rows), 1))])
    expected = LogisticRegression(
        C=1 / (0.01 * len(rows)), class_weight=theirs, fit_intercept=False, tol=1e-10
    ).fit(features, labels)
    found = [*model.weight[0].tolist(), model.bias.item()]
    np.testing.assert_allclose(found, expected.coef_[0], atol=1e-4)
    unweighted = fitted(rows)
    assert abs(unweighted.bias.item() - found[-1]) > 0.1


def test_balanced_weights_are_of_the_rows_that_are_learnt_from() -> None:
    rows = clouds("binary")
    for part in (rows, rows.subset(torch.arange(30))):
        expected = compute_class_weight("balanced", classes=np.arange(2), y=part.labels.numpy())
        assert weighted(part, "balanced").task.class_weights == pytest.approx(tuple(expected))
    given = weighted(rows, {"1": 3.0})
    assert given.task.class_weights == (1.0, 3.0)
    assert weighted(given, None) is given


def test_weighted_losses_and_residuals() -> None:
    _, outputs, labels = drawn("binary")
    weights = (0.5, 3.0)
    task = Task("binary", class_weights=weights)
    sample = np.asarray(weights)[labels]
    probabilities = outputs[:, 0].sigmoid().numpy()
    total = log_loss(labels, probabilities, sample_weight=sample) * sample.sum()
    assert losses(task, outputs, labels).sum().item() == pytest.approx(total)
    assert mean_loss(task, outputs, labels).item() == pytest.approx(total / N)
    expected = sample * (probabilities - labels.numpy())
    np.testing.assert_allclose(residuals(task, outputs, labels)[:, 0].numpy(), expected)


def test_class_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match=r"training\.class_weights needs classes, and these rows"):
        weighted(clouds("regression"), "balanced")
    with pytest.raises(DataError, match="names 'bad', and the classes are 'no', 'yes'; name one"):
        weighted(clouds("binary").of_task(Task("binary", ("no", "yes"))), {"bad": 2.0})


@pytest.mark.parametrize(
    ("task", "class_weights"), [("regression", None), ("binary", "balanced"), ("binary", None)]
)
def test_models_that_are_trained_together_are_those_trained_one_by_one(
    task: str, class_weights: str | None
) -> None:
    rows = clouds(task)
    settings = TrainingSettings(
        epochs=2,
        batch_size=16,
        learning_rate=0.01,
        class_weights=class_weights,  # type: ignore[arg-type]
    )
    parts = [torch.arange(60), torch.arange(20, 90)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        starts = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in parts]
    together = [start.double() for start in starts]
    alone = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double() for _ in parts]
    for one, start in zip(alone, together, strict=True):
        one.load_state_dict(start.state_dict())
    histories = train_many(together, rows, parts, settings, seeds=[3, 4], progress=False)
    for seed, part, one, both, history in zip(
        (3, 4), parts, alone, together, histories, strict=True
    ):
        own = train(one, rows.subset(part), settings, seed=seed, progress=False)
        assert history.loss == pytest.approx(own.loss, rel=1e-6)
        for first, second in zip(one.parameters(), both.parameters(), strict=True):
            torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_built_models_have_one_output(task: str) -> None:
    rows = clouds(task)
    data = Dataset("toy", rows, rows, () if task == "regression" else ("no", "yes"))
    assert build_model(ModelSettings(hidden=(4,)), data, seed=0)(rows.features.float()).shape == (
        len(rows),
        1,
    )
