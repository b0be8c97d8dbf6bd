from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from puma.data import Dataset
from puma.errors import ModelError, SettingsError, SolverError
from puma.influence import FlatModel
from puma.label_errors import GShapley, NotSettledWarning
from puma.label_errors.shapley import fresh
from tests.cases import DOUBLE, convolutional, frozen, linear, mlp, normalised
from tests.label_errors.problems import planted, tiny


def orders_for(n, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(n, generator=generator) for _ in range(count)])


def starts_for(model, count):
    return torch.stack([FlatModel(fresh(model, seed)).vector for seed in range(count)])


def performance(model, examples, kind):
    with torch.no_grad():
        logits = model(examples.features)
    if kind == "accuracy":
        return (logits.argmax(1) == examples.labels).double().mean()
    return -cross_entropy(logits, examples.labels)


def by_hand(model, dataset, order, *, seed, rate, kind):
    """(n,) credits of one permutation with torch's own optimiser."""
    model = fresh(model, seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    credits = torch.zeros(len(order), dtype=DOUBLE)
    before = performance(model, dataset.test, kind)
    for rows in order.split(1):
        optimiser.zero_grad()
        cross_entropy(model(dataset.train.features[rows]), dataset.train.labels[rows]).backward()
        optimiser.step()
        after = performance(model, dataset.test, kind)
        credits[rows] = after - before
        before = after
    return credits


@pytest.mark.parametrize("kind", ["accuracy", "loss"])
@pytest.mark.parametrize("build", [linear, mlp, normalised, convolutional])
def test_credits_equal_plain_training_and_add_up(build, kind):
    model, dataset = build(), tiny(13, *((1, 4, 4) if build is convolutional else ()))
    ranker = GShapley(learning_rate=0.3, performance=kind)
    orders = orders_for(13, 2)
    credits = ranker.credits(model, dataset, starts_for(model, 2), orders)
    for seed, order in enumerate(orders):
        expected = by_hand(model, dataset, order, seed=seed, rate=0.3, kind=kind)
        torch.testing.assert_close(credits[seed], expected, rtol=1e-9, atol=1e-13)
    # Efficiency: the credits of a permutation add up to final minus initial performance.
    trained = fresh(model, 0)
    optimiser = torch.optim.SGD(trained.parameters(), lr=0.3)
    for rows in orders[0].split(1):
        optimiser.zero_grad()
        cross_entropy(trained(dataset.train.features[rows]), dataset.train.labels[rows]).backward()
        optimiser.step()
    gained = performance(trained, dataset.test, kind) - performance(
        fresh(model, 0), dataset.test, kind
    )
    assert credits[0].sum().item() == pytest.approx(gained.item(), abs=1e-12)


def test_suspicion_is_minus_the_mean_credit_whatever_the_batch():
    model, dataset = mlp(), tiny()
    one = GShapley(permutations=5, performance="loss", batch=1, seed=3)
    credits = [
        by_hand(
            model,
            dataset,
            torch.randperm(13, generator=torch.Generator().manual_seed(seed)),
            seed=seed,
            rate=0.1,
            kind="loss",
        )
        for seed in range(3, 8)
    ]
    expected = -torch.stack(credits).mean(0)
    for batch in (1, 2, 5):
        suspicion = replace(one, batch=batch).suspicion(model, dataset)
        torch.testing.assert_close(suspicion, expected, rtol=1e-10, atol=1e-14)


def test_the_same_seed_gives_the_same_values_and_another_others():
    model, dataset = mlp(), tiny()
    ranker = GShapley(permutations=3, performance="loss")
    first = ranker.suspicion(model, dataset)
    torch.rand(7)
    assert torch.equal(ranker.suspicion(model, dataset), first)
    assert not torch.equal(replace(ranker, seed=9).suspicion(model, dataset), first)


def test_permuting_the_rows_and_their_orders_permutes_the_credits():
    model, dataset = mlp(), tiny()
    ranker, orders, starts = GShapley(performance="loss"), orders_for(13, 2), starts_for(mlp(), 2)
    moved = torch.randperm(13, generator=torch.Generator().manual_seed(5))
    shuffled = replace(dataset, train=dataset.train.subset(moved))
    torch.testing.assert_close(
        ranker.credits(model, shuffled, starts, moved.argsort()[orders]),
        ranker.credits(model, dataset, starts, orders)[:, moved],
        rtol=1e-11,
        atol=1e-14,
    )


def test_it_stops_when_the_values_have_settled_and_says_when_they_have_not():
    model, dataset = planted()
    loose = GShapley(permutations=60, performance="loss", batch=10, tolerance=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        early = loose.suspicion(model, dataset)
    credits = {
        count: GShapley(permutations=count, performance="loss", batch=10).suspicion(model, dataset)
        for count in range(10, 60, 10)
    }
    assert any(torch.equal(early, values) for values in credits.values())
    with pytest.warns(NotSettledWarning, match="after 4 permutations the values' standard error"):
        GShapley(permutations=4, tolerance=1e-3).suspicion(model, dataset)


def test_fresh_weights_are_redrawn_under_the_seed_but_frozen_ones_are_kept():
    model = frozen()
    before = torch.get_rng_state()
    first, again, other = fresh(model, 1), fresh(model, 1), fresh(model, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first[0].weight, model[0].weight)
    assert torch.equal(first[2].weight, again[2].weight)
    assert not torch.equal(first[2].weight, model[2].weight)
    assert not torch.equal(first[2].weight, other[2].weight)
    norm = fresh(normalised(), 0)[1]
    assert torch.equal(norm.running_mean, torch.zeros(5, dtype=DOUBLE))
    torch.manual_seed(1)
    expected = nn.Linear(5, 3, dtype=DOUBLE)
    torch.set_rng_state(before)
    assert torch.equal(first[2].weight, expected.weight)


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3, dtype=DOUBLE))

    def forward(self, features):
        return features @ self.weight


