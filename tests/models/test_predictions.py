from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from puma.data import Examples
from puma.models import predictions
from puma.models.tasks import TASKS


def mixed() -> nn.Sequential:
    """Dropout and batch statistics, used and in part frozen: modes that differ by submodule."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6),
        nn.BatchNorm1d(6),
        nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 6), nn.BatchNorm1d(6)),
        nn.Linear(6, 3),
    )
    model(torch.randn(32, 4))
    model[1].eval()
    model[2][0].eval()
    return model


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


@pytest.fixture
def rows() -> Examples:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(23, 4, generator=generator)
    return Examples.of(features, torch.randint(3, (23,), generator=generator))


def frozen(model: nn.Module, features: Tensor) -> Tensor:
    with torch.no_grad():
        outputs: Tensor = copy.deepcopy(model).eval()(features)
    return outputs


def test_logits_are_those_of_eval_mode_and_every_mode_comes_back(rows: Examples) -> None:
    model = mixed()
    before, buffers = modes(model), {k: v.clone() for k, v in model.state_dict().items()}
    assert True in before
    assert False in before
    expected = frozen(model, rows.features)
    found = predictions.logits(model, rows.features)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    assert modes(model) == before
    assert all(torch.equal(value, buffers[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("mode", [True, False])
def test_a_uniform_mode_comes_back_as_well(mode: bool, rows: Examples) -> None:
    model = mixed().train(mode)
    predictions.accuracy(model, rows)
    predictions.losses(model, rows)
    assert set(modes(model)) == {mode}


def test_modes_come_back_after_an_exception() -> None:
    model = mixed()
    before = modes(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        predictions.logits(model, torch.zeros(3, 5))
    assert modes(model) == before


def test_inside_the_block_every_submodule_is_in_eval_mode() -> None:
    model = mixed()
    before = modes(model)
    with predictions.evaluating(model) as inside:
        assert inside is model
        assert set(modes(model)) == {False}
    assert modes(model) == before


@pytest.mark.parametrize("batch_size", [1, 5, 22, 23, 4096])
def test_batching_changes_neither_values_nor_order(rows: Examples, batch_size: int) -> None:
    model = mixed()
    sizes: list[int] = []
    expected = frozen(model, rows.features)
    model.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    found = predictions.logits(model, rows.features, batch_size=batch_size)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert sum(sizes) == 23
    assert max(sizes) == min(batch_size, 23)


def test_losses_are_minus_the_log_of_the_softmax(rows: Examples) -> None:
    model = mixed()
    outputs = frozen(model, rows.features).double().numpy()
    powers = np.exp(outputs)
    chosen = (powers / powers.sum(1, keepdims=True))[np.arange(23), rows.labels.numpy()]
    found = predictions.losses(model, rows)
    assert found.shape == (23,)
    np.testing.assert_allclose(found.numpy(), -np.log(chosen), rtol=1e-5, atol=1e-6)


def test_accuracy_counts_the_most_probable_class() -> None:
    logits = torch.tensor([[3.0, 1, 2], [0, -1, 5], [-3, -2, -9], [1, 2, 3], [9, 8, 7]])
    rows = Examples.of(logits, torch.tensor([0, 2, 1, 1, 2]))
    assert predictions.accuracy(nn.Identity(), rows) == 3 / 5
    assert predictions.accuracy(nn.Identity(), rows.subset(torch.tensor([3, 4]))) == 0


def test_accuracy_equals_a_count_by_hand(rows: Examples) -> None:
    model = mixed()
    hits = [
        int(max(range(3), key=outputs.__getitem__) == label)
        for outputs, label in zip(
            frozen(model, rows.features).tolist(), rows.labels.tolist(), strict=True
        )
    ]
    assert 0 < sum(hits) < 23
    assert predictions.accuracy(model, rows) == sum(hits) / 23


def test_margins_are_log_odds_in_double_precision(rows: Examples) -> None:
    model = mixed()
    powers = np.exp(frozen(model, rows.features).double().numpy())
    chosen = (powers / powers.sum(1, keepdims=True))[np.arange(23), rows.labels.numpy()]
    found = predictions.margins_of(model, rows)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), np.log(chosen / (1 - chosen)), rtol=1e-9)


def test_margins_of_a_certain_label_stay_finite_and_differentiable() -> None:
    logits = torch.tensor([[400.0, 0.0], [0.0, -400.0]], requires_grad=True)
    found = TASKS["classification"].margins(logits, torch.tensor([0, 1]))
    assert found.tolist() == [400, -400]
    found.sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[1, -1], [-1, 1]]
