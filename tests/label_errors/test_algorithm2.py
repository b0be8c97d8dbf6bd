from __future__ import annotations

import pytest
import torch

from puma.errors import DataError, SettingsError
from puma.label_errors import groups, own_label_confidence, printed_suspects
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
    thrown = low_influence & set(low)

    def mean(chosen):
        return sum(influence[row] for row in chosen) / len(chosen) if chosen else float("nan")

    printed = set() if mean(kept) > mean(thrown) else kept
    return low_influence & set(high), thrown, kept, printed


def test_the_groups_by_hand():
    found = groups(PSI, CONFIDENCE, 3)
    assert found.over_confident.tolist() == [2]
    assert found.over_uncertain.tolist() == [1]
    assert found.other_noise.tolist() == [0]


def test_the_printed_test_keeps_rows_of_lower_mean_and_empties_the_answer_otherwise():
    assert printed_suspects(PSI, CONFIDENCE, 3).tolist() == [0]  # -9 against -8
    swapped = PSI.clone()
    swapped[0], swapped[1] = -8, -9
    assert printed_suspects(swapped, CONFIDENCE, 3).tolist() == []


def test_an_empty_intersection_keeps_the_suspects():
    confidence = CONFIDENCE.clone()
    confidence[1], confidence[7] = 0.6, 0.1  # no row of low influence is among the least certain
    assert groups(PSI, confidence, 3).over_uncertain.tolist() == []
    assert printed_suspects(PSI, confidence, 3).tolist() == [0, 1]


def test_nothing_left_is_an_empty_answer():
    assert printed_suspects(PSI, CONFIDENCE, 4).tolist() == []
    found = printed_suspects(torch.tensor([-1.0, 0, 0, 0]), torch.tensor([0.9, 0.1, 0.5, 0.6]), 1)
    assert found.dtype == torch.int64
    assert found.shape == (0,)


@pytest.mark.parametrize("k", [1, 4, 10])
@pytest.mark.parametrize("seed", range(8))
def test_sets_equal_the_printed_ones(seed, k):
    generator = torch.Generator().manual_seed(seed)
    psi, confidence = torch.randn(30, generator=generator), torch.rand(30, generator=generator)
    found = groups(psi, confidence, k)
    parts = (found.over_confident, found.over_uncertain, found.other_noise)
    printed = printed_suspects(psi, confidence, k)
    for rows, expected in zip((*parts, printed), naive(psi, confidence, k), strict=True):
        assert set(rows.tolist()) == expected
        assert (psi[rows].diff() >= 0).all()
    assert sum(map(len, parts)) == k


def test_the_printed_filter_throws_out_the_wrong_label():
    """The erratum: it has the lowest psi of all, and the lowest confidence in its own label."""
    from puma.label_errors import Psi

    model, dataset = planted()
    psi = -Psi(check=False).suspicion(model, dataset)
    confidence = own_label_confidence(model, dataset.train)
    assert psi.argmin() == confidence.argmin() == PLANTED
    for k in (1, 5, 15):
        assert PLANTED in groups(psi, confidence, k).over_uncertain
        assert PLANTED not in printed_suspects(psi, confidence, k)


def test_confidence_is_the_probability_of_the_given_label():
    model, dataset = planted()
    probabilities = model(dataset.train.features).softmax(1).detach()
    torch.testing.assert_close(
        own_label_confidence(model, dataset.train),
        probabilities[torch.arange(40), dataset.train.labels],
        rtol=1e-12,
        atol=0,
    )


@pytest.mark.parametrize("function", [groups, printed_suspects])
def test_bad_inputs_are_refused(function):
    with pytest.raises(DataError, match=r"one number per row each, got shapes \(8,\) and \(7,\)"):
        function(PSI, CONFIDENCE[:7], 2)
    for psi, confidence in ((PSI / 0, CONFIDENCE), (PSI, CONFIDENCE + 1), (PSI, CONFIDENCE - 1)):
        with pytest.raises(DataError, match="got 8 rows that are not"):
            function(psi, confidence, 2)
    with pytest.raises(DataError, match="got 1 rows that are not"):
        function(PSI, CONFIDENCE.where(CONFIDENCE != 0.5, torch.nan), 2)
    for k in (0, 5):
        with pytest.raises(SettingsError, match=rf"k must be between 1 and n/2 = 4, got {k}"):
            function(PSI, CONFIDENCE, k)