def test_a_module_that_cannot_be_redrawn_is_refused_by_name():
    with pytest.raises(ModelError, match="Bare '1' has trainable parameters but no reset_param"):
        GShapley().suspicion(nn.Sequential(nn.Flatten(), Bare()), tiny())


def test_weights_that_diverge_are_refused():
    dataset = tiny()
    huge = Dataset(
        "huge",
        replace(dataset.train, features=dataset.train.features * 1e160),
        dataset.test,
        dataset.classes,
    )
    with pytest.raises(ModelError, match="weights diverged; lower learning_rate"):
        GShapley(permutations=2, learning_rate=1e154).suspicion(mlp(), huge)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"permutations": 0}, "permutations must be >= 1, got 0"),
        ({"batch": 0}, "batch must be >= 1, got 0"),
        ({"max_bytes": 0}, "max_bytes must be >= 1, got 0"),
        ({"seed": -1}, "seed must be a whole number.*got -1"),
        ({"learning_rate": 0}, "learning_rate must be finite and > 0, got 0"),
        ({"performance": "auc"}, "performance must be one of accuracy, loss, got 'auc'"),
        ({"tolerance": 0}, "tolerance must be finite and > 0, or None, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        GShapley(**settings)


def test_more_models_than_the_memory_holds_are_refused_before_one_is_made():
    model, dataset = mlp(), tiny()
    parameters = FlatModel(model).size
    with pytest.raises(
        SolverError, match=rf"{10**9} models of {parameters} parameters.*lower batch"
    ):
        GShapley(permutations=10**9, batch=10**9).suspicion(model, dataset)
    size = 6 * 2 * parameters * 8 + 8 * 13 * (2 * 3 + 3 * 2)
    GShapley(permutations=3, batch=2, max_bytes=size).suspicion(model, dataset)
    with pytest.raises(SolverError, match="the credits of 13 rows in 3 permutations"):
        GShapley(permutations=3, batch=2, max_bytes=size - 1).suspicion(model, dataset)
