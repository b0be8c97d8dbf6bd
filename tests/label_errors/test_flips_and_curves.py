from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from puma.errors import DataError, SettingsError
from puma.label_errors import flip_labels, found_at, found_curve
from tests.cases import random_examples


@pytest.mark.parametrize(("fraction", "count"), [(0, 0), (0.1, 6), (0.26, 16), (1, 60)])
def test_exactly_that_many_labels_differ_and_they_are_in_the_mask(fraction, count):
    examples = random_examples(60, 3)
    before = torch.get_rng_state()
    flipped, mask = flip_labels(examples, fraction, n_classes=3, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert mask.sum() == count
    assert torch.equal(flipped.labels != examples.labels, mask)
    assert flipped.labels.max() < 3
    assert flipped.labels.min() >= 0
    assert torch.equal(flipped.features, examples.features)
    assert (flipped.subject_ids == examples.subject_ids).all()


def test_wrong_labels_are_uniform_over_the_other_classes_and_rows_over_all():
    examples = random_examples(6000, 3)
    flipped, mask = flip_labels(examples, 0.5, n_classes=4, seed=0)
    shift = (flipped.labels - examples.labels)[mask] % 4
    counts = torch.bincount(shift, minlength=4)
    assert counts[0] == 0
    assert (counts[1:] / 1000 - 1).abs().max() < 0.1
    halves = mask[:3000].sum() / 1500
    assert abs(halves - 1) < 0.07


def test_the_seed_decides():
    examples = random_examples(60, 3)
    first, again, other = (
        flip_labels(examples, 0.2, n_classes=3, seed=seed)[0].labels for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_bad_fraction_is_refused(fraction):
    with pytest.raises(SettingsError, match="fraction must be between 0 and 1, got"):
        flip_labels(random_examples(5, 3), fraction, n_classes=3, seed=0)


def test_bad_classes_are_refused():
    with pytest.raises(SettingsError, match="n_classes must be >= 2 for a label to be wrong"):
        flip_labels(random_examples(5, 3), 0.1, n_classes=1, seed=0)
    with pytest.raises(DataError, match="a label is 2, but n_classes is 2"):
        flip_labels(random_examples(15, 3), 0.1, n_classes=2, seed=0)


def test_the_curve_by_hand():
    inspected, found = found_curve(
        torch.tensor([0.1, 0.9, 0.5, 0.7]), torch.tensor([True, True, False, False])
    )
    assert inspected.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert found.tolist() == [0, 0.5, 0.5, 0.5, 1]


def test_ties_are_the_mean_over_every_order_of_the_rows():
    suspicion = torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0, 2.0])
    flipped = torch.tensor([True, False, False, True, True, True])
    curves = []
    for order in itertools.permutations(range(6)):
        ranked = sorted(order, key=lambda row: -suspicion[row])  # stable
        curves.append(np.concatenate([[0], flipped.numpy()[ranked].cumsum()]) / 4)
    np.testing.assert_allclose(found_curve(suspicion, flipped)[1], np.mean(curves, 0), atol=1e-12)


def test_a_constant_score_finds_what_it_inspects():
    flipped = torch.arange(40) < 7
    inspected, found = found_curve(torch.zeros(40), flipped)
    np.testing.assert_allclose(found, inspected, atol=1e-12)
    assert found_at(torch.zeros(40), flipped, 0.33) == pytest.approx(0.33)


@pytest.mark.parametrize("decimals", [1, 6], ids=["ties", "no ties"])
def test_the_curve_agrees_with_scikit_learn(decimals):
    generator = torch.Generator().manual_seed(0)
    flipped = torch.rand(80, generator=generator) < 0.3
    noise = torch.randn(80, generator=generator, dtype=torch.float64)
    suspicion = (noise + flipped).round(decimals=decimals)
    assert (suspicion.unique().numel() < 80) == (decimals == 1)
    fpr, tpr, _ = roc_curve(flipped, suspicion, drop_intermediate=False)
    wrong = int(flipped.sum())
    inspected, found = found_curve(suspicion, flipped)
    knots = (fpr * (80 - wrong) + tpr * wrong) / 80
    np.testing.assert_allclose(np.interp(knots, inspected, found), tpr, atol=1e-12)


def test_found_at_a_share_between_two_rows():
    suspicion, flipped = torch.arange(5, 0, -1.0), torch.tensor([1, 0, 1, 0, 0]).bool()
    assert found_at(suspicion, flipped) == pytest.approx(0.25)  # half of the first row
    assert found_at(suspicion, flipped, 0.5) == pytest.approx(0.75)
    assert found_at(suspicion, flipped, 1) == 1
    with pytest.raises(SettingsError, match=r"share must be between 0 and 1, got 1\.5"):
        found_at(suspicion, flipped, 1.5)


@pytest.mark.parametrize("measure", [found_curve, found_at])
@pytest.mark.parametrize(
    ("suspicion", "flipped", "message"),
    [
        (torch.ones(3), torch.ones(4).bool(), r"got shapes \(3,\) and \(4,\)"),
        (torch.ones(3, 1), torch.ones(3, 1).bool(), r"got shapes \(3, 1\)"),
        (torch.ones(3), torch.ones(3), "of torch.float32"),
        (torch.tensor([1, torch.nan]), torch.ones(2).bool(), "1 entries that are NaN or infinite"),
        (torch.ones(3), torch.zeros(3).bool(), "none of 3 rows is flipped"),
    ],
)
def test_bad_inputs_are_refused(measure, suspicion, flipped, message):
    with pytest.raises(DataError, match=message):
        measure(suspicion, flipped)
