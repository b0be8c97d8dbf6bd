from __future__ import annotations

import pytest
import torch

from puma.influence import FlatModel
from puma.influence.gradient_rows import gradient_rows
from puma.influence.layer_gradients import NoRuleError
from tests.cases import DOUBLE, PROBLEMS, problem, random_examples
from tests.influence.test_rows import Rebatched, UsedElsewhere
from tests.oracles import per_example_jacobians

EXACT = {"rtol": 1e-12, "atol": 1e-13}


@pytest.mark.parametrize("name", PROBLEMS)
def test_products_and_squares_are_those_of_the_written_rows(name):
    model, examples = problem(name)
    flat, generator = FlatModel(model), torch.Generator().manual_seed(3)
    seeds = torch.randn(len(examples), 3, generator=generator, dtype=DOUBLE)
    rows = gradient_rows(flat, examples.features, seeds)
    written = torch.einsum("nc,ncp->np", seeds, per_example_jacobians(model, examples))
    vector = torch.randn(flat.size, generator=generator, dtype=DOUBLE)
    torch.testing.assert_close(rows @ vector, written @ vector, **EXACT)
    weights = torch.randn(rows.count, generator=generator, dtype=DOUBLE)
    torch.testing.assert_close(rows.transposed(weights), written.T @ weights, **EXACT)
    torch.testing.assert_close(rows.squares(), written.square().sum(1), **EXACT)
    some = torch.tensor([7, 2, 5])
    torch.testing.assert_close(rows.gram(rows.at(some)), written @ written[some].T, **EXACT)


def test_rows_may_share_an_example_and_come_in_several_batches():
    model, examples = problem("convolutional", n=40)  # batches of 32
    chosen = torch.arange(40).repeat_interleave(2)
    seeds = torch.randn(80, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    rows = gradient_rows(FlatModel(model), examples.features, seeds, rows=chosen)
    jacobians = per_example_jacobians(model, examples)[chosen]
    written = torch.einsum("nc,ncp->np", seeds, jacobians)
    torch.testing.assert_close(rows.gram(rows), written @ written.T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("build", "shape", "message"),
    [
        (UsedElsewhere, (3,), r"gradients of 'first\.weight' are not what its layer gives"),
        (Rebatched, (4,), "layer 'layer' got 10 entries for a batch of 5 examples"),
        (lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.PReLU()), (3,), "PReLU '1'"),
    ],
)
def test_a_model_that_its_layers_do_not_explain_is_refused(build, shape, message):
    torch.manual_seed(0)
    flat, features = FlatModel(build().double()), random_examples(5, *shape).features
    with pytest.raises(NoRuleError, match=message):
        gradient_rows(flat, features, torch.randn(5, 3, dtype=DOUBLE))
