from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from puma.audit import auc, loss_attack_scores
from puma.data.base import Dataset, Examples
from puma.models import build_model
from tests.audit.conftest import MODEL, coin_flips


def test_members_of_an_overfitted_model_score_higher(
    memory: Dataset, overfitted: nn.Module
) -> None:
    members = loss_attack_scores(overfitted, memory.train)
    nonmembers = loss_attack_scores(overfitted, memory.test)
    assert members.shape == (200,)
    assert auc(members, nonmembers) > 0.9


def test_a_model_that_saw_neither_group_cannot_tell_them_apart(memory: Dataset) -> None:
    model = build_model(MODEL, memory, seed=3)
    m = n = 500
    scores = [loss_attack_scores(model, coin_flips(m, seed)) for seed in (11, 12)]
    # Standard deviation of the AUC of two samples of one distribution (Mann-Whitney): .018.
    deviation = math.sqrt((m + n + 1) / (12 * m * n))
    assert abs(auc(*scores) - 0.5) < 3 * deviation


def test_scores_are_minus_the_cross_entropy(memory: Dataset, overfitted: nn.Module) -> None:
    with torch.no_grad():
        outputs = overfitted(memory.test.features).double().numpy()
    chosen = outputs[np.arange(200), memory.test.labels.numpy()]
    expected = chosen - np.log(np.exp(outputs).sum(1))
    np.testing.assert_allclose(loss_attack_scores(overfitted, memory.test), expected, atol=1e-10)


def test_confident_examples_do_not_tie() -> None:
    # Margins of 20 and 25 nats: both losses are 0 in float32.
    rows = Examples.of(torch.tensor([[20.0, 0.0], [25.0, 0.0]]), torch.tensor([0, 0]))
    weaker, stronger = loss_attack_scores(nn.Identity(), rows)
    assert weaker < stronger < 0
