"""The kernel of the margins against the Gram matrix of gradients by plain differentiation."""

import pytest
import torch
from torch import nn

from puma.data.base import Examples
from puma.errors import DataError
from puma.influence.margin_gram import margin_gram
from tests.cases import PROBLEMS, mlp, problem, random_examples
from tests.oracles import dense_margin_gradients

SHARED = ("tied", "repeated")  # a parameter belongs to several layers, or a layer is used twice


@pytest.mark.parametrize("name", sorted(set(PROBLEMS) - set(SHARED)))
def test_layer_by_layer_it_is_the_gram_matrix_of_the_gradients(name):
    model, examples = problem(name)
    gradients = dense_margin_gradients(model, examples)
    torch.testing.assert_close(
        margin_gram(model, examples), gradients @ gradients.T, atol=1e-10, rtol=1e-10
    )


@pytest.mark.slow
def test_other_layers_are_estimated_by_random_directions():
    model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    examples = random_examples(9, 3)
    gradients = dense_margin_gradients(model, examples)
    exact, found = gradients @ gradients.T, margin_gram(model, examples, seed=3)
    assert (found - exact).norm() < 0.2 * exact.norm()
    assert not torch.equal(found, exact)
    torch.testing.assert_close(found, margin_gram(model, examples, seed=3), rtol=0, atol=0)


@pytest.mark.parametrize("name", SHARED)
def test_shared_parameters_are_estimated_not_wrong(name):
    model, examples = problem(name)
    gradients = dense_margin_gradients(model, examples)
    exact = gradients @ gradients.T
    assert (margin_gram(model, examples) - exact).norm() < 0.2 * exact.norm()


def test_no_examples_are_refused():
    none = Examples(torch.zeros(0, 3).double(), torch.zeros(0, dtype=torch.long), [])
    with pytest.raises(DataError, match="needs at least one example"):
        margin_gram(mlp(), none)
