from __future__ import annotations

import pytest
import torch
from torch import nn

from puma.data import Dataset
from puma.errors import ModelError, SettingsError, SolverError
from puma.influence import FlatModel
from puma.label_errors import SelfInfluence, gradients
from puma.label_errors.gradients import gradient_rows
from tests.cases import DOUBLE, mlp, problem, random_examples
from tests.label_errors.problems import tiny
from tests.oracles import dense_gauss_newton, per_example_gradients

METHODS = {
    "auto": SelfInfluence(),
    "cg": SelfInfluence(method="cg", tolerance=1e-12),
}


def dataset_for(name, n=11):
    model, train = problem(name, n)
    test = random_examples(3, *train.features.shape[1:], seed=1)
    return model, Dataset("tiny", train, test, ("a", "b", "c"))


def oracle(model, examples, damping=0.1):
    g = per_example_gradients(model, examples)
    matrix = dense_gauss_newton(model, examples)
    return (g @ torch.linalg.inv(matrix + damping * torch.eye(len(matrix), dtype=DOUBLE)) * g).sum(
        1
    )


@pytest.mark.parametrize("n", [11, 50], ids=["by examples", "by parameters"])
@pytest.mark.parametrize("name", ["mlp", "frozen", "tied", "normalised", "convolutional"])
def test_either_factorisation_equals_the_dense_oracle(name, n, monkeypatch):
    monkeypatch.setattr(gradients, "CHUNK_BYTES", 5000)
    model, dataset = dataset_for(name, n)
    torch.testing.assert_close(
        SelfInfluence().suspicion(model, dataset),
        oracle(model, dataset.train),
        rtol=1e-10,
        atol=1e-12,
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_method_equals_the_dense_oracle(method):
    model, dataset = dataset_for("mlp")
    torch.testing.assert_close(
        METHODS[method].suspicion(model, dataset),
        oracle(model, dataset.train),
        rtol=1e-10,
        atol=1e-12,
    )


@pytest.mark.parametrize("n", [5, 60], ids=["fewer rows", "fewer parameters"])
def test_auto_takes_the_smaller_matrix(n):
    model, dataset = mlp(), tiny(n)  # 38 parameters, 2n rows
    small = 8 * (2 * 38**2 if n == 60 else 10 * 38 + 2 * 100) + 3 * gradients.CHUNK_BYTES
    SelfInfluence(max_bytes=small).suspicion(model, dataset)
    with pytest.raises(SolverError, match="raise max_bytes, rank fewer rows"):
        SelfInfluence(max_bytes=small - 1).suspicion(model, dataset)


@pytest.mark.parametrize("n", [13, 30], ids=["by examples", "by parameters"])
@pytest.mark.parametrize("damping", [1e-4, 10.0])
def test_other_dampings(n, damping):
    model, dataset = mlp(), tiny(n)
    torch.testing.assert_close(
        SelfInfluence(damping=damping).suspicion(model, dataset),
        oracle(model, dataset.train, damping),
        rtol=1e-9,
        atol=0,
    )


@pytest.mark.parametrize("name", ["mlp", "tied", "normalised", "convolutional"])
def test_gradient_rows_equal_one_backward_pass_a_row(name, monkeypatch):
    monkeypatch.setattr(gradients, "CHUNK_BYTES", 1000)
    model, examples = problem(name, 11)
    blocks = list(gradient_rows(FlatModel(model), examples))
    assert len(blocks) > 1
    torch.testing.assert_close(
        torch.cat(blocks), per_example_gradients(model, examples), rtol=1e-11, atol=1e-13
    )


class Scaled(nn.Module):
    """A layer that the rules do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 0.5], dtype=DOUBLE))

    def forward(self, features):
        return features * self.scale


def test_other_layers_are_refused_by_name_and_ranked_on_request():
    model, dataset = nn.Sequential(Scaled(), nn.Linear(3, 3).double()), tiny()
    with pytest.raises(ModelError, match="parameters of Scaled '0' belong to others"):
        SelfInfluence().suspicion(model, dataset)
    found = METHODS["cg"].suspicion(model, dataset)
    torch.testing.assert_close(found, oracle(model, dataset.train), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("n", "message"),
    [(30, "not positive definite with damping 0"), (13, "which is 0; raise it")],
)
def test_no_damping_on_a_singular_matrix_is_refused(n, message):
    model = mlp()
    nn.init.constant_(model[0].bias, -100)  # a ReLU that no row switches on: rows of zeros
    with pytest.raises(SolverError, match=message):
        SelfInfluence(damping=0).suspicion(model, tiny(n))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "qr"}, "method must be one of auto, cg, got 'qr'"),
        ({"damping": -1}, "damping must be finite and >= 0"),
        ({"tolerance": 2}, "tolerance must be between 0 and 1, got 2"),
        ({"max_bytes": 0}, "max_bytes must be >= 1, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        SelfInfluence(**settings)
