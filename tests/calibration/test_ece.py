"""The hard-binned error against pandas' own binning, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from puma.calibration import hard_ece, reliability
from puma.errors import DataError, SettingsError
from tests.cases import DOUBLE


def binary(confidence: list[float]) -> torch.Tensor:
    """Rows that answer class 0 with this confidence, at least one half."""
    top = torch.tensor(confidence, dtype=DOUBLE)
    return torch.stack([top, 1 - top], 1)


def random_probabilities(n: int = 500, classes: int = 4, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=DOUBLE)
    return logits.softmax(1), torch.randint(classes, (n,), generator=generator)


@pytest.mark.parametrize("bins", [1, 7, 10, 15])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_what_pandas_makes_of_it(bins, seed):
    probabilities, labels = random_probabilities(seed=seed)
    frame = pd.DataFrame(
        {
            "confidence": probabilities.max(1).values,
            "right": (probabilities.argmax(1) == labels).double(),
        }
    )
    edges = np.linspace(0, 1, bins + 1)
    place = pd.cut(frame.confidence, edges.tolist(), include_lowest=True)
    table = frame.groupby(place, observed=False).agg(["mean", "size"])
    gaps = (table["right", "mean"] - table["confidence", "mean"]).abs()

    found = reliability(probabilities, labels, bins=bins)
    assert found.edges.tolist() == edges.tolist()
    assert found.counts.tolist() == table["right", "size"].tolist()
    assert found.accuracy == pytest.approx(table["right", "mean"].to_numpy(), nan_ok=True)
    assert found.confidence == pytest.approx(table["confidence", "mean"].to_numpy(), nan_ok=True)
    expected = float((gaps * table["right", "size"]).sum() / len(frame))
    assert found.ece == pytest.approx(expected, rel=1e-12)
    assert found.mce == pytest.approx(float(gaps.max()), rel=1e-12)
    assert hard_ece(probabilities, labels, bins=bins) == found.ece


def test_by_hand():
    # (0.5, 0.75]: .6 right, .7 wrong; (0.75, 1]: .8, .9 right, 1 wrong; the others are empty.
    probabilities = binary([0.6, 0.7, 0.8, 0.9, 1.0])
    found = reliability(probabilities, torch.tensor([0, 1, 0, 0, 1]), bins=4)
    assert found.counts.tolist() == [0, 0, 2, 3]
    assert found.confidence == pytest.approx([math.nan, math.nan, 0.65, 0.9], nan_ok=True)
    assert found.accuracy == pytest.approx([math.nan, math.nan, 0.5, 2 / 3], nan_ok=True)
    assert found.ece == pytest.approx(0.4 * 0.15 + 0.6 * (0.9 - 2 / 3))
    assert found.mce == pytest.approx(0.9 - 2 / 3)
    assert repr(found) == "Reliability(n=5, bins=4)"


def test_an_edge_belongs_to_the_bin_below_it():
    # 0.6·15 is 9 in the reals and 9 in floating point, 0.8·15 is 12: neither may round upwards.
    for confidence, place in ((0.6, 8), (0.8, 11), (1.0, 14), (0.5, 7)):
        counts = reliability(binary([confidence]), torch.tensor([0])).counts
        assert counts.nonzero()[0].tolist() == [place], confidence
    edges = np.linspace(0, 1, 31)[15:]
    counts = reliability(binary(edges.tolist()), torch.zeros(16, dtype=torch.long), bins=30).counts
    assert counts.tolist() == [0] * 14 + [1] * 16


def test_perfect_calibration_has_no_error():
    probabilities = binary([0.75] * 4 + [1.0] * 3)
    labels = torch.tensor([0, 0, 0, 1, 0, 0, 0])
    found = reliability(probabilities, labels)
    assert (found.ece, found.mce) == (0, 0)
    assert hard_ece(binary([1.0, 1.0]), torch.tensor([1, 1])) == 1


def test_rounding_above_one_stays_in_the_last_bin():
    probabilities = torch.tensor([[1 + 1e-7, 0.0]], dtype=DOUBLE)
    found = reliability(probabilities, torch.tensor([0]))
    assert found.counts[-1] == 1
    assert found.ece == 0


def test_many_classes_in_single_precision_are_taken():
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.randn(50, 5000, generator=generator).softmax(1)
    assert reliability(probabilities, torch.zeros(50, dtype=torch.long)).counts.sum() == 50


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (torch.randn(3, 2), [0, 1, 0], r"3 of 3 rows are not probabilities .* logits\.softmax"),
        (torch.tensor([[0.5, 0.6]]), [0], "1 of 1 rows are not probabilities"),
        (torch.tensor([[1.5, -0.5]]), [0], "1 of 1 rows are not probabilities"),
        (torch.tensor([[0.5, math.nan], [1, 0]]), [0, 0], "NaN or infinity in 1 rows"),
        (torch.tensor([0.5, 0.5]), [0, 1], r"one row per example.*got shape \(2,\)"),
        (torch.ones(0, 2), [], r"one row per example.*got shape \(0, 2\)"),
        (torch.tensor([[1, 0]]), [0], "one row per example.*int64"),
        (torch.tensor([[1.0, 0.0]]), [0, 1], r"each of 1 examples, got shape \(2,\)"),
        (torch.tensor([[1.0, 0.0]]), [2], "labels run from 2 to 2, but there are 2 columns"),
        (torch.tensor([[1.0, 0.0]]), [-1], "labels run from -1"),
        (torch.tensor([[1.0, 0.0]]), [0.0], "integer class number.*float32"),
    ],
)
def test_misfits_are_refused(probabilities, labels, message):
    labels = torch.tensor(labels, dtype=torch.long if labels == [] else None)
    with pytest.raises(DataError, match=message):
        reliability(probabilities, labels)


def test_no_bins_are_refused():
    with pytest.raises(SettingsError, match="bins must be >= 1, got 0"):
        reliability(binary([0.5]), torch.tensor([0]), bins=0)
