from __future__ import annotations

import pytest
import torch
from torch import nn

from puma.data import Examples
from puma.errors import DataError, ModelError, SettingsError
from puma.influence import FlatModel
from puma.influence.flat_model import batches
from tests.cases import MODELS, convolutional, mlp, normalised, random_examples, tied
from tests.oracles import flat_parameters, per_example_losses

# A weight that is stored column by column is multiplied by another routine.
ROUND_OFF = {"rtol": 1e-14, "atol": 1e-14}


@pytest.mark.parametrize("name", MODELS)
def test_the_vector_and_what_it_computes_are_the_models_own(name):
    model, examples = MODELS[name](), random_examples(7, 3)
    flat = FlatModel(model)
    assert torch.equal(flat.vector, flat_parameters(model))
    assert (flat.size, flat.dtype) == (len(flat.vector), torch.float64)
    for _ in range(2):
        rows = (examples.features, examples.labels, examples.task)
        flat.losses(flat.vector + 1, *rows)  # leaves nothing behind
        losses = flat.losses(flat.vector, *rows)
        torch.testing.assert_close(losses, per_example_losses(model, examples), **ROUND_OFF)
    assert torch.equal(flat_parameters(flat.module(flat.vector)), flat.vector)


@pytest.mark.parametrize("name", MODELS)
def test_module_is_a_new_model_with_the_given_parameters(name):
    model, examples = MODELS[name](), random_examples(7, 3)
    flat = FlatModel(model)
    shifted = flat.vector + 0.25
    edited = flat.module(shifted)
    assert not any(module.training for module in edited.modules())
    assert torch.equal(flat_parameters(edited), shifted)
    logits = flat.logits(shifted, examples.features)
    torch.testing.assert_close(edited(examples.features), logits, **ROUND_OFF)
    flags = [p.requires_grad for p in model.parameters()]
    assert [p.requires_grad for p in edited.parameters()] == flags
    with torch.no_grad():
        next(iter(edited.parameters())).zero_()
    assert torch.equal(flat.vector, flat_parameters(model))


def test_a_tied_weight_counts_once_and_stays_tied():
    flat = FlatModel(tied())
    assert flat.size == 9 + 3 + 3
    edited = flat.module(flat.vector * 2)
    assert edited.first.weight is edited.second.weight


def test_the_vector_is_a_snapshot():
    model = mlp()
    flat = FlatModel(model)
    before = flat.vector
    flat.vector.zero_()
    nn.init.zeros_(next(iter(model.parameters())))
    assert torch.equal(flat.vector, before)


def test_dropout_is_off_and_batch_statistics_are_frozen_in_a_model_that_trains():
    model, examples = normalised().train(), random_examples(9, 3)
    flat = FlatModel(model)
    together = flat.logits(flat.vector, examples.features)
    alone = torch.cat([flat.logits(flat.vector, row[None]) for row in examples.features])
    torch.testing.assert_close(together, alone, rtol=1e-14, atol=1e-14)
    assert model.training


def test_a_model_with_nothing_to_edit_is_refused():
    with pytest.raises(ModelError, match="no parameter with requires_grad=True; unfreeze"):
        FlatModel(mlp().requires_grad_(False))
    with pytest.raises(ModelError, match="no parameter"):
        FlatModel(nn.ReLU())


def test_mixed_dtypes_are_refused():
    mixed = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).double())
    with pytest.raises(ModelError, match=r"one dtype.*float32.*float64"):
        FlatModel(mixed)


def test_batch_statistics_without_a_memory_are_refused():
    coupled = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(ModelError, match=r"BatchNorm1d .1. .*keeps no running statistics"):
        FlatModel(coupled)


def test_convolutional_models_run_in_smaller_batches():
    assert FlatModel(convolutional()).batch_size < FlatModel(mlp()).batch_size


def test_slices_cut_the_vector_into_named_parameters():
    model = mlp()
    flat = FlatModel(model)
    assert list(flat.slices) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        assert torch.equal(flat.vector[flat.slices[name]], parameter.detach().flatten())


def test_misfits_are_named():
    flat, examples = FlatModel(mlp()), random_examples(4, 3)
    with pytest.raises(ModelError, match=r"shape \(38,\), got \(3,\)"):
        flat.logits(torch.zeros(3, dtype=torch.float64), examples.features)
    odd = FlatModel(nn.Sequential(nn.Linear(3, 9), nn.Unflatten(1, (9, 1))).double())
    with pytest.raises(ModelError, match=r"\(batch, classes\), got \(4, 9, 1\)"):
        odd.logits(odd.vector, examples.features)
    single = Examples.of(examples.features.float(), examples.labels)
    with pytest.raises(DataError, match=r"float32 but the model is torch\.float64"):
        batches(flat, single, 2)
    with pytest.raises(SettingsError, match="batch_size must be >= 1, got 0"):
        batches(flat, examples, 0)
