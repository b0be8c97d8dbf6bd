from __future__ import annotations

import pytest
import torch

from puma.errors import DataError, SettingsError
from puma.label_errors import Psi, groups, own_label_confidence
from tests.label_errors.problems import PLANTED, planted

#          lowest psi: rows 0, 1, 2; lowest confidence: 1, 3, 4; highest: 2, 5, 6
PSI = torch.tensor([-9.0, -8.0, -7.0, 1.0, 2.0, 3.0, 4.0, 5.0])
CONFIDENCE = torch.tensor([0.5, 0.1, 0.9, 0.2, 0.3, 0.95, 0.8, 0.6])


def naive(psi, confidence, k):
    """The printed sets, with Python's own."""
    influence, sure = psi.tolist(), confidence.tolist()
    rows = range(len(psi))
    low_influence = set(sorted(rows, key=influence.__getitem__)[:k])
    low, high = (sorted(rows, key=sure.__getitem__)[part] for part in (slice(k), slice(-k, None)))
    kept = low_influence - (set(low) | set(high))
    return low_influence & set(high), low_influence & set(low), kept


def test_the_groups_by_hand():
    found = groups(PSI, CONFIDENCE, 3)
    assert found.over_confident.tolist() == [2]
    assert found.over_uncertain.tolist() == [1]
    assert found.other_noise.tolist() == [0]


@pytest.mark.parametrize("k", [1, 4, 10])
@pytest.mark.parametrize("seed", range(3))
def test_sets_equal_the_printed_ones(seed, k):
    generator = torch.Generator().manual_seed(seed)
    psi, confidence = torch.randn(30, generator=generator), torch.rand(30, generator=generator)
    found = groups(psi, confidence, k)
    parts = (found.over_confident, found.over_uncertain, found.other_noise)
    for rows, expected in zip(parts, naive(psi, confidence, k), strict=True):
        assert set(rows.tolist()) == expected
        assert (psi[rows].diff() >= 0).all()
    assert sum(map(len, parts)) == k


def test_the_wrong_label_is_among_the_over_uncertain():
    """The erratum: it has the lowest psi of all, and the lowest confidence in its own label."""
    model, dataset = planted()
    psi = -Psi(check=False).suspicion(model, dataset)
    confidence = own_label_confidence(model, dataset.train)
    assert psi.argmin() == confidence.argmin() == PLANTED
    for k in (1, 5, 15):
        assert PLANTED in groups(psi, confidence, k).over_uncertain


def test_confidence_is_the_probability_of_the_given_label():
    model, dataset = planted()
    probabilities = model(dataset.train.features).softmax(1).detach()
    torch.testing.assert_close(
        own_label_confidence(model, dataset.train),
        probabilities[torch.arange(40), dataset.train.labels],
        rtol=1e-12,
        atol=0,
    )


def test_bad_inputs_are_refused():
    with pytest.raises(DataError, match=r"one number per row each, got shapes \(8,\) and \(7,\)"):
        groups(PSI, CONFIDENCE[:7], 2)
    for psi, confidence in ((PSI / 0, CONFIDENCE), (PSI, CONFIDENCE + 1), (PSI, CONFIDENCE - 1)):
        with pytest.raises(DataError, match="got 8 rows that are not"):
            groups(psi, confidence, 2)
    with pytest.raises(DataError, match="got 1 rows that are not"):
        groups(PSI, CONFIDENCE.where(CONFIDENCE != 0.5, torch.nan), 2)
    for k in (0, 5):
        with pytest.raises(SettingsError, match=rf"k must be between 1 and n/2 = 4, got {k}"):
            groups(PSI, CONFIDENCE, k)
